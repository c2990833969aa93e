"""Where the time of a run goes: a pure fold over the events and commands of one lineage (docs/design/account.md).

`Account(schedule, resume).feed(record, now)` serves the run's metrics, `paceline timeline` and the benchmarks alike.
"""

from __future__ import annotations

from paceline.core.account.account import Account, Row, account
from paceline.core.account.tally import Tally, Window

__all__ = ["Account", "Row", "Tally", "Window", "account"]
