"""The choice of samples: bounded, the same every time, every stretch and every kind of answer seen, only what holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from paceline.core.commands import Dispatch
from paceline.core.schedule import Resume, Schedule
from paceline.report.lives import Life, surviving
from paceline.report.samples import select, shorten
from paceline.runtime.ledger import Lineage
from paceline.runtime.segments import Segments
from paceline.types.records import FinishReason, Prompt, Score, ScoredGroup, Trajectory

SCHEDULE = Schedule("serial", 4, 1, 1, 1, 1, "all", total_updates=50)


def lineage(number: int, parent: int | None = None, update: int = 0) -> Lineage:
    return Lineage(number, parent, SCHEDULE, Resume(update=update), "2026-01-01T00:00:00+00:00")


def group(index: int, rewards: tuple[float, ...], reasons: tuple[str, ...], finish: FinishReason = "eos", text: str = "4") -> ScoredGroup:
    columns = {"logprob": np.zeros(3, dtype=np.float32), "version": np.array([1, 1, 2], dtype=np.int32)}
    ids = np.arange(3, dtype=np.int32)
    answers = tuple(Trajectory(index, i, 0, ids, ids, columns, finish, text) for i in range(len(rewards)))
    scores = tuple(Score(reward, reason, True, "4") for reward, reason in zip(rewards, reasons, strict=True))
    return ScoredGroup(
        index, Prompt(index, index, ids, "2 + 2?", "4", task="sums"), answers, rewards, rewards, {"right": rewards}, {"right": scores}
    )


def write(root: Path, number: int, update: int, scored: ScoredGroup) -> None:
    Segments(root, number).write(Dispatch(update, (scored.group,), True, update, (scored.group,), (0,)), [scored])


def test_a_rare_kind_is_chosen_before_a_second_one_of_a_common_kind(tmp_path: Path) -> None:
    for update in range(1, 25):
        write(tmp_path, 1, update, group(update, (1.0, 0.0, 0.0, 0.0), ("", "wrong", "wrong", "no_answer" if update == 7 else "wrong")))
    chosen = select(tmp_path, [Life(lineage(1), 99)], 49)
    assert (chosen.count, len(chosen.samples), chosen.kinds, chosen.stretches) == (96, 49, 3, 24)
    assert [s["update"] for s in chosen.samples if s["reasons"] == {"right": "no_answer"}] == [7]
    assert {s["update"] for s in chosen.samples} == set(range(1, 25))
    assert select(tmp_path, [Life(lineage(1), 99)], 49) == chosen


def test_a_sample_says_what_was_asked_answered_read_and_judged(tmp_path: Path) -> None:
    write(tmp_path, 1, 3, group(5, (0.0,), ("wrong",), finish="length"))
    (sample,) = select(tmp_path, [Life(lineage(1), 99)], 10).samples
    wanted = {
        "prompt": "2 + 2?", "text": "4", "gold": "4", "reward": 0.0, "reasons": {"right": "wrong"}, "extracted": {"right": "4"},
        "parts": {"right": 0.0}, "versions": [1, 2], "tokens": 3, "finish": "length", "update": 3, "group": 5, "row": 5, "task": "sums",
    }  # fmt: skip
    assert {name: sample[name] for name in wanted} == wanted


def test_what_a_resume_voided_is_not_shown(tmp_path: Path) -> None:
    lives = surviving([lineage(1), lineage(2, 1, update=2), lineage(3, 2, update=3), lineage(4, 2, update=3)], {1, 2, 4})
    assert [(life.lineage.id, life.last) for life in lives] == [(1, 2), (2, 3), (4, float("inf"))], "lineage 3 decided nothing"
    for number, update in ((1, 1), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4), (4, 4)):
        write(tmp_path, number, update, group(10 * number + update, (1.0,), ("",)))
    assert [s["group"] for s in select(tmp_path, lives, 99).samples] == [11, 12, 23, 44]


def test_of_a_life_that_was_killed_before_its_first_checkpoint_nothing_holds_and_its_time_was_spent(tmp_path: Path) -> None:
    lives = surviving([lineage(1), lineage(2), lineage(3, 2, update=2), lineage(4, 2, update=2)], {1, 2, 3, 4})
    assert [(life.lineage.id, life.last) for life in lives] == [(1, 0), (2, 2), (3, 2), (4, float("inf"))]
    for number, update in ((1, 1), (2, 1), (2, 2), (3, 3), (4, 3)):
        write(tmp_path, number, update, group(10 * number + update, (1.0,), ("",)))
    assert [s["group"] for s in select(tmp_path, lives, 99).samples] == [21, 22, 43]


def test_rewards_of_many_values_leave_no_stretch_of_the_run_out(tmp_path: Path) -> None:
    """Each value is a kind of its own, so there are more kinds than samples that are shown."""
    for update in range(1, 25):
        rewards = tuple((10 * update + i) / 500 for i in range(8))
        write(tmp_path, 1, update, group(update, rewards, ("",) * 8))
    chosen = select(tmp_path, [Life(lineage(1), 99)], 48)
    assert chosen.kinds > 48
    assert Counter(s["update"] for s in chosen.samples) == dict.fromkeys(range(1, 25), 2)


def test_a_damaged_segment_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, group(1, (1.0,), ("",)))
    (tmp_path / "001-update-000002-9.parquet").write_bytes(b"PAR1 cut")
    chosen = select(tmp_path, [Life(lineage(1), 99)], 9)
    assert (chosen.count, len(chosen.samples)) == (1, 1)
    assert [line.split(":")[0] for line in chosen.unreadable] == ["001-update-000002-9.parquet"]


def test_a_segment_whose_texts_alone_are_damaged_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    for update in (1, 2):
        write(tmp_path, 1, update, group(update, (1.0,), ("",), text="4" * 100))
    damaged = tmp_path / "001-update-000002-2.parquet"
    columns = pq.read_metadata(damaged).row_group(0)
    (text,) = [columns.column(i) for i in range(columns.num_columns) if columns.column(i).path_in_schema == "text"]
    content = bytearray(damaged.read_bytes())
    start = text.dictionary_page_offset or text.data_page_offset
    content[start : start + text.total_compressed_size] = bytes(text.total_compressed_size)
    damaged.write_bytes(content)
    chosen = select(tmp_path, [Life(lineage(1), 99)], 9)
    assert [sample["update"] for sample in chosen.samples] == [1]
    assert [line.split(":")[0] for line in chosen.unreadable] == [damaged.name]


def test_no_directory_and_no_samples_asked_for_give_none(tmp_path: Path) -> None:
    assert select(tmp_path / "none", [Life(lineage(1), 99)], 9).samples == []
    write(tmp_path, 1, 1, group(1, (1.0, 0.0), ("", "")))
    assert select(tmp_path, [Life(lineage(1), 99)], 0) == replace(select(tmp_path, [Life(lineage(1), 99)], 9), samples=[])


def test_long_texts_keep_their_beginning_and_their_end() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("a" * 10 + "b" * 10, 8) == "aaaa\n[... 12 characters left out ...]\nbbbb"
