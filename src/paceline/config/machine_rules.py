"""Rules about what computes: devices, compiled kernels, torch.compile."""

from __future__ import annotations

from paceline.config.rules import Rule, only
from paceline.config.schema import Config

MACHINE: list[Rule[Config]] = [
    Rule(
        "slim_decoder_only",
        ("model.implementation", "trainer.checkpoint_activations", "trainer.compile", "trainer.kernels"),
        "these are of the slim decoder; the model's own class runs as it is",
        lambda c: (
            c.model.implementation == "transformers"
            and (c.trainer.checkpoint_activations or c.trainer.compile or c.trainer.kernels == "native")
        ),
    ),
    Rule(
        "native_kernels",
        ("rollout.kernels", "trainer.kernels", "model.dtype", "pool.rollout_devices", "pool.trainer_device"),
        "compiled kernels compute bfloat16 and float32 on the cpu; auto takes them where they can",
        lambda c: (
            (c.rollout.kernels == "native" and (c.model.dtype == "float64" or {*c.pool.rollout_devices} != {"cpu"}))
            or (c.trainer.kernels == "native" and (c.model.dtype == "float64" or c.pool.trainer_device != "cpu"))
        ),
    ),
    Rule(
        "deterministic_kernels",
        ("run.deterministic", "trainer.compile"),
        "bits would depend on the C++ compiler of the machine, by which a resume cannot tell whether it computes alike",
        lambda c: c.run.deterministic and c.trainer.compile,
    ),
    *only(
        "pool.rollout_devices pool.trainer_device",
        lambda c: c.rollout.engine != "emulated",
        "the engine emulated and its trainer compute nothing",
    ),
    Rule(
        "devices_for_instances",
        ("pool.rollout_devices", "rollout.instances"),
        "name one device at least, and no more of them than there are instances to share them out among",
        lambda c: not 1 <= len(c.pool.rollout_devices) <= c.rollout.instances,
    ),
    Rule(
        "deterministic_on_cpus",
        ("run.deterministic", "pool.rollout_devices", "pool.trainer_device"),
        "kernels of other devices add up in an order of their own at every call; it holds on the cpu",
        lambda c: c.run.deterministic and {*c.pool.rollout_devices, c.pool.trainer_device} != {"cpu"},
    ),
]
"""Across sections."""
