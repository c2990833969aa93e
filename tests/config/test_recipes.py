"""The commands that the recipes name are valid, and give the schedules that they say."""

import shlex
from pathlib import Path

import pytest

from paceline.config.load import load
from paceline.config.plan import schedule

ROOT = Path(__file__).parents[2]
COMMAND = "#   paceline train "
COMMANDS = [
    line.removeprefix(COMMAND)
    for path in sorted((ROOT / "recipes").glob("*.toml"))
    for line in path.read_text().splitlines()
    if COMMAND in line
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_a_recipe_is_a_valid_configuration(command: str) -> None:
    path, *overrides = shlex.split(command)
    load(ROOT / path, overrides)


def test_the_quickstart_names_every_preset_and_each_in_a_directory_of_its_own() -> None:
    words = [shlex.split(command) for command in COMMANDS if "quickstart" in command]
    runs = [load(ROOT / path, overrides) for path, *overrides in words]
    assert [schedule(run).preset for run in runs] == ["serial", "pipelined", "streaming", "multiversion"]
    assert len({run.run.dir for run in runs}) == 4
    assert all(schedule(run).groups_per_round == 16 for run in runs), "an update is the same number of groups in all of them"
