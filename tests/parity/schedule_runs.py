"""Whole sessions on a tiny float64 model in this process, with witnesses: what was sampled, consumed, accumulated and published.

The real machine, driver, ledger, engine and trainer; only the processes are missing. Used by the parity tests and by the script that
measures the differences.
"""

import asyncio
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.core.commands import Dispatch, Migrate, Stop
from paceline.core.schedule import Resume, Schedule
from paceline.engines.torch_engine import TorchEngine
from paceline.models.hf import KeepDouble
from paceline.models.load import load
from paceline.models.store import write_tensors
from paceline.native.calls import kernels
from paceline.ports.fakes.data import MemoryTask, MemoryTracker
from paceline.ports.fakes.pool import InlinePool
from paceline.ports.pool import WorkerBody, WorkerSpec
from paceline.ports.rollout import Failure
from paceline.runtime.audit import audit
from paceline.runtime.bodies import RolloutBody, TrainerBody
from paceline.runtime.evaluation import EvalPlan
from paceline.runtime.ledger import Ledger, LedgerReader
from paceline.runtime.rundir import RunDir
from paceline.runtime.session import Lineage, Session, Settings, Workers
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.transports.files import FileStore
from paceline.types.progress import UpdateReport
from paceline.types.records import LOGPROB, VERSION, Prompt, Request, Sampling, Score, ScoredGroup, Trajectory
from paceline.types.weights import WeightsRef

sys.path.insert(0, str(Path(__file__).parent))
from reference import plain_logits, plain_model

SEED = 7
MAX_TOKENS = 16
STOPS = tuple(range(100, 130))
"""Many ids that end an answer, so that a random model's lengths differ and groups end out of order."""
SAMPLING = Sampling(MAX_TOKENS, stop_ids=STOPS)
PROBLEMS = MemoryTask([(f"problem {i}", "") for i in range(5)], name="problems")
TASK = MemoryTask([(f"question {i}" + "?" * (i % 4), "") for i in range(11)], seed=3)
Tensors = dict[str, torch.Tensor]


class Witness(TrainerBody):
    """A trainer worker that remembers every gradient before its step and every version that it published."""

    def __init__(self, trainer: TorchTrainer, weights: Tensors) -> None:
        super().__init__(trainer)
        self._weights = weights
        self.gradients: list[Tensors] = []
        """Of each update, scaled by its denominator."""
        self.reports: list[UpdateReport] = []
        self.consumed: list[ScoredGroup] = []
        """In order of arrival."""
        self.versions: dict[int, Tensors] = {0: self._copy()}

    def call(self, method: str, *arguments: Any) -> Any:
        """As a trainer worker does, on the record."""
        if method == "accumulate":
            self.consumed += arguments[0]
        sums = {name: weight.grad.clone() for name, weight in self._weights.items() if weight.grad is not None}
        answer = super().call(method, *arguments)
        if method == "step":
            self.gradients.append({name: value / answer.tokens for name, value in sums.items()})
            self.reports.append(answer)
        if method == "publish":
            self.versions[arguments[0]] = self._copy()
        return answer

    def _copy(self) -> Tensors:
        return {name: weight.detach().clone() for name, weight in self._weights.items()}


