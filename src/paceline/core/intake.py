"""Which prompts are asked for, and when: by rounds, or as the bound and the cap allow."""

from __future__ import annotations

from collections import deque

from paceline.core.commands import RequestPrompts
from paceline.core.events import DataEnded, PromptsArrived
from paceline.core.records import Group
from paceline.core.schedule import Resume
from paceline.core.state import Machinery


class Intake:
    """Consumes arrivals of prompts; produces RequestPrompts (one open at a time) and new groups. Resumed prompts go first."""

    def __init__(self, shared: Machinery, resume: Resume) -> None:
        self._m = shared
        self._pending = deque(resume.pending)
        self._owed: deque[int] = deque()
        """Rounds: places to fill, each with the replacements it has used up (0 = first prompt)."""
        self._places: deque[int] = deque()
        """The same for the open request."""
        self._asked = 0
        self.next_index = resume.next_index
        self.ended = False
        """No new prompt will ever come."""
        self.rounds = 0
        """Rounds opened."""
        self.fruitless = 0
        """Groups that fell out since the last one that was trainable; one that was and got too old afterwards is none of them."""

    @property
    def outstanding(self) -> int:
        """Prompts that will come or may still be asked for in this round (rounds), or are asked for (elsewhere)."""
        return self._asked + len(self._owed)

    @property
    def exhausted(self) -> bool:
        """Nothing will come any more, and nothing is under way or waiting to train."""
        return self.ended and not self._pending and self.settled

    @property
    def settled(self) -> bool:
        """No group is asked for or unconsumed, and none waits in an unfinished update: in rounds, the round is over."""
        return not self.outstanding and not self._m.groups.unconsumed and not self._m.accumulated

    @property
    def last(self) -> bool:
        """No group can become trainable beyond those that are."""
        if self._m.groups.coming or self.outstanding:
            return False
        return self._m.traits.rounds or (self.ended and not self._pending)

    def unseen(self) -> tuple[int, ...]:
        """Resumed prompts that were not taken up yet."""
        return tuple(self._pending)

    def open_round(self) -> None:
        """A new round begins: its places are to be filled."""
        assert self.settled
        self.rounds += 1
        self._owed.extend([0] * min(self._m.schedule.groups_per_round, self._m.needed))

    def fell_out(self, group: Group, replace: bool) -> None:
        """A group is filtered or failed; with `replace` its place in the round gets another prompt, within the limit."""
        if replace and self._m.traits.rounds and group.refills < self._m.schedule.refill_limit and not (self.ended and not self._pending):
            self._owed.append(group.refills + 1)

    def request(self) -> None:
        """Take up resumed prompts, and ask for new ones if none are asked for."""
        if not self._m.traits.rounds:
            wanted = self.wanted()
            self._owed = deque([0] * wanted)
        self._fill_from_pending()
        if self._owed and not self._asked and not self.ended:
            self._places, self._owed = self._owed, deque()
            self._asked = len(self._places)
            self._m.out.ask(RequestPrompts(self._m.out.next_id(), self._asked))
        if self.ended or not self._m.traits.rounds:
            self._owed.clear()

    @property
    def open_ended(self) -> bool:
        """Whether prompts will be asked for beyond those that are, without a group falling out."""
        return not (self.ended and not self._pending) and self._m.needed > self._m.groups.unconsumed + self._asked

    def wanted(self) -> int:
        """Prompts to ask for now, as the bound, the cap and the remaining updates allow (schedules without rounds)."""
        m = self._m
        unconsumed = m.groups.unconsumed + self._asked
        room = m.traits.cap - unconsumed - m.given
        if m.traits.paced:
            room = min(room, m.pace.room(unconsumed, m.issued, m.given))
        return max(0, min(room, m.needed - unconsumed))

    def _fill_from_pending(self) -> None:
        while self._owed and self._pending:
            self._m.groups.add(self._pending.popleft(), self._owed.popleft())

    def arrived(self, event: PromptsArrived) -> None:
        """Prompts came; fewer than asked for means that the data has ended."""
        request = self._m.out.close(RequestPrompts, event.command)
        if request is None:
            return
        assert len(event.indices) <= request.count, f"{len(event.indices)} prompts answer a request for {request.count}"
        for index in event.indices:
            assert index >= self.next_index, f"prompt {index} came before prompt {self.next_index}"
            self.next_index = index + 1
            self._m.groups.add(index, self._places.popleft())
        self._asked = 0
        self._places.clear()
        if len(event.indices) < request.count:
            self._end()

    def data_ended(self, event: DataEnded) -> None:
        """The data source has nothing beyond what it sent."""
        self._m.out.close(RequestPrompts, event.command)
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._asked = 0
        self._places.clear()
        self._fill_from_pending()
        self._owed.clear()
