"""Workers that are bound to what the run is made of."""

from pathlib import Path

import pytest

from paceline.cli import wire
from paceline.cli.contents import contents
from paceline.config.load import load
from paceline.ports.pool import make_body
from paceline.rewards.worker import JudgeBody
from paceline.types.errors import ConfigError


def test_a_reward_worker_that_is_started_again_refuses_a_function_whose_file_was_changed_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def reward(completions): return [1.0 for _ in completions]\n")
    words = ["reward.0.kind=function", f"reward.0.function={file}:reward", "pool.verifiers=1"]
    config = load(Path(__file__).parents[2] / "recipes" / "emulated.toml", words)
    workers = wire.bound(wire.workers_of(config), contents(config, None))
    assert isinstance(make_body(workers.reward[0]), JudgeBody)
    file.write_text("def reward(completions): return [0.0 for _ in completions]\n")
    with pytest.raises(ConfigError, match=r"reward\.0\.function, reward\.py: changed while the run went on"):
        make_body(workers.reward[0])
