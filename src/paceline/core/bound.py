"""The one rule that bounds staleness and cannot stall (docs/design/bound.md has the argument in full).

Think of the trainer as a row of seats: each update has U of them, each publish period U x upp. A group whose oldest token
has version x must sit down while the newest published version is at most x + b. With v the newest version, s the updates issued since
its publish and a the groups already given to the current update, the seats left for groups of version <= x are

    seats(x) = (x + b - v) x U x upp + (upp - s) x U - a

**Invariant**: for every live version x, the unconsumed groups of version <= x number at most seats(x). Groups that have not
started count as version v. The invariant holds at the start (no groups) and is kept by

- *admission*: a group is asked for only while all unconsumed groups number less than seats(v); one that starts under an older
  version y < v (its weights are still being served) must fit for every x from y on;
- *training*: k groups take k seats from every x at once, so the batch must leave at most seats(x) - k groups of version <= x;
- *publish*: v grows by one when s falls from upp to 0, and seats(x) stays the same.

Where groups may get over-stale and are then generated anew (`overstale = retry`), the rule holds for those that were, and only for
those: `counts` are theirs, they are admitted where they fit, and train before others. So a group is generated at most twice.

**Bounded**: at a publish seats(v - b) = 0, so no unconsumed group of version <= v - b is left, and none is ever consumed later.
**Live**: if a batch is refused for x, groups of version <= x exist that are not trainable yet; they have started, so they finish
without the trainer. If too few groups are trainable and none is on its way, the unconsumed groups number less than U - a <= seats(v), so
admission is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """The rule for one schedule. All arguments are counts of groups or updates; versions are integers."""

    bound: int
    """b: largest staleness, in versions."""
    groups_per_update: int
    """U."""
    updates_per_publish: int
    """upp."""

    def seats(self, version: int, newest: int, issued: int, accumulated: int) -> int:
        """Groups that can still be consumed before `version` gets over-stale; `issued` = s, `accumulated` = a."""
        updates = (version + self.bound - newest) * self.updates_per_publish + self.updates_per_publish - issued
        return updates * self.groups_per_update - accumulated

    def room(self, unconsumed: int, issued: int, accumulated: int) -> int:
        """How many more groups may be asked for; `unconsumed` counts all that are requested and not consumed."""
        return max(0, self.seats(0, 0, issued, accumulated) - unconsumed)

    def fits(self, counts: Mapping[int, int], versions: range, newest: int, issued: int, accumulated: int) -> bool:
        """Whether one more group of version `versions[0]` leaves the invariant intact for every x of `versions`.

        `counts` are the unconsumed started groups that the rule holds for, by version.
        """
        if not versions:
            return True
        total = 1 + sum(n for version, n in counts.items() if version < versions.start)
        for x in versions:
            total += counts.get(x, 0)
            if total > self.seats(x, newest, issued, accumulated):
                return False
        return True

    def blocked(self, counts: Mapping[int, int], batch: Iterable[int], size: int, newest: int, issued: int, accumulated: int) -> int | None:
        """The oldest version x whose groups must be waited for before a batch of `size` groups may train; None = train.

        `batch` are the versions of those groups of it that `counts` holds.
        """
        taken = sorted(batch)
        remain = 0
        removed = 0
        for x in sorted(counts):
            remain += counts[x]
            while removed < len(taken) and taken[removed] <= x:
                removed += 1
            if remain - removed > self.seats(x, newest, issued, accumulated) - size:
                return x
        return None
