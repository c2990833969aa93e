"""From the optimizer's step to the first token under the new weights, seconds in all and by part: 270 MB (bfloat16), 540 MB (float32).

A real trainer worker and a real rollout worker, processes of their own as in a run, and the file store between them. Each repeat trains a
small group, and from the answer to `step` on publishes, serves and probes as the runtime does, then asks for one token of a prompt. Both
workers count the seconds inside the functions that do the parts, where they are called; what is left of a whole is named for what it is.
The copies are compared with copying as many bytes from memory to memory in the same worker. Usage: python benchmarks/publish.py [--tiny]
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from evidence import ROOT, Quiet, measured
from paceline import durable
from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.models import slim, store
from paceline.models.load import load
from paceline.models.smollm2 import NAME
from paceline.native.calls import Kernels, kernels
from paceline.ports.pool import WorkerSpec
from paceline.runtime.bodies import RolloutBody, TrainerBody
from paceline.runtime.calls import Seat
from paceline.runtime.process import ProcessPool
from paceline.runtime.weights import BOUNDS, PROBE_TOKENS, Probes, compare
from paceline.trainers import torch_trainer
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.transports.files import FileStore
from paceline.types.progress import ProbeReport
from paceline.types.records import LOGPROB, VERSION, Prompt, Request, Sampling, Score, ScoredGroup, Trajectory
from paceline.types.weights import WeightsRef
from serving import copy_bandwidth, engine, loaded, prompts, spread

TARGET = 0.5
"""Least share of the memory's copy bandwidth that reading new weights into place reaches."""
TOKENS = 8
"""Sampled tokens of the answers that are trained on."""


