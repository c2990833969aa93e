"""How the rows of a task differ from those that a run was begun with."""

from paceline.tasks.changes import changed_rows

ROWS = {number: f"row {number}" for number in range(12)}


def test_rows_are_told_by_number_and_by_what_became_of_them() -> None:
    assert changed_rows(ROWS, dict(ROWS)) == "no row differs"
    assert changed_rows(ROWS, {**ROWS, 4: "other"}) == "row 4 changed"
    assert changed_rows(ROWS, {**ROWS, 12: "new", 3: "other", 5: "other"}) == "rows 3, 5 changed; row 12 new"
    assert changed_rows(ROWS, {0: "row 0"}) == "rows 1, 2, 3, 4, 5, 6, 7, 8 and 3 more gone"


def test_a_row_that_moved_is_not_taken_for_a_changed_one() -> None:
    before = {0: "a", 1: "b", 2: "c"}
    assert changed_rows(before, {0: "new", 1: "a", 2: "b", 3: "c"}) == "row 0 new; rows 1, 2 now elsewhere"
    assert changed_rows(before, {0: "c", 1: "b", 2: "a"}) == "rows 0, 2 now elsewhere"


def test_equal_rows_are_counted() -> None:
    assert changed_rows({0: "a", 1: "a", 2: "a"}, {0: "a", 1: "a"}) == "row 2 gone"
