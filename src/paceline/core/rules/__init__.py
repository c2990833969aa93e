"""Rules 1-8: what must hold of every run, stated once, from events and commands only.

`Rules(schedule, resume)` folds a lineage's records; the same fold serves the runtime (online), `audit` and the property tests.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.rules.conservation import ExactlyOnce, NothingAbandoned, WholeGroups
from paceline.core.rules.fold import Fold, Rule, Violation
from paceline.core.rules.liveness import Live
from paceline.core.rules.publishing import PublishOnce
from paceline.core.rules.versions import BehaviourLogprobs, Bounded, Pinned
from paceline.core.schedule import Resume, Schedule

RULES: dict[int, type[Rule]] = {
    rule.number: rule for rule in (ExactlyOnce, WholeGroups, Pinned, Bounded, BehaviourLogprobs, NothingAbandoned, PublishOnce, Live)
}


class Rules(Fold):
    """All eight rules, or those of `only`, over one lineage that starts from `resume` (None = the beginning)."""

    def __init__(self, schedule: Schedule, resume: Resume | None = None, only: Iterable[int] = tuple(RULES)) -> None:
        super().__init__((RULES[number] for number in only), schedule, resume)


__all__ = ["RULES", "Rule", "Rules", "Violation"]