class Spans:
    """Seconds inside functions of modules and methods of classes, counted where they are called, until `take`."""

    def __init__(self, *places: tuple[ModuleType | type, str]) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        for module, name in places:
            setattr(module, name, self._timed(getattr(module, name), f"{module.__name__.rpartition('.')[2]}.{name}"))

    def _timed(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def _counted(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._seconds[label] += time.perf_counter() - started

        return _counted

    def take(self) -> dict[str, float]:
        """What was counted since the last time."""
        found, self._seconds = dict(self._seconds), defaultdict(float)
        return found


class TimedTrainer(TrainerBody):
    """A trainer worker that says what its publish was made of."""

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__(trainer)
        self._spans = Spans(
            (torch_trainer, "write_tensors"), (store, "_write"), (store, "fingerprint"), (durable, "sync"), (TorchTrainer, "probe")
        )  # fmt: skip

    def call(self, method: str, *arguments: Any) -> Any:
        """As a trainer worker does; `spans` and `copy_bandwidth` beside."""
        if method == "spans":
            return _trainer_parts(self._spans.take())
        return copy_bandwidth(*arguments) if method == "copy_bandwidth" else super().call(method, *arguments)


class TimedEngine(RolloutBody):
    """A rollout worker that says what taking weights over was made of."""

    def __init__(self, serving: Any) -> None:
        super().__init__(serving)
        self._spans = Spans((slim, "copy_into"), (store, "fingerprint"), (Kernels, "pack"), (type(serving), "probe"))

    def call(self, method: str, *arguments: Any) -> Any:
        """As a rollout worker does; `spans` and `copy_bandwidth` beside."""
        if method == "spans":
            return _engine_parts(self._spans.take())
        return copy_bandwidth(*arguments) if method == "copy_bandwidth" else super().call(method, *arguments)


def _trainer_parts(seconds: dict[str, float]) -> dict[str, float]:
    write, sync = seconds["store._write"], seconds.get("durable.sync", 0.0)
    checksum = seconds["store.fingerprint"]
    return {
        "cast": seconds["torch_trainer.write_tensors"] - write - sync - checksum,
        "write": write,
        "sync": sync,
        "checksum of the trainer": checksum,
        "probe of the trainer": seconds["TorchTrainer.probe"],
    }


def _engine_parts(seconds: dict[str, float]) -> dict[str, float]:
    checksum, repack = seconds["store.fingerprint"], seconds.get("Kernels.pack", 0.0)
    return {
        "read into place": seconds["slim.copy_into"] - checksum,
        "checksum of the engine": checksum,
        "repack": repack,
        "probe of the engine": seconds["TorchEngine.probe"] - repack,
    }


def rollout_body(path: str, dtype: str) -> TimedEngine:
    """Factory of the rollout worker."""
    return TimedEngine(engine(loaded(ModelConfig(path=path, dtype=dtype), ends=False), 64, TOKENS))


def trainer_body(path: str, dtype: str) -> TimedTrainer:
    """Factory of the trainer worker, with the defaults of a run."""
    model = ModelConfig(path=path, dtype=dtype)
    settings = (AlgorithmConfig(gap_stop=1e9), TrainerConfig(warmup_updates=0), RolloutConfig(max_tokens=TOKENS))
    made = TorchTrainer(
        load(model, train=True), algorithm=settings[0], trainer=settings[1], rollout=settings[2], model=model, total_updates=1000,
        kernels=kernels(),
    )  # fmt: skip
    return TimedTrainer(made)


def group_of(number: int, prompt: Prompt, version: int) -> ScoredGroup:
    """Two made-up answers, one of them right: enough to move every weight."""
    random = np.random.default_rng(number)
    answers = tuple(
        Trajectory(
            number,
            sample,
            1,
            prompt.ids,
            random.integers(5, 200, TOKENS).astype(np.int32),
            {LOGPROB: np.full(TOKENS, -5.0, dtype=np.float32), VERSION: np.full(TOKENS, version, dtype=np.int32)},
            "length",
            "",
        )
        for sample in range(2)
    )
    values = (1.0, 0.0)
    return ScoredGroup(number, prompt, answers, values, values, {"r": values}, {"r": tuple(Score(value, parsed=True) for value in values)})


class Pair:
    """Both workers and what the controller does between them."""

    def __init__(self, path: str, dtype: str, threads: int, root: Path) -> None:
        pool, self._dtype = ProcessPool(log_dir=root), dtype
        arguments = {"path": path, "dtype": dtype}
        self._trainer, self._rollout = (
            Seat(pool, WorkerSpec(name, f"publish:{name}_body", arguments, threads), 600.0) for name in ("trainer", "rollout")
        )
        self._store = FileStore(root)
        self._asked = prompts(0, 20)
        self._probe_ids = tuple(np.concatenate([prompt.ids for prompt in self._asked])[:PROBE_TOKENS].tolist())
        self._before: Probes | None = None
        self._first: asyncio.Future[float]

    async def __aenter__(self) -> Pair:
        await self._trainer.fill(lambda report: None, lambda reason: None)
        await self._rollout.fill(self._reported, lambda reason: None)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._trainer.stop(1.0)
        await self._rollout.stop(1.0)

    def _reported(self, result: Any) -> None:
        assert isinstance(result, Trajectory), result
        self._first.set_result(time.perf_counter())

    async def copied(self, size: int) -> dict[str, float]:
        """Copy bandwidth in each worker."""
        return {
            "trainer": await self._trainer.call("copy_bandwidth", size),
            "engine": await self._rollout.call("copy_bandwidth", size),
        }

    async def publish(self, version: int) -> dict[str, Any]:
        """One update, and its weights on their way. Seconds in all and by part; the bytes of the file."""
        await self._trainer.call("accumulate", [group_of(version, self._asked[version % len(self._asked)], version - 1)])
        await self._trainer.call("step")
        started = time.perf_counter()
        location = self._store.prepare(version)
        ref: WeightsRef
        probe: ProbeReport
        ref, probe = await self._trainer.call("publish", version, location, self._probe_ids)
        location = self._store.commit(ref)
        replaces = version - 1 if version > 1 else None
        fingerprint, served = await self._rollout.call("serve", ref, location, "none", replaces, self._probe_ids)
        live = time.perf_counter()
        found = compare(Probes(probe, served), self._before, BOUNDS[self._dtype])
        assert fingerprint == ref.fingerprint, "the engine computes with other weights"
        assert found.fits, found
        self._before, self._first = Probes(probe, served), asyncio.get_running_loop().create_future()
        await self._rollout.call("submit", [Request(version, 0, 1, self._asked[0].ids, Sampling(1), 1, version)])
        seconds, parts = await self._first - started, {**await self._trainer.call("spans"), **await self._rollout.call("spans")}
        parts["first token"] = self._first.result() - live
        parts["calls and the rest"] = seconds - sum(parts.values())
        size = Path(location).stat().st_size
        self._store.retire(version - 1)
        return {"seconds": seconds, "parts": parts, "bytes": size}


async def publishes(path: str, dtype: str, threads: int, repeats: int, root: Path) -> dict[str, Any]:
    """Figures of one dtype; the first publish is warm-up."""
    async with Pair(path, dtype, threads, root) as pair:
        first = await pair.publish(1)
        copy = await pair.copied(first["bytes"])
        rows = [await pair.publish(2 + repeat) for repeat in range(repeats)]
    size = first["bytes"]
    parts = {name: spread([row["parts"][name] for row in rows]) for name in rows[0]["parts"]}
    shares = {
        "read into place": spread([size / row["parts"]["read into place"] / copy["engine"] for row in rows]),
        "write": spread([size / row["parts"]["write"] / copy["trainer"] for row in rows]),
    }
    return {
        "bytes": size,
        "seconds": spread([row["seconds"] for row in rows]),
        "parts": parts,
        "copy_bytes_per_s": copy,
        "share_of_copy_bandwidth": shares,
        "target_met": shares["read into place"]["median"] >= TARGET,
    }


def measure(path: str, dtypes: Sequence[str], threads: int, repeats: int, runs: Path) -> dict[str, Any]:
    """Every dtype in turn."""
    found = {}
    for dtype in dtypes:
        with tempfile.TemporaryDirectory(dir=runs) as root, Quiet() as quiet:
            found[dtype] = asyncio.run(publishes(path, dtype, threads, repeats, Path(root)))
        found[dtype]["other_load"] = quiet.found
        print(dtype, json.dumps(found[dtype]), flush=True)
    return found


def main() -> None:
    """Measure, write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=NAME)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-publish", help="where the store lies")
    parser.add_argument("--tiny", action="store_true", help="a smoke test: two repeats, nothing written")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    given = (arguments.model, arguments.dtypes, arguments.threads)
    if arguments.tiny:
        measure(*given, 2, arguments.runs)
        return
    with measured("publish", repeats=arguments.repeats) as figures:
        figures |= {"threads": arguments.threads, "target_share": TARGET, "dtypes": measure(*given, arguments.repeats, arguments.runs)}


if __name__ == "__main__":
    main()
