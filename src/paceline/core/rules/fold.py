"""Rules as folds: one record in, at most one violation out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.core.commands import Command
from paceline.core.events import Event
from paceline.core.rules.book import Book
from paceline.core.schedule import Resume, Schedule

Check = Callable[[Any, float], str | None]
"""Judges one record, before the book takes it: a message, or None."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never happen did. `position` is the record's place in the lineage, 0-based; `close` gives its length."""

    rule: int
    message: str
    position: int

    def __str__(self) -> str:
        return f"rule {self.rule} at record {self.position}: {self.message}"


class Rule(ABC):
    """Base of the eight rules: what `checks` maps from a record's type judges each such record, `close` the whole."""

    number: ClassVar[int]

    def __init__(self, schedule: Schedule, book: Book) -> None:
        self.schedule = schedule
        self.book = book

    @abstractmethod
    def checks(self) -> dict[type, Check]:
        """The record types that concern this rule, each with its check."""

    def close(self) -> Iterator[str]:
        """What is still wrong when nothing follows; most rules have nothing to add."""
        return iter(())


class Fold:
    """Several rules over one book. Costs one lookup and one update of the book per record, plus the checks that concern it."""

    def __init__(self, rules: Iterable[type[Rule]], schedule: Schedule, resume: Resume | None = None) -> None:
        self.book = Book(schedule, resume or Resume())
        self.rules = [rule(schedule, self.book) for rule in rules]
        self.position = 0
        self.found: list[Violation] = []
        """All violations so far."""
        self._checks: dict[type, list[tuple[int, Check]]] = {}
        for rule in self.rules:
            for kind, check in rule.checks().items():
                self._checks.setdefault(kind, []).append((rule.number, check))

    def feed(self, record: Event | Command, now: float) -> Violation | None:
        """Judge one record (an event, then the commands that answered it, in order) and return its first violation.

        `now` is the time at which the record was made, in seconds; it never falls.
        """
        first = None
        for number, check in self._checks.get(type(record), ()):
            if (message := check(record, now)) is not None:
                violation = Violation(number, message, self.position)
                self.found.append(violation)
                first = first or violation
        self.book.take(record, now)
        self.position += 1
        return first

    def close(self) -> list[Violation]:
        """Violations that show only now that nothing follows. Call once."""
        late = [Violation(rule.number, message, self.position) for rule in self.rules for message in rule.close()]
        self.found.extend(late)
        return late
