import ctypes
from pathlib import Path
from typing import ClassVar

import pytest
from runtime_builders import schedule

from paceline.core.events import Published
from paceline.core.schedule import Resume
from paceline.runtime.ledger import Ledger


class _Given(ctypes.Structure):
    """The start of glibc's `struct mallinfo2`, and room for the rest."""

    _fields_: ClassVar = [("before", ctypes.c_size_t * 7), ("given_out", ctypes.c_size_t), ("behind", ctypes.c_size_t * 2)]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc tells how much memory it has given out")
def test_a_ledger_that_grows_by_megabytes_takes_no_more_memory(tmp_path: Path) -> None:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Given
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.open_lineage(schedule(), Resume(), None, "")

        def write(megabytes: float) -> int:
            for number in range(round(25 * megabytes)):
                for _ in range(20):
                    ledger.append("event", 0.0, Published(number, number, "f" * 2000))
                ledger.commit()
            return int(mallinfo2().given_out)

        early = write(0.4)
        assert write(2) - early < 500_000
