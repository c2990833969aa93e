import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest
from runtime_builders import schedule

from paceline.core.commands import Publish, RequestPrompts, Stop
from paceline.core.events import Published, Started
from paceline.core.schedule import Resume
from paceline.runtime.ledger import Ledger, LedgerReader, last_checkpoint, unused
from paceline.types.errors import CheckpointError, LedgerError

SCHEDULE = schedule(deadlines=(("admit", 60.0),))


def test_rows_come_back_in_order_with_their_times_and_lineage(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    resume = Resume(update=2, version=1, pending=(3, 4), next_index=9)
    first = ledger.open_lineage(SCHEDULE, Resume(), None, "2026-01-01")
    ledger.append("event", 0.5, Started())
    ledger.append("command", 0.5, Publish(1, 0, 0))
    ledger.commit()
    second = ledger.open_lineage(SCHEDULE, resume, first, "2026-01-02")
    ledger.append("event", 0.25, Published(1, 0, "abc"))
    ledger.close()

    reader = LedgerReader(tmp_path / "ledger.sqlite")
    old, new = reader.lineages()
    assert (old.schedule, old.resume, old.parent) == (SCHEDULE, Resume(), None)
    assert (new.schedule, new.resume, new.parent, new.started) == (SCHEDULE, resume, first, "2026-01-02")
    assert [(r.now, r.direction, r.value) for r in reader.records(first)] == [(0.5, "event", Started()), (0.5, "command", Publish(1, 0, 0))]
    assert [r.value for r in reader.records(second)] == [Published(1, 0, "abc")]
    reader.close()


def test_rows_are_on_disk_after_commit_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    lineage = ledger.open_lineage(SCHEDULE, Resume(), None, "")
    ledger.append("command", 0.0, RequestPrompts(1, 4))
    other = sqlite3.connect(path)
    count = "SELECT count(*) FROM records"
    assert other.execute(count).fetchone() == (0,)
    ledger.commit()
    assert other.execute(count).fetchone() == (1,)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    ledger.append("command", 0.0, Stop(2, "done"))
    del ledger  # as a crash would: what was not committed is gone, what was is whole
    reader = LedgerReader(path)
    assert [r.value for r in reader.records(lineage)] == [RequestPrompts(1, 4)]


def test_a_full_disk_is_told_as_such_and_loses_no_row_once_there_is_space(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    lineage = ledger.open_lineage(SCHEDULE, Resume(), None, "")
    (pages,) = ledger._database.execute("PRAGMA page_count").fetchone()
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(1000):
        ledger.append("command", 0.0, Stop(number, "full"))
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"ledger\.sqlite: database or disk is full"):
            ledger.commit()
    ledger._database.execute(f"PRAGMA max_page_count = {pages + 1000}")
    ledger.close()
    reader = LedgerReader(path)
    assert [r.value for r in reader.records(lineage)] == [Stop(number, "full") for number in range(1000)]
    assert list(reader.tears()) == []


def test_a_checkpoint_of_a_lineage_that_is_not_in_the_ledger_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with pytest.raises(CheckpointError, match="lineage 1, which wrote the checkpoint, is not in it"):
        ledger.open_lineage(SCHEDULE, Resume(), 1, "")
    ledger.close()


def test_a_damaged_ledger_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database, and longer than the hundred bytes of the header that one would begin with" * 4)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: file is not a database"):
        Ledger(path)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: file is not a database"):
        LedgerReader(path).lineages()


@pytest.mark.parametrize("how", ["deleted", "exchanged"])
def test_a_ledger_that_was_taken_away_under_its_run_takes_no_more_rows(tmp_path: Path, how: str) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.open_lineage(SCHEDULE, Resume(), None, "")
    ledger.append("event", 0.0, Started())
    ledger.commit()
    for file in tmp_path.iterdir():
        file.unlink()
    if how == "exchanged":
        Ledger(path).close()
    ledger.append("event", 1.0, Started())
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"ledger\.sqlite: was deleted or exchanged while the run went on"):
            ledger.commit()


def test_a_ledger_whose_schema_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    content = bytearray(path.read_bytes())
    content[content.index(b"NOT NULL") + 4] = 0xD1
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: 'utf-8' codec can't decode"):
        LedgerReader(path).lineages()
    assert not unused(path)


def test_a_ledger_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.mkdir()
    for opens in (last_checkpoint, Ledger, LedgerReader):
        with pytest.raises(LedgerError, match=r"ledger\.sqlite: "):
            opens(path)


def test_reading_where_no_ledger_lies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no ledger"):
        LedgerReader(tmp_path / "ledger.sqlite")


def test_a_commit_ends_soon_and_in_order_however_busy_the_event_loop_is(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    lineage = ledger.open_lineage(SCHEDULE, Resume(), None, "")
    for number in range(3000):
        ledger.append("command", number / 7, Stop(number, "busy"))
    writing = threading.Thread(target=ledger.commit)
    began = time.monotonic()
    writing.start()
    while writing.is_alive():  # without a pause, as a loop that always has work
        pass
    assert time.monotonic() - began < 5
    ledger.close()
    reader = LedgerReader(tmp_path / "ledger.sqlite")
    assert [(r.now, r.value) for r in reader.records(lineage)] == [(number / 7, Stop(number, "busy")) for number in range(3000)]
    reader.close()


@pytest.mark.parametrize("name", ["50%41", "what?#", "caf\udce9"])
def test_a_ledger_is_read_in_a_directory_of_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    path = tmp_path / name / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.open_lineage(SCHEDULE, Resume(), None, "now")
        assert unused(path)
        ledger.append("event", 0.0, Started())
    assert not unused(path)
    reader = LedgerReader(path)
    assert [record.value for record in reader.records(1)] == [Started()]
    reader.close()


@pytest.fixture
def foreign() -> Iterator[Path]:
    """A directory that everybody may look into."""
    with tempfile.TemporaryDirectory() as home:
        yield Path(home)
        os.chmod(home, 0o700)


def nobody() -> None:
    if os.geteuid() == 0:  # who may write everywhere
        os.setuid(65534)


def read_by(path: Path) -> list[str]:
    with closing(LedgerReader(path)) as reader:
        return [f"{record.value}" for record in reader.records(1)]


def test_a_ledger_is_read_where_nothing_may_be_written_unless_a_writer_left_records_beside_it(tmp_path: Path, foreign: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.open_lineage(SCHEDULE, Resume(), None, "now")
        ledger.append("event", 0.0, Started())
        ledger.commit()
        shutil.copy(tmp_path / "ledger.sqlite", foreign / "left")
        shutil.copy(tmp_path / "ledger.sqlite-wal", foreign / "left-wal")
    shutil.copy(tmp_path / "ledger.sqlite", foreign / "whole")
    foreign.chmod(0o555)
    with ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=nobody) as stranger:
        assert stranger.submit(read_by, foreign / "whole").result() == [str(Started())]
        assert not stranger.submit(unused, foreign / "whole").result()
        with pytest.raises(LedgerError, match=r"left: (unable to open database file|attempt to write a readonly database)"):
            stranger.submit(read_by, foreign / "left").result()
