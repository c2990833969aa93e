"""What each pool does at a moment, or why it does nothing: one word per pool, from the counters of a scene alone.

The trainer is one seat. Rollout is counted in slots: a fleet that decodes the last long trajectories is not idle, but most of it is
empty, and the word says why nothing else runs there.
"""

from __future__ import annotations

from paceline.core import commands as c
from paceline.core.account.members import JUDGED, OPEN, READY
from paceline.core.account.scene import Scene
from paceline.core.account.tally import Moment
from paceline.core.schedule import Schedule

TRAINER: dict[str, str] = {
    "train": "forward, backward, optimizer step",
    "publish": "writes a version into the store",
    "checkpoint": "writes a checkpoint",
    "rollout": "waits for trajectories that decode",
    "reward": "waits for rewards: with the groups that are being judged it could go on",
    "window": "has enough trainable groups, and waits for older ones that the bound of staleness protects",
    "order": "has enough trainable groups, and waits for one submitted before them (in_order)",
    "evaluation": "waits for an evaluation, during which nothing else decodes",
    "load": "waits for weights on their way to instances, with nothing decoding meanwhile",
    "data": "waits for prompts, with nothing decoding meanwhile",
    "fleet": "waits for an instance: none is up",
}
"""States of the trainer."""

ROLLOUT: dict[str, str] = {
    "decode": "holds a trajectory",
    "load": "waits for weights, or they are being exchanged",
    "publish": "kept empty for a version that is being made",
    "evaluation": "kept for an evaluation",
    "window": "nothing may start: the round is all admitted, bound or cap are reached, or a group to be generated anew waits for its turn",
    "frontier": "samples wait, and the frontier keeps them back",
    "buffer": "prompts wait, and the buffer of trainable groups is full",
    "placement": "samples wait, and this slot serves another version or is one too few for a whole group",
    "data": "prompts are on their way, or the data has ended",
    "end": "the updates that remain need nothing more, or the run is being left",
}
"""States of a rollout slot."""


def present(scene: Scene) -> Moment:
    """How things stand."""
    state, running, states = trainer(scene), len(scene.admits), scene.states
    free = scene.slots - running - scene.barred
    slots = [("decode", min(running, scene.slots)), ("load", scene.barred), (empty_slot(scene) if free > 0 else "", free)]
    busy = {
        "rollout": running,
        "reward": states[JUDGED],
        "train": state == "train",
        "publish": scene.open[c.Publish] or scene.open[c.LoadWeights],
    }
    levels = (scene.unconsumed, states[OPEN], states[JUDGED], states[READY], running, scene.versions)
    return Moment(
        state, tuple((name, count) for name, count in slots if count > 0), tuple(name for name, runs in busy.items() if runs), levels
    )


def trainer(scene: Scene) -> str:
    """The trainer's state, a key of TRAINER."""
    return _first_open(scene, _WORKS) or (_wait(scene) if scene.seats else "fleet")


def _wait(scene: Scene) -> str:
    """What the trainer waits for."""
    ready, judged, wanted = scene.states[READY], scene.states[JUDGED], scene.wanted
    if ready >= wanted:
        return "order" if scene.schedule.in_order else "window"
    if judged and (ready + judged >= wanted or not scene.states[OPEN]):
        return "reward"
    return "rollout" if scene.admits else _first_open(scene, _HOLDS) or "rollout"


def _first_open(scene: Scene, words: tuple[tuple[type, str], ...]) -> str:
    """The word of the first kind of command that is open; "" when none is."""
    return next((word for kind, word in words if scene.open[kind]), "")


_WORKS = ((c.Dispatch, "train"), (c.Publish, "publish"), (c.Checkpoint, "checkpoint"))
_HOLDS = ((c.Evaluate, "evaluation"), (c.LoadWeights, "load"), (c.RequestPrompts, "data"))


def empty_slot(scene: Scene) -> str:
    """Why a free slot that could be used is empty, a key of ROLLOUT."""
    if scene.stopping:
        return "end"
    if scene.traits.rounds and scene.open[c.Evaluate]:
        return "evaluation"
    if _kept_for_publish(scene):
        return "publish"
    return _held_back(scene) if scene.waiting else _nothing_waits(scene)


def _nothing_waits(scene: Scene) -> str:
    if scene.open[c.RequestPrompts]:
        return "data"
    if not scene.traits.rounds and scene.needed <= scene.unconsumed:
        return "end"
    return "data" if scene.data_ended else "window"


def _kept_for_publish(scene: Scene) -> bool:
    s = scene.schedule
    if scene.traits.rounds:
        return bool(scene.open[c.Publish])
    return drains(s) and (bool(scene.open[c.Publish]) or scene.issued >= s.updates_per_publish)


def drains(schedule: Schedule) -> bool:
    """Whether instances are emptied for the next version (streaming)."""
    return schedule.preset == "streaming" and schedule.at_publish == "drain"


def _held_back(scene: Scene) -> str:
    s = scene.schedule
    if scene.traits.rounds:
        return "placement" if scene.frontier is None else "frontier"
    if s.buffer_groups and scene.states[READY] >= s.buffer_groups:
        return "buffer"
    if scene.open[c.Evaluate]:
        return "evaluation"
    return "window" if scene.anew else "placement"
