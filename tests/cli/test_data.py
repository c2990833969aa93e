"""What the data worker refuses before anything is generated."""

import json
from pathlib import Path

import pytest

from paceline.cli.data import DataBody
from paceline.config.load import load
from paceline.config.schema import Config
from paceline.models.load import positions
from paceline.models.tiny import write_tiny
from paceline.ports.fakes.data import ByteTokenizer
from paceline.types.errors import ConfigError, DataError


def config(root: Path, *words: str) -> Config:
    """Prompts of 5, 8, 9 and 20 tokens, answers of at most 8."""
    rows = root / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"id": f"row-{n}", "prompt": "x" * n, "answer": "1"}) for n in (5, 8, 9, 20)))
    task = ("task.kind=file", f"task.path={rows}", "task.gold_column=answer", "task.template=plain", "task.shuffle=false")
    return load(None, [*task, "rollout.max_prompt_tokens=100", "rollout.max_tokens=8", *words])


def test_prompts_that_leave_no_room_for_the_answer_in_the_model_are_refused_together_with_id_length_and_limit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 of 4 prompts") as refused:
        DataBody(config(tmp_path), ByteTokenizer(), 16).call("load", True, False)
    said = str(refused.value)
    assert "'row-9'): 9 tokens, limit 8" in said
    assert "'row-20'): 20 tokens, limit 8" in said
    assert "the model's 16 positions less rollout.max_tokens = 8 leave 8 tokens for a prompt" in said


def test_they_are_left_out_and_counted_when_asked(tmp_path: Path) -> None:
    rows, _ = DataBody(config(tmp_path, "rollout.over_limit=filter"), ByteTokenizer(), 16).call("load", True, False)
    assert [len(prompt.ids) for prompt in rows["prompts"]] == [5, 8]
    assert rows["counts"]["over_limit"] == 2


def test_a_model_without_positions_for_a_prompt_is_refused_and_one_that_does_not_say_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_tokens = 8: the model has 8 positions, which leave none for a prompt"):
        DataBody(config(tmp_path), ByteTokenizer(), 8)
    rows, _ = DataBody(config(tmp_path), ByteTokenizer()).call("load", True, False)
    assert len(rows["prompts"]) == 4


def test_positions_are_those_of_the_models_own_config(tmp_path: Path) -> None:
    assert positions(write_tiny(tmp_path / "model")) == 512
