import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from paceline.config.load import load
from paceline.types.errors import ConfigError


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_importing_paceline_and_its_train_loads_no_torch() -> None:
    code = "import paceline, sys; paceline.train; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert run(code) == "False False"


def test_public_subpackages_are_reached_from_the_package_and_unknown_names_are_refused() -> None:
    assert run("import paceline; print(paceline.algo.__name__, paceline.tasks.__name__, paceline.rewards.__name__)") == (
        "paceline.algo paceline.tasks paceline.rewards"
    )
    assert run("import paceline; print(hasattr(paceline, 'nothing'))") == "False"


@pytest.mark.parametrize("preset", ["pipelined", "streaming", "multiversion"])
def test_presets_that_the_command_refuses_are_refused_here_too(tmp_path: Path, preset: str) -> None:
    config = load(None, ["task.name=chain_sum", f"schedule.preset={preset}", f"run.dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match="train performs the preset serial"):
        paceline.train(config)
    assert not (tmp_path / "run").exists()