def make_engine(directory: str, instance: str, slots: int, versions_held: int = 1, exact: str | None = None) -> TorchEngine:
    """An engine with the weights of the directory as version 0: float64, or deterministic in the dtype `exact`."""

    def decode(ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    model = load(ModelConfig(path=directory, dtype=exact or "float64"))
    return TorchEngine(
        model,
        instance=instance,
        slots=slots,
        kv_tokens=4096,
        decode=decode,
        clock=lambda: 0.0,
        versions_held=versions_held,
        deterministic=exact is not None,
        kernels=kernels("auto") if exact else None,
    )


def engine(directory: str, instance: str, slots: int, versions_held: int, exact: str | None = None) -> WorkerBody:
    """Factory of a rollout worker."""
    return RolloutBody(make_engine(directory, instance, slots, versions_held, exact))


def trainer(directory: str, algorithm: dict[str, Any], updates: int, exact: str | None = None) -> WorkerBody:
    """Factory of the trainer worker."""
    config = ModelConfig(path=directory, dtype=exact or "float64")
    loaded = load(config, train=True)
    made = TorchTrainer(
        loaded,
        algorithm=AlgorithmConfig(**algorithm),
        trainer=TrainerConfig(learning_rate=1e-2, warmup_updates=0, micro_batch_tokens=64),
        rollout=RolloutConfig(max_tokens=MAX_TOKENS),
        model=config,
        total_updates=updates,
        deterministic=exact is not None,
        kernels=kernels("auto") if exact else None,
    )
    return Witness(made, dict(loaded.model.named_parameters()))


class Judge:
    """A reward by the tokens of the answer: a fixed number for each sequence of ids, and late for some groups."""

    def call(self, method: str, *arguments: Any) -> Any:
        """`score` or `check`, as a reward worker."""
        return self._score(*arguments) if method == "score" else None

    async def _score(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> ScoredGroup:
        for _ in range(40 * (prompt.index % 3 == 1)):
            await asyncio.sleep(0)
        values = tuple((zlib.crc32(t.ids.tobytes()) % 5) / 4 for t in trajectories)
        scores = tuple(Score(value, parsed=True) for value in values)
        return ScoredGroup(trajectories[0].group, prompt, tuple(trajectories), values, values, {"hash": values}, {"hash": scores})

    def tick(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True, slots=True)
class Played:
    """What one run did."""

    stop: Stop
    witness: Witness
    dispatched: list[tuple[int, tuple[int, ...]]]
    """(update, groups) of each dispatch of the ledger, in order."""
    moved: int
    """Trajectories that were told to move to another instance."""
    violations: tuple[str, ...]
    metrics: list[dict[str, Any]]
    """Of each update."""

    @property
    def trajectories(self) -> dict[tuple[int, int], Trajectory]:
        """By (group, sample)."""
        return {(group.group, t.sample): t for group in self.witness.consumed for t in group.trajectories}

    @property
    def weights(self) -> Tensors:
        """After the last update, which is published."""
        return self.witness.versions[max(self.witness.versions)]


def schedule(preset: str = "serial", *, groups: int, update: int, rounds: int, **changes: Any) -> Schedule:
    """R and U groups of four samples, `rounds` rounds; D = U and the preset's own start unless changed."""
    base: dict[str, Any] = {
        "preset": preset,
        "group_size": 4,
        "groups_per_round": groups,
        "groups_per_update": update,
        "groups_per_dispatch": update,
        "updates_per_publish": groups // update,
        "start_when": "all" if preset == "serial" else "dispatch",
        "total_updates": rounds * groups // update,
    }
    return Schedule(**(base | changes))


def play(
    directory: Path,
    root: Path,
    plan: Schedule,
    *,
    slots: int = 6,
    instances: int = 1,
    versions_held: int = 1,
    algorithm: dict[str, Any] | None = None,
    exact: str | None = None,
) -> Played:
    """Run a schedule to its end. `directory`: the model; `root`: a new run directory; the rest per engine and for the loss.

    exact: deterministic mode in this dtype; else float64.
    """
    common = {"directory": str(directory), "exact": exact}
    engines = {
        f"rollout-{i}": {**common, "instance": f"rollout-{i}", "slots": slots, "versions_held": versions_held} for i in range(instances)
    }
    return asyncio.run(
        _play(root, plan, engines, {**common, "algorithm": algorithm or {}, "updates": plan.total_updates}, exact or "float64")
    )


async def _play(root: Path, plan: Schedule, engines: dict[str, dict[str, Any]], trained: dict[str, Any], dtype: str) -> Played:
    pool, tracker, rundir = InlinePool(), MemoryTracker(), RunDir(root)
    rundir.open(resume=False)
    ledger = Ledger(rundir.ledger)
    lineage = ledger.open_lineage(plan, Resume(), None, "now")
    session = Session(
        pool=pool,
        workers=Workers(
            WorkerSpec("trainer", "schedule_runs:trainer", trained),
            tuple(WorkerSpec(name, "schedule_runs:engine", arguments) for name, arguments in engines.items()),
            (WorkerSpec("reward-0", "schedule_runs:Judge", {}),),
        ),
        settings=Settings(SEED, SAMPLING, dtype, 0.1, 60.0, ("hash",), 60.0, 2, 60.0),
        lineage=Lineage(plan, Resume(), lineage, None, {}),
        task=TASK,
        eval_plan=EvalPlan(tuple(PROBLEMS.prompt(i) for i in range(5)), True, 2, SAMPLING, SEED, ("hash",))
        if plan.evaluate_every
        else None,
        store=FileStore(rundir.weights),
        rundir=rundir,
        ledger=ledger,
        trackers=[tracker],
        on_progress=lambda progress: None,
    )
    try:
        stop = await session.run()
    finally:
        ledger.close()
        rundir.close()
    witness = pool.workers["trainer"].body
    assert isinstance(witness, Witness)
    reader = LedgerReader(rundir.ledger)
    values = [record.value for record in reader.records(lineage)]
    reader.close()
    return Played(
        stop=stop,
        witness=witness,
        dispatched=[(value.update, tuple(value.groups)) for value in values if isinstance(value, Dispatch)],
        moved=sum(len(value.trajectories) for value in values if isinstance(value, Migrate)),
        violations=audit(rundir.ledger).violations,
        metrics=[row for axis, _, row in tracker.rows if axis == "update"],
    )


def distance(ours: Tensors, right: Tensors) -> float:
    """Relative L2 difference of everything together."""
    assert ours.keys() == right.keys()
    apart = sum(float((ours[name] - right[name]).square().sum()) for name in right)
    return float((apart / sum(float(value.square().sum()) for value in right.values())) ** 0.5)


def largest(ours: Tensors, right: Tensors) -> float:
    """Largest absolute difference of any weight."""
    return max(float((ours[name] - right[name]).abs().max()) for name in right)


def same_tokens(a: Played, b: Played) -> bool:
    """Whether both runs consumed the same groups with the same trajectories, token for token."""
    ours, theirs = a.trajectories, b.trajectories
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[key].ids, theirs[key].ids) for key in ours)


