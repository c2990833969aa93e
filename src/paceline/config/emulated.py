"""The section `[emulated]`."""

from __future__ import annotations

from pydantic import Field

from paceline.config.section import Section


class EmulatedConfig(Section):
    """What the engine `emulated` and its trainer pretend to be. Seconds here are emulated ones, those of metrics and ledger real ones."""

    time_scale: float = Field(default=1.0, gt=0)
    """Emulated seconds per real second."""
    step_seconds: float = Field(default=0.025, gt=0)
    """a: a decode step of n trajectories with c tokens of context each takes a + n (b + c x context_seconds)."""
    sequence_seconds: float = Field(default=4e-5, ge=0)
    """b: of a decode step, per trajectory."""
    context_seconds: float = Field(default=2e-8, ge=0)
    """Of a decode step, per trajectory and token of its context."""
    prefill_seconds: float = Field(default=4e-5, ge=0)
    """Reading a prompt, per token."""
    jitter: float = Field(default=0.05, ge=0, lt=1)
    """Relative standard deviation of an instance's speed, drawn anew every 256 steps."""
    mean_tokens: float = Field(default=128.0, gt=0)
    """Mean of the lognormal length of a trajectory, before rollout.max_tokens cuts it."""
    sigma: float = Field(default=1.0, ge=0)
    """Its standard deviation in the logarithm: 0 = all equal, 1 = a long tail."""
    lengths: str = ""
    """File with one length per line, drawn from instead."""
    solved: float = Field(default=0.5, ge=0, le=1)
    """Chance that a trajectory is right."""
    train_seconds: float = Field(default=2.5e-5, ge=0)
    """Forward and backward, per token (a prompt once per group, and every sampled one)."""
    update_seconds: float = Field(default=0.5, ge=0)
    """Optimizer step."""
    publish_seconds: float = Field(default=2.0, ge=0)
    """Writing a version."""
    load_seconds: float = Field(default=2.0, ge=0)
    """Loading a version into an instance, which decodes nothing meanwhile."""
    move_seconds: float = Field(default=5e-6, ge=0)
    """Handing over or taking in a trajectory, per token of its KV cache; an instance decodes nothing meanwhile."""
