"""The emulated half of the composition root: an engine and a trainer that pretend. Its workers load neither torch nor the configuration.

Times are scaled here, once: costs become real seconds, so that engine and trainer know of no other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.costs import DecodeCost, LinearCost
from paceline.engines.emulated import EmulatedEngine, EngineCosts, Lengths
from paceline.runtime.bodies import PausingBody, TrainerBody
from paceline.trainers.emulated import EmulatedTrainer, TrainerCosts
from paceline.types.errors import DataError

if TYPE_CHECKING:
    from paceline.config.emulated import EmulatedConfig
    from paceline.config.schema import Config
    from paceline.ports.pool import WorkerBody


def engine_arguments(config: Config) -> Mapping[str, Any]:
    """What `rollout_body` takes, but for the instance's name. Raises DataError for a trace that cannot be used."""
    rollout, emulated = config.rollout, config.emulated
    return {
        "slots": rollout.slots,
        "kv_tokens": rollout.kv_tokens or rollout.slots * (rollout.max_prompt_tokens + rollout.max_tokens),
        "costs": engine_costs(emulated),
        "lengths": Lengths(emulated.mean_tokens, emulated.sigma, read_trace(Path(emulated.lengths)) if emulated.lengths else ()),
        "solved": emulated.solved,
        "versions_held": rollout.versions_held,
        "seed": config.run.seed,
    }


def engine_costs(emulated: EmulatedConfig) -> EngineCosts:
    """The section's costs in real seconds."""
    real = 1 / emulated.time_scale
    return EngineCosts(
        DecodeCost(emulated.step_seconds * real, emulated.sequence_seconds * real, emulated.context_seconds * real),
        LinearCost(0.0, emulated.prefill_seconds * real),
        emulated.load_seconds * real,
        LinearCost(0.0, emulated.move_seconds * real),
        emulated.jitter,
    )


def trainer_costs(emulated: EmulatedConfig) -> TrainerCosts:
    """The section's costs in real seconds."""
    real = 1 / emulated.time_scale
    return TrainerCosts(LinearCost(0.0, emulated.train_seconds * real), emulated.update_seconds * real, emulated.publish_seconds * real)


def read_trace(file: Path) -> tuple[int, ...]:
    """One length per line. Raises DataError with file and line for anything else."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise DataError(f"emulated.lengths = {file}: cannot be read ({error.strerror})") from error
    odd = next((number for number, line in enumerate(lines, 1) if not line.strip().isdecimal() or int(line) < 1), None)
    if odd is not None or not lines:
        raise DataError(f"{file} line {odd or 1}: a length is a whole number of tokens, at least 1")
    return tuple(map(int, lines))


def rollout_body(**arguments: Any) -> WorkerBody:
    """Factory of a rollout worker."""
    return PausingBody(EmulatedEngine(**arguments, clock=time.monotonic, sleep=time.sleep))


def trainer_body(costs: TrainerCosts) -> WorkerBody:
    """Factory of the trainer worker."""
    return TrainerBody(EmulatedTrainer(costs, time.sleep))
