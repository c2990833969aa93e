"""An audit finds what was done to a ledger by hand, whatever it was."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from runtime_builders import schedule
from test_session import Run, signals

from paceline.runtime.audit import audit
from paceline.types.errors import RecordError

KINDS = (
    "Started", "InstanceUp", "Publish", "Published", "LoadWeights", "WeightsLive", "RequestPrompts", "PromptsArrived", "Admit",
    "TrajectoryFinished", "Materialize", "GroupMaterialized", "Dispatch", "DispatchConsumed", "UpdateFinished", "Terminal", "Retire",
    "Checkpoint", "CheckpointDone", "StopRequested", "Stop",
)  # fmt: skip
FIRST, LAST = (f"sequence = (SELECT {which}(sequence) FROM records WHERE kind = '{{kind}}')" for which in ("min", "max"))
SECOND = "(SELECT min(sequence) FROM records WHERE lineage = 2)"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a run that was interrupted and resumed."""
    root = tmp_path_factory.mktemp("recorded")
    for resume in (False, True):
        run = Run(root, schedule(total_updates=5), resume=resume, watch=(lambda progress: None) if resume else signals("update 2"))
        assert asyncio.run(run.go()).ok
    assert audit(root / "ledger.sqlite").violations == ()
    return root / "ledger.sqlite"


def edited(recorded: Path, tmp_path: Path, *statements: str) -> Path:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(recorded, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0, statement
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", [FIRST, LAST], ids=["first", "last"])
def test_a_deleted_row_is_found_whatever_its_kind(recorded: Path, tmp_path: Path, kind: str, which: str) -> None:
    path = edited(recorded, tmp_path, f"DELETE FROM records WHERE {which.format(kind=kind)}")
    assert any("missing" in violation for violation in audit(path).violations)


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_row_is_found_by_the_rules_or_the_replay_too_when_the_gap_is_closed_or_changes_nothing(
    recorded: Path, tmp_path: Path, kind: str
) -> None:
    (at,) = sqlite3.connect(recorded).execute("SELECT min(sequence) FROM records WHERE kind = ?", (kind,)).fetchone()
    closed = [
        "UPDATE records SET sequence = -sequence",
        "UPDATE records SET sequence = -sequence - (sequence < -{at})",
        "UPDATE sqlite_sequence SET seq = seq - 1",
    ]
    path = edited(recorded, tmp_path, f"DELETE FROM records WHERE sequence = {at}", *(step.format(at=at) for step in closed))
    # Only these say nothing that the others do not say as well.
    assert audit(path).violations or kind in ("DispatchConsumed", "StopRequested", "Stop")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE records SET json = replace(json, '\"version_max\":1', '\"version_max\":0') WHERE kind = 'TrajectoryFinished'", "rule 3"),
        ("UPDATE records SET now = now - 1000 WHERE sequence = 30", "its event at"),
        ("UPDATE records SET now = now - 1000 WHERE kind = 'UpdateFinished'", "time ran backwards"),
        (f"UPDATE records SET lineage = 1 WHERE sequence = {SECOND}", "lineage"),
        (f"UPDATE records SET lineage = 2 WHERE sequence = {SECOND} - 9", "follows rows of lineage 2"),
        ("DELETE FROM lineage WHERE id = 2", "lineage 2, which is not there"),
        ("DELETE FROM records WHERE lineage = 2", "are missing"),
        ("DELETE FROM records WHERE lineage = 1", "rows 1 to"),
        ("UPDATE lineage SET parent = NULL WHERE id = 2", "it has no parent"),
        ("INSERT INTO records SELECT NULL, lineage, now, direction, kind, json FROM records WHERE kind = 'LoadWeights' LIMIT 1", "lineage"),
    ],
)
def test_a_changed_row_is_found(recorded: Path, tmp_path: Path, statement: str, says: str) -> None:
    assert says in "\n".join(audit(edited(recorded, tmp_path, statement)).violations)


def test_two_rows_that_changed_places_are_found(recorded: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(recorded)) as database:
        kinds = database.execute("SELECT sequence, direction, kind, json FROM records ORDER BY sequence").fetchall()
    pairs = [(a[0], b[0]) for a, b in pairwise(kinds) if a[1:] != b[1:]]
    for a, b in pairs[:: len(pairs) // 10]:
        moves = ((a, -1), (b, a), (-1, b))
        path = edited(recorded, tmp_path, *(f"UPDATE records SET sequence = {new} WHERE sequence = {old}" for old, new in moves))
        assert audit(path).violations, kinds[a - 1 : b]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("json = 'xx'", "row 20: not a JSON record"),
        ("kind = 'Timer'", "row 20: it stands as .* Timer and holds"),
        ("direction = CASE direction WHEN 'event' THEN 'command' ELSE 'event' END", "row 20: it stands as"),
    ],
)
def test_a_row_that_does_not_hold_what_it_says_is_named(recorded: Path, tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        audit(edited(recorded, tmp_path, f"UPDATE records SET {change} WHERE sequence = 20"))
