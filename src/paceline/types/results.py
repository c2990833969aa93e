"""What commands end with: a run's outcome, an evaluation, an audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    ok: bool
    """False: `reason` is an error."""
    reason: str
    """Why it ended, one line."""
    update: int
    """Updates done, those of earlier lineages included."""
    total: int
    interrupted: bool = False
    """Someone asked it to leave before the end."""
    model: str = ""
    """Directory with what the trainer wrote at the end: a Hugging Face model, unless it was emulated; empty if nothing was written."""
    emulated: bool = False
    """The trainer only took its time: `model` holds counters, no weights."""
    resumable: bool = False
    """Whether `--resume` can continue it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer judged. `parsed` None: the reward does not say whether an answer could be read."""

    correct: bool
    parsed: bool | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers to one problem."""

    greedy: Verdict | None = None
    samples: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """A measured share with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int
    """Answers it was taken over."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Scores of one set of weights on the held-out problems. None = not measured."""

    problems: int
    greedy: Share | None = None
    sampled: Share | None = None
    greedy_if_parsed: Share | None = None
    """Among greedy answers that could be read."""
    sampled_if_parsed: Share | None = None
    parsed: Share | None = None
    """Answers that could be read, greedy and sampled together."""
    pass_at: Mapping[int, float] = field(default_factory=dict)
    """k -> unbiased pass@k, averaged over the problems."""
    model: str = ""

    def metrics(self) -> dict[str, float]:
        """The values under their names in metrics: eval/greedy, eval/sampled, eval/pass@k, ..."""
        names = ("greedy", "sampled", "greedy_if_parsed", "sampled_if_parsed", "parsed")
        shares = {name: getattr(self, name) for name in names}
        row = {f"eval/{name}": share.value for name, share in shares.items() if share is not None}
        return {**row, **{f"eval/pass@{k}": value for k, value in self.pass_at.items()}}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Rules checked over a run's ledger."""

    events: int
    commands: int
    lineages: int
    violations: tuple[str, ...] = ()
    """Each names the rule, what broke it and where; empty = all rules hold."""
    notes: tuple[str, ...] = ()
    """What was not checked, and why; counts worth knowing."""
