"""Data order, rendering, the prompt limit, fingerprints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.config.schema import TaskConfig
from paceline.ports.fakes.data import ByteTokenizer
from paceline.tasks import RowTask, load
from paceline.types.errors import DataError


def write(tmp_path: Path, rows: list[dict[str, Any]], name: str = "data.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def read(path: Path, *, seed: int = 0, limit: int = 1000, over_limit: Any = "refuse", tokenizer: Any = None, **settings: Any) -> RowTask:
    config = TaskConfig(**{"kind": "file", "path": str(path), "template": "plain", **settings})
    return load(config, tokenizer or ByteTokenizer(), seed=seed, max_prompt_tokens=limit, over_limit=over_limit)


def letters(tmp_path: Path, count: int = 20, **settings: Any) -> RowTask:
    return read(write(tmp_path, [{"prompt": f"question {i}"} for i in range(count)]), **settings)


def epoch(task: RowTask, number: int) -> list[int]:
    return [task.prompt(number * len(task) + i).row for i in range(len(task))]


def test_every_epoch_has_every_row_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    task = letters(tmp_path)
    assert sorted(epoch(task, 0)) == sorted(epoch(task, 1)) == list(range(20))
    assert len({tuple(epoch(task, e)) for e in range(6)}) == 6
    assert epoch(task, 3) == epoch(letters(tmp_path), 3)
    assert epoch(task, 0) != epoch(letters(tmp_path, seed=1), 0)
    assert [task.prompt(i).index for i in (0, 19, 20, 1000)] == [0, 19, 20, 1000]


def test_the_data_order_never_changes_between_releases(tmp_path: Path) -> None:
    assert epoch(letters(tmp_path, 8, seed=7), 0) == [4, 1, 6, 3, 0, 2, 5, 7]


def test_without_shuffle_an_epoch_is_the_file(tmp_path: Path) -> None:
    task = letters(tmp_path, shuffle=False)
    assert epoch(task, 0) == epoch(task, 1) == list(range(20))


def test_rows_that_are_left_out_do_not_move_the_others(tmp_path: Path) -> None:
    task = letters(tmp_path)
    assert epoch(task.excluding({"question 3", "question 11"}), 2) == [row for row in epoch(task, 2) if row not in (3, 11)]


def test_positions_before_the_start_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="start at 0"):
        letters(tmp_path).prompt(-1)


def test_ids_come_from_the_template_and_never_from_rendered_text(tmp_path: Path) -> None:
    task = read(write(tmp_path, [{"prompt": "<user> hi"}]), template="chat", system="be brief", suffix="!")
    assert task.prompt(0).ids.tolist() == [256, *b"be brief", 260, 257, *b"<user> hi!", 260, 258]
    assert task.prompt(0).text == "<user> hi"
    assert task.prompt(0).messages is None


def test_a_plain_template_is_the_text_itself(tmp_path: Path) -> None:
    task = read(write(tmp_path, [{"prompt": "Q: hi"}]), suffix="\nA:", system="S\n")
    assert task.prompt(0).ids.tolist() == list(b"S\nQ: hi\nA:")


def test_system_and_suffix_reach_conversational_rows(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}]
    task = read(write(tmp_path, rows), template="chat", system="s", suffix="!")
    assert task.prompt(0).ids.tolist() == [256, *b"s", 260, 257, *b"a", 260, 258, *b"b", 260, 257, *b"c!", 260, 258]
    assert task.prompt(0).text == "a\n\nb\n\nc"
    assert task.prompt(0).messages == tuple(rows[0]["prompt"])


@pytest.mark.parametrize(
    ("messages", "settings", "reason"),
    [
        ([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], {"system": "s"}, "has a system message of its own"),
        (
            [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}],
            {},
            "the chat template raised ValueError: roles must alternate",
        ),
    ],
)
def test_a_conversation_that_cannot_be_rendered_is_a_bad_row(tmp_path: Path, messages: Any, settings: Any, reason: str) -> None:
    path = write(tmp_path, [{"prompt": messages}, {"prompt": "fine"}])
    with pytest.raises(DataError, match=f"data.jsonl line 1: {reason}"):
        read(path, template="chat", **settings)
    task = read(path, template="chat", bad_rows="skip", **settings)
    assert (len(task), task.counts["bad"]) == (1, 1)


class Recording(ByteTokenizer):
    seen: dict[str, Any]

    def apply_chat_template(self, conversation: Any, **arguments: Any) -> Any:
        self.seen = {key: value for key, value in arguments.items() if key not in ("add_generation_prompt", "tokenize", "return_dict")}
        return super().apply_chat_template(conversation, **arguments)


def test_template_arguments_reach_the_template(tmp_path: Path) -> None:
    tokenizer = Recording()
    read(write(tmp_path, [{"prompt": "a"}]), tokenizer=tokenizer, template="chat", template_arguments={"enable_thinking": False})
    assert tokenizer.seen == {"enable_thinking": False}


def lengths(tmp_path: Path) -> Path:
    return write(tmp_path, [{"id": f"r{n}", "prompt": "x" * n} for n in (5, 8, 9, 20)])


def test_prompts_over_the_limit_are_refused_together_with_id_length_and_limit(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(lengths(tmp_path), limit=8)
    message = str(caught.value)
    assert "2 of 4 prompts are longer than max_prompt_tokens = 8" in message
    assert "line 3 (id 'r9'): 9 tokens, limit 8" in message
    assert "line 4 (id 'r20'): 20 tokens, limit 8" in message


def test_prompts_over_the_limit_are_filtered_and_counted_when_asked(tmp_path: Path) -> None:
    task = read(lengths(tmp_path), limit=8, over_limit="filter", shuffle=False)
    assert [len(task.prompt(i).ids) for i in range(len(task))] == [5, 8]
    assert (task.counts["over_limit"], task.counts["kept"], len(task.skipped)) == (2, 2, 2)


def test_a_limit_that_leaves_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows left: read 4, bad 0, duplicate 0, over_limit 4"):
        read(lengths(tmp_path), limit=1, over_limit="filter")


@given(st.text(min_size=1).filter(lambda text: text.strip()))
def test_a_limit_never_changes_the_ids_of_a_prompt(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = write(tmp_path_factory.mktemp("t"), [{"prompt": text.encode("utf-8", "replace").decode()}])
    free, limited = (read(path, limit=limit, template="chat").prompt(0).ids.tolist() for limit in (10**6, 4096))
    assert free == limited
    assert (free[0], free[-1]) == (257, 258)


def test_the_fingerprint_follows_content_order_mapping_and_template_but_not_the_name(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "1", "tags": {"x": 1, "y": [2.5, None]}}, {"prompt": "b", "answer": "2", "tags": {}}]
    base = read(write(tmp_path, rows)).fingerprint()
    assert read(write(tmp_path, rows, "copy.jsonl")).fingerprint() == base
    changed = [
        read(write(tmp_path, rows[::-1], "c1.jsonl")),
        read(write(tmp_path, [{**rows[0], "answer": "3"}, rows[1]], "c2.jsonl")),
        read(write(tmp_path, rows, "c3.jsonl"), gold_column="answer"),
        read(write(tmp_path, rows, "c4.jsonl"), template="chat"),
        read(write(tmp_path, rows, "c5.jsonl"), suffix="?"),
        read(write(tmp_path, rows, "c6.jsonl"), seed=1),
        read(write(tmp_path, rows, "c7.jsonl"), shuffle=False),
        read(write(tmp_path, rows[:1], "c8.jsonl")),
    ]
    assert len({base, *(task.fingerprint() for task in changed)}) == 1 + len(changed)
