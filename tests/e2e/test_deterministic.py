"""Deterministic mode on real processes in bfloat16: schedules, resumes and repetitions give the same bits, other machines are refused."""

import json
import re
from pathlib import Path

import pytest
from tests.e2e.runs import train, trained

from paceline.models.tiny import write_tiny

pytestmark = pytest.mark.timeout(0)  # every process has its own limit: `runs.LIMIT_S`

CONFIG = """
[run]
deterministic = true
[model]
path = "{root}/model"
dtype = "bfloat16"
[task]
kind = "file"
path = "{root}/rows.jsonl"
gold_column = "answer"
[[reward]]
kind = "function"
function = "{root}/reward.py:length"
[rollout]
slots = 8
max_prompt_tokens = 100
max_tokens = 6
[schedule]
group_size = 4
groups_per_update = 2
[trainer]
learning_rate = 1e-3
warmup_updates = 0
[pool]
rollout_threads = 1
trainer_threads = 1
"""
REWARD = """
def length(completions, gold, **columns):
    return [float(len(text) % 3 == 0) for text in completions]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exact")
    write_tiny(root / "model", width=64)
    (root / "reward.py").write_text(REWARD)
    (root / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"say hello {i}", "answer": str(i)}) for i in range(8)))
    (root / "config.toml").write_text(CONFIG.format(root=root))
    return root


def bits(place: Path, name: str) -> dict[str, bytes]:
    """Master weights and moments after four updates."""
    checkpoint = place / name / "checkpoints" / "step-4"
    return {file: (checkpoint / file).read_bytes() for file in ("master.safetensors", "optimizer.safetensors")}


def test_a_pipelined_run_in_two_halves_has_the_bits_of_a_serial_one_and_resumes_on_the_same_terms_only(place: Path) -> None:
    config = place / "config.toml"
    trained(config, f"run.dir={place / 'serial'}", "run.updates=4")
    pipelined = ("schedule.preset=pipelined", "schedule.groups_per_dispatch=1", "rollout.slots=3", f"run.dir={place / 'pipelined'}")
    trained(config, "run.updates=2", *pipelined)
    words = ("pool.trainer_threads=2", "trainer.head_chunk=64")
    other = train(config, "run.updates=4", *pipelined, *words, resume=True, ATEN_CPU_CAPABILITY="avx2")
    assert other.returncode != 0
    for changed in ("pool.trainer_threads: 1 -> 2", "trainer.head_chunk: 1024 -> 64", "instruction set: .* -> AVX2"):
        assert re.search(changed, other.stderr), other.stderr
    other = train(config, "run.updates=4", *pipelined, "rollout.kernels=torch", resume=True)
    assert other.returncode != 0
    assert 'rollout.kernels: "auto" -> "torch"' in other.stderr, other.stderr
    trained(config, "run.updates=4", *pipelined, resume=True)
    assert bits(place, "pipelined") == bits(place, "serial")
