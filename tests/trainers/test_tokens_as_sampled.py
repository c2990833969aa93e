"""From the row to the trained ids: one sequence per trajectory, its context and its tokens exactly as the engine had them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.schema import AlgorithmConfig, RewardConfig, TaskConfig
from paceline.models.tiny import tiny_tokenizer
from paceline.rewards import load_judge
from paceline.tasks import load
from paceline.trainers.packing import pack
from paceline.trainers.sequences import training_sequences
from paceline.types.records import LOGPROB, VERSION, Prompt, ScoredGroup, Trajectory

torch.set_num_threads(1)
TOKENIZER = tiny_tokenizer()
OPENED = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|><think>"
STRIPPING = "{% for m in messages %}<|im_start|>{{ m['content'].split('</think>')[-1] }}<|im_end|>{% endfor %}<|im_start|>"
REASONING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}{% if m.reasoning_content %}<think>{{ m['reasoning_content'] }}</think>{% endif %}"
    "{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>"
)
TURNS = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "<think>a</think>x", "reasoning_content": "b"},
    {"role": "tool", "content": "4"},
    {"role": "user", "content": "and?"},
]


def prompt_of(directory: Path, question: Any, template: str | None = None) -> tuple[Prompt, Any]:
    """The row's rendered prompt, and the tokenizer with its template."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    path = directory / "rows.jsonl"
    path.write_text(json.dumps({"prompt": question, "answer": "hello"}))
    return load(TaskConfig(kind="file", path=str(path), gold_column="answer"), tokenizer, seed=0, max_prompt_tokens=500).prompt(
        0
    ), tokenizer


def scored(prompt: Prompt, *completions: list[int]) -> ScoredGroup:
    """What a scripted engine sampled for the prompt, through the real judge."""
    trajectories = [
        Trajectory(
            0, sample, 1, prompt.ids, np.asarray(ids, dtype=np.int32),
            {LOGPROB: -np.arange(1, len(ids) + 1, dtype=np.float32), VERSION: np.zeros(len(ids), dtype=np.int32)},
            "eos", TOKENIZER.decode(ids, skip_special_tokens=True),
        )
        for sample, ids in enumerate(completions)
    ]  # fmt: skip
    return load_judge([RewardConfig(kind="exact")]).score_group(prompt, trajectories)


def pieces(*texts: str) -> list[int]:
    return TOKENIZER.convert_tokens_to_ids(list(texts))


def test_ids_are_trained_as_sampled_though_their_text_would_be_encoded_otherwise(tmp_path: Path) -> None:
    prompt, _ = prompt_of(tmp_path, "say hello")
    split, end = pieces("he", "ll", "o"), TOKENIZER.eos_token_id
    assert len(TOKENIZER.encode("hello")) == 1
    long = [*split, *pieces("<|im_end|>")] * 128  # 512 tokens, of whose text the special ones are no part
    group = scored(prompt, [*split, end], long)
    assert group.rewards == (1.0, 0.0)
    assert group.trajectories[0].text == "hello"
    sequences = training_sequences([group], AlgorithmConfig(), filtered=False, max_tokens=512)
    for sequence, ids in zip(sequences, ([*split, end], long), strict=True):
        assert sequence.ids.tolist() == ids
        assert len(sequence.behaviour) == len(sequence.full) == len(sequence.versions) == len(ids)
    assert pack(sequences).targets.tolist() == [*split, end, *long]


def test_a_thought_that_the_prompt_opened_is_trained_without_a_second_opening(tmp_path: Path) -> None:
    prompt, tokenizer = prompt_of(tmp_path, "2+2", OPENED)
    text = "2+2 equals 4.</think>The answer is 4."
    ids = tokenizer.encode(text)
    (sequence,) = training_sequences([scored(prompt, ids)], AlgorithmConfig(), filtered=False, max_tokens=64)
    assert sequence.ids.tolist() == ids
    assert tokenizer.decode([*sequence.prompt, *sequence.ids]) == "<|im_start|>2+2<|im_end|><|im_start|><think>" + text


@pytest.mark.parametrize("template", [None, STRIPPING, REASONING], ids=["keeps all", "strips thoughts", "reasoning field"])
def test_only_sampled_tokens_are_trained_each_after_the_context_that_the_engine_read(tmp_path: Path, template: str | None) -> None:
    """Earlier turns, whatever the template makes of them, are context: rendered once, as a whole, and never a target."""
    prompt, tokenizer = prompt_of(tmp_path, TURNS, template)
    whole = tokenizer.apply_chat_template(TURNS, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(prompt.ids) == whole
    assert ("<think>" in whole) == (template != STRIPPING)
    completions = [pieces("he", "ll", "o"), pieces("o", "<|im_end|>")]
    sequences = training_sequences([scored(prompt, *completions)], AlgorithmConfig(), filtered=False, max_tokens=8)
    batch = pack(sequences, shared=False)
    assert batch.targets.tolist() == [*completions[0], *completions[1]]
    starts = [0, len(prompt.ids) + len(completions[0]) - 1]  # the last token of a completion predicts nothing and is not read
    read = batch.ids.tolist()
    for start, ids, rows in zip(starts, completions, (batch.rows[:3], batch.rows[3:]), strict=True):
        for place, row in enumerate(rows.tolist()):
            assert read[start : row + 1] == [*prompt.ids.tolist(), *ids[:place]]
