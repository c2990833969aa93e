"""Schedules at the scale of a published setting, driven by the real runtime over emulated engines and an emulated trainer.

The setting is DORA's synchronous baseline (arXiv 2604.26256, 64 GPUs): 512 prompts x 16 samples a step, 16 updates a step, mean output
2.4K and at most 30K tokens, 22.91 min a step of which 14.9 min are rollout alone. Costs per sequence and per token of context are
arithmetic for a 32B model on four H800 an instance; the cost of an empty step is fitted, so that a synchronous rollout on `--instances`
takes the published time; the trainer takes the rest. Every schedule then runs on the same instances and trainer, the same prompts and
lengths. `colocated` is the serial schedule where both phases have the resources of both pools, taken to be equal: twice the instances,
and a trainer twice as fast.

All seconds of `figures` are emulated ones but where a name says real. The steady state is what lies between two updates, whole publish
periods apart, after a warm-up and before the last periods, in which nothing new is generated any more. A small run
(`--instances 2 --groups 16 ...`) takes seconds. A finished schedule is a file RUNS/NAME.json and is not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evidence import ROOT, measured
from paceline.cli import jobs
from paceline.config.load import load
from paceline.config.plan import schedule
from paceline.config.schema import Config
from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.account import account
from paceline.core.account.tally import Tally, mean
from paceline.core.costs import DecodeCost, LinearCost
from paceline.core.schedule import Resume
from paceline.engines.emulated import EmulatedEngine, EngineCosts, Lengths
from paceline.runtime.audit import audit
from paceline.runtime.driver import Driver
from paceline.runtime.ledger import Ledger, LedgerReader, Record
from paceline.runtime.segments import Segments
from paceline.types.progress import Progress
from paceline.types.records import Request, Sampling

STEP_SECONDS, ROLLOUT_SECONDS = 22.91 * 60, 14.9 * 60
"""DORA, synchronous, 64 GPUs."""
SEQUENCE_SECONDS = 2 * 32.5e9 / (4 * 400e12)
"""FLOP of a token over what four GPUs do in practice."""
CONTEXT_SECONDS = 64 * 8 * 128 * 2 * 2 / (4 * 3.35e12)
"""Bytes of KV cache of a token (64 layers, 8 heads of 128, keys and values, 16 bit) over the bandwidth of four GPUs."""
SCHEDULES = ("serial", "colocated", "pipelined", "one-step-off", "keep", "multiversion")


ROUNDS = ("serial", "colocated", "pipelined")
"""Schedules whose publish periods do not overlap: one is enough to warm up."""


def margins(name: str, args: argparse.Namespace) -> tuple[int, int]:
    """Publish periods before and after the steady state."""
    return (1, 0) if name in ROUNDS else (args.warmup, args.window - 1)


def overrides(name: str, args: argparse.Namespace, costs: dict[str, float]) -> list[str]:
    """The configuration of one schedule."""
    upp, (before, after) = args.groups // args.update, margins(name, args)
    presets = {
        "serial": ["schedule.preset=serial", f"schedule.groups_per_round={args.groups}"],
        "pipelined": ["schedule.preset=pipelined", f"schedule.groups_per_round={args.groups}"],
        "one-step-off": ["schedule.preset=streaming", "schedule.staleness=1", "schedule.at_publish=drain"],
        "keep": ["schedule.preset=streaming", f"schedule.staleness={args.window - 1}", "schedule.at_publish=keep"],
        "multiversion": ["schedule.preset=multiversion", f"schedule.version_window={args.window}"],
    }
    both = 2 if name == "colocated" else 1
    flow = [] if name in ROUNDS else [f"schedule.updates_per_publish={upp}"]
    if flow and args.in_flight and name != "one-step-off":
        flow.append(f"schedule.in_flight_groups={args.in_flight}")
    return [
        f"run.dir={args.runs / name}", f"run.updates={upp * (before + args.periods + after)}", f"run.seed={args.seed}",
        "task.kind=synthetic", f"task.size={args.groups}", "pool.reward_workers=2",
        "rollout.engine=emulated", f"rollout.instances={args.instances * both}", f"rollout.slots={args.slots}",
        f"rollout.kv_tokens={args.kv_tokens}", f"rollout.max_prompt_tokens={args.prompt}", f"rollout.max_tokens={args.most}",
        *presets["serial" if name == "colocated" else name], f"schedule.group_size={args.samples}",
        f"schedule.groups_per_update={args.update}", *flow,
        f"emulated.time_scale={float(args.time_scale)}", f"emulated.mean_tokens={float(args.mean)}", f"emulated.sigma={args.sigma}",
        f"emulated.jitter={args.jitter}",
        *(f"emulated.{key}={value / (both if key in ('train_seconds', 'update_seconds') else 1)!r}" for key, value in costs.items()),
    ]  # fmt: skip


# --- calibration


def rollout(args: argparse.Namespace, step_seconds: float) -> tuple[float, int]:
    """Seconds that one round takes on the instances when all of it is submitted at once, and its tokens: engines in virtual time."""
    longest, tokens = 0.0, 0
    costs = EngineCosts(
        DecodeCost(step_seconds, SEQUENCE_SECONDS, CONTEXT_SECONDS), LinearCost(0.0, SEQUENCE_SECONDS), 0.0, LinearCost(0.0, 0.0)
    )
    for instance in range(args.instances):
        now = [0.0]
        engine = EmulatedEngine(
            instance="calibration", slots=args.slots, kv_tokens=args.kv_tokens, costs=costs, lengths=Lengths(args.mean, args.sigma),
            solved=0.5, clock=lambda now=now: now[0], sleep=lambda seconds: None,
        )  # fmt: skip
        prompt, sampling = np.zeros(args.prompt, dtype=np.int32), Sampling(args.most)
        mine = range(instance, args.groups, args.instances)
        engine.submit([Request(group, sample, 0, prompt, sampling, args.seed, 0) for group in mine for sample in range(args.samples)])
        engine.step()
        while (pause := engine.pause()) is not None:
            now[0] += max(pause, 1e-9)
            engine.step()
        longest, tokens = max(longest, now[0]), tokens + engine.load_state().tokens
    return longest, tokens


def calibrated(args: argparse.Namespace) -> tuple[dict[str, float], dict[str, Any]]:
    """Costs in emulated seconds, and what they were fitted to. Another scale keeps the published balance of rollout and training."""
    target = ROLLOUT_SECONDS * args.most / 30_000
    low, high = 0.01, 0.03
    at_low, at_high = rollout(args, low)[0], rollout(args, high)[0]  # linear in it: who decodes when does not change
    middle = low + (high - low) * (target - at_low) / (at_high - at_low)
    seconds, tokens = rollout(args, middle)
    update, publish, live = 0.5, 2.0, 2.0
    upp = args.groups // args.update
    train = target * (STEP_SECONDS / ROLLOUT_SECONDS - 1)
    rest = train - publish - live - upp * update
    costs = {
        "step_seconds": middle,
        "sequence_seconds": SEQUENCE_SECONDS,
        "context_seconds": CONTEXT_SECONDS,
        "prefill_seconds": SEQUENCE_SECONDS,
        "train_seconds": rest / (tokens + args.groups * args.prompt),
        "update_seconds": update,
        "publish_seconds": publish,
        "load_seconds": live,
        "move_seconds": 64 * 8 * 128 * 2 * 2 / 50e9,
    }
    expected = {"rollout_seconds": seconds, "train_seconds": train, "step_seconds": seconds + train, "tokens": tokens}
    return costs, {"costs": costs, "fitted_to": {"rollout_seconds": target}, "arithmetic": expected}


# --- one run


class Timers:
    """Real seconds that the controller's process spends in some of its functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    @contextmanager
    def around(self, owner: type, name: str) -> Iterator[None]:
        """Time every call of a method while the block runs."""
        plain: Callable[..., Any] = getattr(owner, name)
        label = f"{owner.__name__}.{name}"

        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return plain(*arguments, **named)
            finally:
                self.seconds[label] += time.perf_counter() - start
                self.calls[label] += 1

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, plain)