def consumed(run: Played) -> list[int]:
    """Groups in the order in which the trainer got them."""
    return [group.group for group in run.witness.consumed]


def by_version(run: Played) -> dict[int, list[ScoredGroup]]:
    """Groups by the one version of all their tokens."""
    found: dict[int, list[ScoredGroup]] = {}
    for group in run.witness.consumed:
        (version,) = {int(v) for t in group.trajectories for v in t.columns[VERSION]}
        found.setdefault(version, []).append(group)
    return found


def behaviour_error(directory: Path, run: Played) -> float:
    """Largest |recorded - recomputed| log-prob of any token, by a plain padded model that holds the weights of the token's version."""
    worst, model = 0.0, plain_model(directory, "float64")
    columns = {name: [t.columns[name] for g in run.witness.consumed for t in g.trajectories] for name in (LOGPROB, VERSION)}
    recorded, versions = (np.concatenate(columns[name]) for name in (LOGPROB, VERSION))
    for version in sorted(set(versions.tolist())):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(run.witness.versions[version][name])
            logits, ids, mask = plain_logits(model, run.witness.consumed)
        scores = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0][mask].numpy()
        worst = max(worst, float(np.abs(scores - recorded)[versions == version].max()))
    return worst


def kept_error(directory: Path, run: Played) -> float:
    """The same for trajectories that kept their KV cache over new weights: every row is computed by the version of the token that it
    predicts, over the keys and values that the rows before it left."""
    worst, models = 0.0, {version: plain_model(directory, "float64") for version in run.witness.versions}
    for version, model in models.items():
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(run.witness.versions[version][name])
    for t in run.trajectories.values():
        text = torch.from_numpy(np.concatenate([t.prompt_ids, t.ids[:-1]]).astype(np.int64))
        rows = np.concatenate([np.full(len(t.prompt_ids) - 1, t.columns[VERSION][0]), t.columns[VERSION]]).tolist()
        cache, logits, start = None, [], 0
        for version, same in groupby(rows):
            end = start + len(list(same))
            with torch.no_grad(), KeepDouble():
                output = models[version](text[None, start:end], cache=cache, use_cache=True)
            logits.append(output.logits[0])
            cache, start = output.cache, end
        scores = torch.cat(logits)[len(t.prompt_ids) - 1 :].log_softmax(-1)
        found = scores.gather(-1, torch.from_numpy(t.ids.astype(np.int64))[:, None])[:, 0].numpy()
        worst = max(worst, float(np.abs(found - t.columns[LOGPROB]).max()))
    return worst


def mixed(run: Played) -> int:
    """Trajectories with tokens of several versions."""
    return sum(len(set(t.columns[VERSION].tolist())) > 1 for t in run.trajectories.values())


def regenerated(directory: Path, scratch: Path, run: Played) -> bool:
    """Whether fresh engines with the weights of each version sample the same tokens again, all trajectories of the version at once.

    Every trajectory must be of one version; those of a group need not be the same one (streaming).
    """
    sampled: dict[int, dict[tuple[int, int], Trajectory]] = {}
    for trajectory in run.trajectories.values():
        (version,) = set(trajectory.columns[VERSION].tolist())
        sampled.setdefault(version, {})[trajectory.group, trajectory.sample] = trajectory
    for version, own in sampled.items():
        fresh = make_engine(str(directory), f"fresh-{version}", slots=64)
        if version:
            file = scratch / f"again-{version}.safetensors"
            checksum = write_tensors(run.witness.versions[version].items(), file, torch.float64)
            fresh.load(WeightsRef(version=version, fingerprint=checksum), str(file))
        fresh.submit([Request(g, s, 1, t.prompt_ids, SAMPLING, seed=SEED, version=version) for (g, s), t in own.items()])
        again: list[Trajectory | Failure] = []
        while len(again) < len(own):
            again += fresh.step()
        if not all(isinstance(t, Trajectory) and np.array_equal(t.ids, own[t.group, t.sample].ids) for t in again):
            return False
    return True
