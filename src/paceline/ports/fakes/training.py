"""A trainer without torch: it keeps every promise of `ports.training` about order, counting and files, and learns nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from paceline.durable import whole
from paceline.types.errors import CheckpointDamaged, ModelError, TrainerError
from paceline.types.progress import ProbeReport, UpdateReport
from paceline.types.records import LOGPROB, VERSION, FinishReason, Prompt, ScoredGroup, Trajectory
from paceline.types.weights import WeightsRef

_STATE = "fake_trainer.json"


class FakeTrainer:
    """`Trainer`, `Publishes` and `Checkpoints` in memory. Its only weight is the number of updates applied.

    A behaviour log-prob that is not finite makes an update non-finite, as in a real trainer. `history` lists the groups of every
    update in the order given.
    """

    def __init__(self, *, nonfinite_limit: int = 3) -> None:
        self.history: list[tuple[int, ...]] = []
        self._limit = nonfinite_limit
        self._pending: list[ScoredGroup] = []
        self._state = {"update": 0, "applied": 0, "skipped_in_a_row": 0}
        self._published: tuple[WeightsRef, int] | None = None

    def accumulate(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """Count whole groups; TrainerError for none, or for one that is already in this update."""
        if not groups:
            raise TrainerError("accumulate without groups")
        ids = [group.group for group in (*self._pending, *groups)]
        twice = sorted({group for group in ids if ids.count(group) > 1})
        if twice:
            raise TrainerError(f"groups {twice} come twice in update {self._state['update'] + 1}")
        self._pending += groups
        trajectories = _trajectories(groups)
        return {"sequences": float(len(trajectories)), "tokens": float(sum(len(t.ids) for t in trajectories))}

    def step(self) -> UpdateReport:
        """Count an update; TrainerError without groups, and after `nonfinite_limit` skipped ones in a row."""
        if not self._pending:
            raise TrainerError("step without accumulated groups")
        trajectories = _trajectories(self._pending)
        culprits = tuple((t.group, t.sample) for t in trajectories if not np.isfinite(t.columns[LOGPROB]).all())
        groups = tuple(group.group for group in self._pending)
        self._pending = []
        self.history.append(groups)
        self._count(culprits)
        return UpdateReport(
            update=self._state["update"],
            applied=not culprits,
            groups=groups,
            sequences=len(trajectories),
            tokens=sum(len(t.ids) for t in trajectories),
            metrics={"loss": math.nan if culprits else 0.0, "grad_norm": 0.0, "learning_rate": 0.0},
            culprits=culprits,
        )

    def _count(self, culprits: tuple[tuple[int, int], ...]) -> None:
        """Count an update, skipped when trajectories spoiled it."""
        state = self._state
        state["update"] += 1
        state["applied"] += not culprits
        state["skipped_in_a_row"] = state["skipped_in_a_row"] + 1 if culprits else 0
        if state["skipped_in_a_row"] >= self._limit:
            raise TrainerError(f"update {state['update']}: non-finite {self._limit} times in a row, by {list(culprits)}")

    def publish(self, version: int, location: str) -> WeightsRef:
        """Write a small file, complete or absent."""
        _write(Path(location), json.dumps({"applied": self._state["applied"]}).encode())
        ref = WeightsRef(version=version, fingerprint=read_weights(Path(location))[0])
        self._published = (ref, self._state["applied"])
        return ref

    def probe(self, ids: Sequence[int]) -> ProbeReport:
        """Made-up log-probs that change with every applied update; TrainerError once the published weights have moved on."""
        if len(ids) < 2:
            raise TrainerError(f"a probe needs at least 2 tokens, got {len(ids)}")
        applied = self._state["applied"]
        if self._published is None and applied:
            raise TrainerError("nothing was published yet")
        ref, at = self._published or (WeightsRef(version=0), 0)
        if at != applied:
            raise TrainerError(f"probe after an update moved the weights of version {ref.version}: ask right after publish")
        return ProbeReport(ref.version, ref.fingerprint, probe_logprobs(applied, ids))

    def export(self, directory: str) -> None:
        """Write the state as the directory's only file."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        _write(Path(directory) / _STATE, json.dumps(self._state).encode())

    def save(self, directory: str) -> None:
        """Write the counters, without what was accumulated and not stepped."""
        _write(Path(directory) / _STATE, json.dumps(self._state).encode())

    def restore(self, directory: str) -> None:
        """Read the counters; CheckpointDamaged names the file when it is missing or damaged."""
        path = Path(directory) / _STATE
        try:
            state: dict[str, Any] = json.loads(path.read_text())
            self._state = {key: int(state[key]) for key in self._state}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{path}: missing or damaged ({error})") from error
        self._pending, self._published = [], None


def read_weights(location: Path) -> tuple[str, int]:
    """Fingerprint of what a fake trainer published, and the one weight in it: the number of updates applied. ModelError if unreadable."""
    try:
        content = location.read_bytes()
        return sha256(content).hexdigest(), int(json.loads(content)["applied"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{location}: no weights of a fake trainer ({error})") from error


def probe_logprobs(applied: int, ids: Sequence[int]) -> tuple[float, ...]:
    """What a model of these weights makes of fixed tokens, [n - 1]."""
    return tuple(-1.0 - ((token * 31 + applied) % 7) for token in ids[1:])


def scored_group(
    group: int,
    prompt_ids: Sequence[int],
    completions: Sequence[Sequence[int]],
    rewards: Sequence[float],
    *,
    logprobs: Sequence[Sequence[float]] | None = None,
    version: int = 0,
    outcomes: Sequence[float] | None = None,
    truncated: Sequence[bool] | None = None,
    columns: Sequence[Mapping[str, Any]] | None = None,
) -> ScoredGroup:
    """A group by its token ids, for tests and examples. Log-probs default to -1, outcomes to the rewards; `columns` come on top."""
    prompt = Prompt(index=group, row=group, ids=np.asarray(prompt_ids, dtype=np.int32), text="", gold=None)
    trajectories = []
    for sample, ids in enumerate(completions):
        given = np.full(len(ids), -1.0, dtype=np.float32) if logprobs is None else np.asarray(logprobs[sample])
        finish: FinishReason = "length" if truncated is not None and truncated[sample] else "eos"
        trajectories.append(
            Trajectory(
                group=group,
                sample=sample,
                attempt=0,
                prompt_ids=prompt.ids,
                ids=np.asarray(ids, dtype=np.int32),
                columns={
                    LOGPROB: given,
                    VERSION: np.full(len(ids), version, dtype=np.int32),
                    **(columns[sample] if columns is not None else {}),
                },
                finish=finish,
                text="",
            )
        )
    return ScoredGroup(
        group=group,
        prompt=prompt,
        trajectories=tuple(trajectories),
        rewards=tuple(rewards),
        outcomes=tuple(rewards if outcomes is None else outcomes),
    )


def _trajectories(groups: Sequence[ScoredGroup]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def _write(path: Path, content: bytes) -> None:
    with whole(path) as aside:
        aside.write_bytes(content)