def once(name: str, config: Config, args: argparse.Namespace) -> dict[str, Any]:
    """`run`, unless RUNS/NAME.json holds its figures under the same configuration."""
    path, settings = args.runs / f"{name}.json", config.model_dump_json()
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept["settings"] == settings:
            return dict(kept["figures"])
    figures = run(name, config, args)
    path.write_text(json.dumps({"settings": settings, "figures": figures}))
    return figures


def run(name: str, config: Config, args: argparse.Namespace) -> dict[str, Any]:
    """Run a schedule from its start to its end, and read its ledger."""
    shutil.rmtree(config.run.dir, ignore_errors=True)
    timers, notices = Timers(), list[str]()

    def watch(progress: Progress) -> None:
        if progress.message:
            notices.append(progress.message)

    began, cpu = time.perf_counter(), time.process_time()
    with ExitStack() as stack:
        for owner, method in ((Driver, "_decide"), (Ledger, "append"), (Ledger, "commit"), (Segments, "write")):
            stack.enter_context(timers.around(owner, method))
        outcome = jobs.train(config, on_progress=watch)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    if not outcome.ok:
        raise SystemExit(f"{name}: {outcome.reason}")
    ledger = Path(config.run.dir) / "ledger.sqlite"
    records = _records(ledger)
    report = audit(ledger)
    figures = steady(records, config, args.groups // args.update, margins(name, args)[0], args.periods)
    figures["audit"] = {"events": report.events, "commands": report.commands, "violations": list(report.violations)}
    figures["controller"] = _controller(timers, report.events, report.events + report.commands, wall, cpu)
    figures["notices"] = notices[:5]
    if not args.keep:
        shutil.rmtree(config.run.dir)
    return figures


def _controller(timers: Timers, events: int, rows: int, wall: float, cpu: float) -> dict[str, Any]:
    """`Driver._decide` holds machine, rules and encoding of rows, on the event loop; `Ledger.commit` is SQLite with its wait for the disk,
    in a thread beside it. Seconds are those of the wall: on a busy machine they hold other processes' work, too."""
    spent = timers.seconds["Driver._decide"] + timers.seconds["Ledger.commit"]
    return {
        "real_wall_seconds": round(wall, 2),
        "real_cpu_seconds": round(cpu, 2),
        "events": events,
        "rows": rows,
        "real_us_per_event": round(1e6 * spent / events, 1),
        "real_us_per_event_deciding": round(1e6 * timers.seconds["Driver._decide"] / events, 1),
        "share_of_wall": round(spent / wall, 4),
        "share_of_wall_deciding": round(timers.seconds["Driver._decide"] / wall, 4),
        "real_seconds": {label: round(seconds, 3) for label, seconds in sorted(timers.seconds.items())},
        "calls": dict(sorted(timers.calls.items())),
    }


# --- what the ledger says


def _records(ledger: Path) -> list[Record]:
    reader = LedgerReader(ledger)
    try:
        return list(reader.records(reader.lineages()[-1].id))
    finally:
        reader.close()


def steady(records: Sequence[Record], config: Config, upp: int, warmup: int, periods: int) -> dict[str, Any]:
    """Figures of the steady state, in emulated seconds."""
    scale = config.emulated.time_scale
    asked = {r.value.id: r for r in records if r.direction == "command"}
    ends = {r.value.update: r.now for r in records if isinstance(r.value, e.UpdateFinished)}
    start, end = ends[upp * warmup], ends[upp * (warmup + periods)]
    tokens: dict[int, int] = defaultdict(int)
    for record in records:
        if isinstance(record.value, e.TrajectoryFinished):
            tokens[record.value.group] += record.value.tokens
    dispatches = [r.value for r in records if isinstance(r.value, c.Dispatch)]
    consumed = [d for d in dispatches if upp * warmup < d.update <= upp * (warmup + periods)]
    trained = sum(tokens[group] for d in consumed for group in d.groups)
    seconds, instances = (end - start) * scale, config.rollout.instances
    whole, rows = account(schedule(config), Resume(), ((r.now, r.value) for r in records))
    spent = Tally()
    for row in rows:
        if row.axis == "publish" and warmup < row.step <= warmup + periods:
            spent.add(row.tally)
    loading = _inside(_answered(records, asked, (e.WeightsLive,), c.LoadWeights), start, end)
    moving = _inside(_answered(records, asked, (e.Migrated,), c.Migrate), start, end)
    # One side of a move waits while the other works, so a move takes its length from one instance at a time.
    return {
        "periods": periods,
        "seconds_per_publish": round(seconds / periods, 1),
        "seconds_of_each": [round((ends[upp * (i + 1)] - ends[upp * i]) * scale, 1) for i in range(warmup, warmup + periods)],
        "tokens_per_second": round(trained / seconds, 1),
        "not_training_share": round(1 - spent.trainer.get("train", 0.0) * scale / seconds, 4),
        "loading_share": round(_total(loading) * scale / (seconds * instances), 5),
        "moving_share": round(_total(moving) * scale / (seconds * instances), 5),
        "migrations": sum(bool(r.value.moved) for r in records if isinstance(r.value, e.Migrated)),
        "migrated_trajectories": whole.total.migrated,
        "prefilled_for_migration": whole.total.prefilled,
        "staleness_max": max(spent.staleness, default=0),
        "staleness_mean": round(mean(spent.staleness), 3),
    }


Spans = list[tuple[float, float]]


def _answered(records: Sequence[Record], asked: dict[int, Record], answers: tuple[type, ...], command: type) -> Spans:
    """From the command to its (last) answer, for every command of a kind."""
    last: dict[int, float] = {}
    for record in records:
        if isinstance(record.value, answers) and isinstance(asked[record.value.command].value, command):
            last[record.value.command] = record.now
    return [(asked[number].now, now) for number, now in last.items()]


def _inside(spans: Spans, start: float, end: float) -> Spans:
    return [(max(a, start), min(b, end)) for a, b in spans if b > start and a < end]


def _total(spans: Spans) -> float:
    return sum(b - a for a, b in spans)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--slots", type=int, default=128, help="trajectories decoding per instance")
    parser.add_argument("--kv-tokens", type=int, default=850_000, help="per instance")
    parser.add_argument("--groups", type=int, default=512, help="prompts per publish")
    parser.add_argument("--samples", type=int, default=16, help="per prompt")
    parser.add_argument("--update", type=int, default=32, help="prompts per update")
    parser.add_argument("--window", type=int, default=3, help="versions alive; keep streams with one less of staleness")
    parser.add_argument("--in-flight", type=int, default=0, help="groups in flight of keep and multiversion; 0 = all that the bound admits")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--mean", type=int, default=2400, help="sampled tokens")
    parser.add_argument("--most", type=int, default=30_000, help="sampled tokens")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--jitter", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-scale", type=float, default=20.0, help="emulated seconds per real second")
    parser.add_argument("--warmup", type=int, default=2, help="publish periods before the steady state")
    parser.add_argument("--periods", type=int, default=3, help="publish periods in it")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-scale")
    parser.add_argument("--keep", action="store_true", help="leave the run directories there")
    parser.add_argument("--name", default="scale", help="of the evidence")
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Run every schedule in turn; ratios are to `serial` on the same instances and trainer, and to `colocated`."""
    costs, figures["calibration"] = calibrated(args)
    figures["setting"] = {key: value for key, value in vars(args).items() if key not in ("runs", "keep", "name")}
    figures["schedules"] = found = {}
    for name in args.schedules:
        found[name] = once(name, load(None, overrides(name, args, costs)), args)
        print(name, found[name], flush=True)
    for baseline in ("serial", "colocated"):
        if baseline in found:
            base = found[baseline]["tokens_per_second"]
            figures[f"throughput_over_{baseline}"] = {name: round(row["tokens_per_second"] / base, 3) for name, row in found.items()}


def main() -> None:
    args = parse()
    with measured(args.name) as figures:
        measure(args, figures)


if __name__ == "__main__":
    main()
