"""How a resume says what changed."""

import json
from pathlib import Path

from cli_rows import rows_of

from paceline.cli import identity
from paceline.runtime.rundir import RunDir


def test_a_dataset_that_changed_is_told_by_its_rows_and_by_its_fingerprint_where_those_were_not_kept(tmp_path: Path) -> None:
    run, now = RunDir(tmp_path), rows_of("4", "5", "6")
    assert identity.explained(run, now)["contents of task sums"]() == ""
    for kept in ("{", "[]", '{"other": {}}'):
        run.rows.write_text(kept)
        assert identity.explained(run, now)["contents of task sums"]() == ""
    run.rows.write_text(json.dumps({name: task.digests for name, task in rows_of("4", "7", "6", "8").items()}))
    assert identity.explained(run, now)["contents of task sums"]() == "row 1 changed; row 3 gone"


def test_evaluations_of_other_problems_than_before_are_told(tmp_path: Path) -> None:
    run, now = RunDir(tmp_path), rows_of("4", "5", "6")["sums"].digests
    assert identity._other_problems(run, now) == "", "nothing was kept"
    run.rows.write_text(json.dumps({identity.PROBLEMS: now}))
    assert identity._other_problems(run, now) == identity._other_problems(run, {}) == ""
    told = identity._other_problems(run, rows_of("4", "7", "6", "8")["sums"].digests)
    assert told == "evaluations from here on are of other problems than those before: row 1 changed; row 3 new"
