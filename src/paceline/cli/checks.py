"""What can be refused before anything heavy is loaded: files of rows and of reward functions that are not what a configuration says."""

from __future__ import annotations

from paceline.cli.data import placed
from paceline.config.inspect import task_sections
from paceline.config.schema import Config
from paceline.rewards.resolve import resolve
from paceline.tasks.files import check_columns
from paceline.types.errors import ConfigError, DataError


def check_data(config: Config) -> None:
    """Raise for every task's file that cannot be read or lacks a column, before anything heavy is loaded."""
    faults: list[ConfigError | DataError] = []
    for section, task in task_sections(config).items():
        try:
            with placed(section):
                if task.kind == "file":
                    check_columns(task)
        except (ConfigError, DataError) as fault:
            faults.append(fault)
    if faults:
        raise type(faults[0])("\n".join(map(str, faults))) from faults[0]


def check_rewards(config: Config) -> None:
    """Raise ConfigError for a reward function that is not where the configuration says; its file is run to find it."""
    for reward in config.reward:
        if reward.function is not None:
            resolve(reward.function)
