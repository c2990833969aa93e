"""Random kills of a run's processes, and whether anything was lost or repeated: 200 on a tiny model, some on the real one.

A game is one run that is killed several times on its way: SIGKILL to the controller, an engine, the trainer or a reward worker, in turn
by a shuffled deck, at a random moment. Half of the moments are uniform over the time that the run takes without kills, the others are
aimed at what is short: while a checkpoint or a version of the weights is written, and in multiversion while trajectories move. A run that
ended is continued with `paceline train --resume`, one that replaced its worker goes on. At its end it is checked:

    audit     `paceline audit` finds nothing
    once      over the lineages that the run goes back to, every prompt of the data order reached one terminal state: lost 0, repeated 0
    payloads  the trajectories of every surviving dispatch lie on disk, its groups and no others
    rows      metrics.jsonl has every update once; the last checkpoint and the model are those of the last update
    bits      serial and pipelined run in deterministic mode: trainer state and model equal those of a run without kills, bit for bit

`seconds` is the time from the last kill of a game, which no other one follows, to the first end of a trajectory that was admitted after it
and belongs to the run as it stands. A kill counts when the process that it was meant for was there to be killed; a campaign goes on until
that many counted.
Usage: python benchmarks/crash.py [--tiny 200] [--real 5] [--emulated 0] [--kills 5] [--seed 0] [--presets serial ...] [--runs DIR]
One line per finished game goes to DIR/games.jsonl; the same command continues it, and the evidence names every commit that games were
played with. Runs that fail a check stay in DIR, with what is needed to play them again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from evidence import commit, measured
from paceline.core.commands import Admit, Checkpoint, Dispatch, Terminal
from paceline.core.events import TrajectoryFinished
from paceline.durable import append_line
from paceline.models.tiny import write_tiny
from paceline.report.lives import lives_of
from paceline.runtime.audit import audit
from paceline.runtime.ledger import LedgerReader, Record
from paceline.runtime.rundir import RunDir, read_origin
from paceline.trackers.jsonl import read as read_metrics
from paceline.types.errors import PacelineError

MODELS = ("emulated", "tiny", "real")
WHO = ("controller", "engine", "trainer", "reward")
STEP_S = 0.001
"""Between two looks at what a run does."""
PATIENCE_S = 300.0
"""A run that is not over after this many seconds hangs."""
GAMES = 3
"""A campaign is given up after so many times as many games as its kills need where none misses."""
ENOUGH = 2 * len(WHO)
"""Kills in a schedule of which each kind of worker must have had one."""
PLACES = {"checkpoint": ("checkpoints", ".step-*"), "publish": ("weights", ".version-*"), "move": ("moves", "move-*")}
"""What lies in the run directory while something is under way."""
COMMON = """
[run]
checkpoint_every = 2
[pool]
rollout_threads = 1
trainer_threads = 1
trainer_restarts = 20
[rollout]
slots = 16
max_prompt_tokens = 100
"""
TASK = """
[task]
kind = "file"
path = "{root}/rows.jsonl"
gold_column = "answer"
[[reward]]
kind = "function"
function = "{root}/reward.py:length"
"""
TINY = """
max_tokens = 64
[model]
path = "{root}/model"
dtype = "bfloat16"
[schedule]
group_size = 4
groups_per_update = 4
[trainer]
learning_rate = 1e-3
warmup_updates = 0
"""
EMULATED = """
engine = "emulated"
max_tokens = 800
[task]
kind = "synthetic"
size = 40
[schedule]
group_size = 4
groups_per_update = 4
[emulated]
time_scale = 20.0
mean_tokens = 100.0
"""
REAL = """
max_tokens = 24
[model]
path = "smollm2-135m"
[schedule]
group_size = 4
groups_per_update = 2
"""
REWARD = """
def length(completions, gold, **columns):
    return [float(len(text) % 3 == 0) for text in completions]
"""
PRESETS: dict[str, tuple[str, ...]] = {
    "serial": ("run.deterministic=true",),
    "pipelined": ("run.deterministic=true", "schedule.groups_per_dispatch=1", "schedule.frontier=2"),
    "streaming": ("schedule.at_publish=keep", "schedule.groups_per_dispatch=1"),
    "multiversion": ("rollout.instances=2", "rollout.slots=8", "schedule.rebalance_s=0.2"),
}
"""What makes a preset of the common settings; one engine where one shows everything."""


# --- the run as it stands


def standing(reader: LedgerReader) -> Iterator[tuple[int, float, Record]]:
    """(lineage, when it began in seconds since the epoch, record): every life up to the checkpoint that the next one restored."""
    lives = lives_of(reader)
    for life, following in zip(lives, [*lives[1:], None], strict=True):
        records = list(reader.records(life.lineage.id))
        if following is not None:
            restored = following.lineage.resume
            saved = [i for i, r in enumerate(records) if isinstance(r.value, Checkpoint) and r.value.resume == restored]
            records = records[: saved[-1] + 1] if saved else []  # nothing: it went on from the beginning
        began = datetime.fromisoformat(life.lineage.started).timestamp()
        yield from ((life.lineage.id, began, record) for record in records)


def repeated_or_lost(run: Path, updates: int) -> list[str]:
    """Rule 1 counted anew, without the folds of the audit: each requested prompt terminal once, each update done once."""
    ends, stepped, last = Counter[int](), [], None
    with closing(LedgerReader(run / "ledger.sqlite")) as reader:
        for _, _, record in standing(reader):
            if isinstance(record.value, Terminal):
                ends[record.value.group] += 1
            elif isinstance(record.value, Dispatch) and record.value.step:
                stepped.append(record.value.update)
            elif isinstance(record.value, Checkpoint):
                last = record.value
    if last is None:
        return ["the run ended without a checkpoint"]
    owed = set(range(last.next_index)) - set(last.pending)
    faults = [f"lost: group {group} has no terminal state" for group in sorted(owed - set(ends))]
    faults += [f"repeated: group {group} ended {ends[group]} times" for group in sorted(ends) if ends[group] > 1]
    faults += [f"group {group} ended, and the last checkpoint calls it pending or unseen" for group in sorted(set(ends) - owed)]
    if stepped != list(range(1, updates + 1)) or last.update != updates:
        faults.append(f"updates {stepped} were made, and the last checkpoint holds {last.update}; {updates} were asked for")
    return faults


def payloads(run: Path, group_size: int) -> list[str]:
    """Whether the trajectories of every surviving dispatch lie on disk."""
    faults = []
    with closing(LedgerReader(run / "ledger.sqlite")) as reader:
        dispatches = [(lineage, record.value) for lineage, _, record in standing(reader) if isinstance(record.value, Dispatch)]
    for lineage, dispatch in dispatches:
        if not dispatch.groups:
            continue
        file = run / "trajectories" / f"{lineage:03d}-update-{dispatch.update:06d}-{dispatch.id}.parquet"
        found = Counter(pq.read_table(file, columns=["group"]).column("group").to_pylist()) if file.is_file() else {}
        if found != dict.fromkeys(dispatch.groups, group_size):
            faults.append(f"{file.name} holds {dict(found)} for groups {dispatch.groups}")
    return faults


def rows(run: Path, updates: int) -> list[str]:
    """Whether metrics, checkpoint and model are those of the whole run."""
    steps = [row["step"] for row in read_metrics(run / "metrics.jsonl") if row["axis"] == "update"]
    faults = [] if steps == list(range(1, updates + 1)) else [f"metrics.jsonl has updates {steps}"]
    latest, model = RunDir(run).latest_checkpoint(), read_origin(run / "model").update
    if latest is None or latest.name != f"step-{updates}" or model != updates:
        faults.append(f"the last checkpoint is {latest}, the model that of update {model}")
    return faults


def bits(run: Path, updates: int) -> dict[str, str]:
    """Fingerprints of trainer state and model at the end."""
    last = run / "checkpoints" / f"step-{updates}"
    files = (last / "master.safetensors", last / "optimizer.safetensors", run / "model" / "model.safetensors")
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def useful(run: Path, moment: float) -> float | None:
    """Seconds from a moment (since the epoch) to the first end of a trajectory that was admitted after it and counts."""
    admitted: dict[tuple[int, int], float] = {}
    ends: list[float] = []
    with closing(LedgerReader(run / "ledger.sqlite")) as reader:
        for lineage, began, record in standing(reader):
            if isinstance(record.value, Admit):
                admitted[lineage, record.value.id] = began + record.now
            elif isinstance(record.value, TrajectoryFinished) and admitted[lineage, record.value.command] > moment:
                ends.append(began + record.now)
    return round(min(ends) - moment, 3) if ends else None


# --- processes


@dataclass
class Process:
    """One controller of a run, and its children by name."""

    run: Path
    words: Sequence[str]
    log: Path

    def __post_init__(self) -> None:
        resume = ["--resume"] if (self.run / "ledger.sqlite").exists() else []
        command = [sys.executable, "-m", "paceline.cli.main", "train", *self.words, f"run.dir={self.run}", *resume]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with self.log.open("ab") as log:
            self.began = log.tell()
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Its exit code in the end. TimeoutExpired when it hangs."""
        return self._process.wait(PATIENCE_S)

    def said(self) -> str:
        """What it printed."""
        with self.log.open("rb") as log:
            log.seek(self.began)
            return log.read().decode(errors="replace")

    def end(self) -> None:
        """Leave nothing behind: workers die with their controller."""
        self._process.kill()
        self._process.wait()

    def victim(self, who: str, rng: random.Random) -> int | None:
        """The process id of one of this kind, if there is one."""
        if who == "controller":
            return self._process.pid
        prefix = {"engine": "rollout-", "trainer": "trainer", "reward": "reward-"}[who]
        found = sorted((name, pid) for name, pid in self._workers() if name.startswith(prefix))
        return rng.choice(found)[1] if found else None

    def _workers(self) -> Iterator[tuple[str, int]]:
        """What runs as its child and writes a log of the run."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                log = Path(os.readlink(process / "fd" / "1"))
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended meanwhile
                continue
            if log.parent == self.run / "logs" and parent == self._process.pid:
                yield log.stem, int(process.name)


# --- games


@dataclass
class Kill:
    """One kill: planned, then done."""

    who: str
    aim: str
    """`time`, or what should be under way."""
    after: float
    """Seconds after the start of the process or the kill before: the moment, or from when on what is aimed at is waited for."""
    delay: float = 0.0
    """Seconds after that has begun."""
    hit: str = ""
    """What was under way; empty: the run had ended before."""
    moment: float = 0.0
    """Seconds since the epoch."""
    seconds: float | None = None
    """To the next answer, of the last kill of a game; None of the others, and where no answer was wanted any more."""


@dataclass
class Game:
    """A run to be killed."""

    key: str
    preset: str
    words: list[str]
    updates: int
    group_size: int
    seed: str
    kills: list[Kill]
    exits: list[str] = field(default_factory=list)
    """How its processes ended before the end of the run, but for kills of the controller: a worker was killed before all were up."""
    faults: list[str] = field(default_factory=list)
    equal: bool | None = None
    """Bit for bit, where that is promised."""
    seconds: float = 0.0
    """From the first start to the end of the checks."""
    commit: str = ""


def planned(preset: str, number: int, kills: int, seed: int, seconds: float) -> list[Kill]:
    """The kills of a preset's n-th game. `seconds`: what a run takes without kills."""
    rng = random.Random(f"{seed} {preset}")
    aims = ["time", "time", "checkpoint", "publish", *(["time", "move"] if preset == "multiversion" else [])]
    deck: list[str] = []
    while len(deck) < (number + 1) * kills:
        deck += rng.sample(WHO, len(WHO))
    rng = random.Random(f"{seed} {preset} {number}")
    moments = sorted(rng.uniform(0, seconds) for _ in range(kills))
    gaps = [moment - before for before, moment in zip([0.0, *moments], moments, strict=False)]
    found = []
    for who, gap in zip(deck[number * kills :][:kills], gaps, strict=True):
        aim = rng.choice(aims)
        found.append(Kill(who, aim, gap, 0.0 if aim == "time" else rng.uniform(0, 0.02)))
    return found


def play(game: Game, run: Path, reference: Mapping[str, str] | None, seconds: float) -> Game:
    """Kill a run as planned, bring it to its end, and check it. `reference`: `bits` of a run without kills, where they must be equal."""
    rng, log, began = random.Random(game.seed), run.with_suffix(".log"), time.monotonic()
    process = Process(run, game.words, log)
    try:
        for kill in game.kills:
            late = time.monotonic() + PATIENCE_S
            while not kill.hit and process.code() != 0:  # it may end meanwhile, by the kill before
                process = _alive(game, process)
                _strike(kill, process, run, rng, seconds)
                if time.monotonic() > late:
                    raise RuntimeError(f"hangs: nothing to kill in {PATIENCE_S:g} s")
            if kill.hit and kill.who == "controller":
                if process.wait() != -signal.SIGKILL:
                    kill.hit = ""  # it was gone, and nobody had asked for its exit code yet
                    continue
                process = Process(run, game.words, log)
            if process.code() == 0:
                break
        while process.wait() != 0:
            process = _alive(game, process)
    except subprocess.TimeoutExpired:
        game.faults.append(f"hangs: it was not over after {PATIENCE_S:g} s")
    except RuntimeError as error:
        game.faults.append(str(error))
    finally:
        process.end()
    if not game.faults:
        try:
            _check(game, run, reference)
        except (PacelineError, OSError) as error:
            game.faults.append(f"cannot be checked: {error}")
    game.seconds = round(time.monotonic() - began, 1)
    return game


def _alive(game: Game, process: Process) -> Process:
    """The process, or its successor. One may end early where a kill explains it, see `explained`."""
    code = process.code()
    if code is None or code == 0:
        return process
    said = process.said()
    if not explained(code, said, _begun(process.run)):
        raise RuntimeError(f"ended with exit code {code}: {said[-2000:]}")
    game.exits.append(f"exit code {code}: {_why(said)}")
    if len(game.exits) > 3 * len(game.kills):
        raise RuntimeError(f"ends again and again: {game.exits[-3:]}")
    return Process(process.run, process.words, process.log)


def explained(code: int, said: str, begun: bool) -> bool:
    """Whether a killed worker ends a run rightly: before all workers were up for the first time, or where two were killed over the answers
    of one group. begun: whether the life that ended had decided anything.

    The error that ended it decides: that a worker was lost is printed too when it was replaced, and any error may follow.
    """
    why, begun = _why(said), begun or "replaced and the run goes on" in said
    return code == 1 and "signal SIGKILL" in why and (not begun or "two workers ended over it" in why)


def _why(said: str) -> str:
    """The error that ended a run, as it was printed; "" where none was."""
    return next((line for line in reversed(said.splitlines()) if line.startswith("failed")), "")


def _begun(run: Path) -> bool:
    """Whether the last lineage of a run has decided anything."""
    if not (run / "ledger.sqlite").exists():
        return False
    with closing(LedgerReader(run / "ledger.sqlite")) as reader:
        lineages = reader.lineages()
        return bool(lineages) and next(reader.records(lineages[-1].id), None) is not None


def _strike(kill: Kill, process: Process, run: Path, rng: random.Random, seconds: float) -> None:
    """Wait for the moment, and kill; what does not begin in `seconds` is waited for no longer. Nothing happens when the run ends before."""
    _wait(process, kill.after, lambda: False)
    hit = "time"
    if kill.aim in PLACES and _wait(process, seconds, lambda: _under_way(run, *PLACES[kill.aim])):
        hit = kill.aim
        time.sleep(kill.delay)
    until = time.monotonic() + seconds
    while process.code() is None and time.monotonic() < until:
        pid = process.victim(kill.who, rng)
        if pid is not None:
            kill.moment = time.time()
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
                kill.hit = hit
                return
        time.sleep(20 * STEP_S)  # it is being started


def _wait(process: Process, seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition came true within so many seconds, and before the process ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.code() is None:
        if condition():
            return True
        time.sleep(STEP_S)
    return False


def _under_way(run: Path, directory: str, pattern: str) -> bool:
    try:
        return any(fnmatch(name, pattern) for name in os.listdir(run / directory))
    except OSError:  # it is being emptied
        return False


def _check(game: Game, run: Path, reference: Mapping[str, str] | None) -> None:
    game.faults += [f"audit: {violation}" for violation in audit(run / "ledger.sqlite").violations]
    game.faults += repeated_or_lost(run, game.updates) + payloads(run, game.group_size) + rows(run, game.updates)
    if reference is not None:
        found = bits(run, game.updates)
        game.equal = found == reference
        game.faults += [f"{name} differs from that of a run without kills" for name in found if found[name] != reference[name]]
    for kill in [kill for kill in game.kills if kill.hit][-1:]:
        kill.seconds = useful(run, kill.moment)


def prepare(root: Path) -> None:
    """What the runs are made of."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "model").exists():
        write_tiny(root / "model")
    (root / "reward.py").write_text(REWARD)
    (root / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"say hello {i}", "answer": str(i)}) for i in range(40)))
    for name, settings in (("tiny", TINY + TASK), ("emulated", EMULATED), ("real", REAL + TASK)):
        (root / f"{name}.toml").write_text((COMMON + settings).format(root=root))


def reference_of(root: Path, model: str, preset: str, words: Sequence[str], updates: int) -> tuple[float, dict[str, str] | None]:
    """Seconds of a run without kills, and its bits where they are promised."""
    run = root / f"{model}-{preset}-without-kills"
    shutil.rmtree(run, ignore_errors=True)
    began = time.monotonic()
    process = Process(run, words, run.with_suffix(".log"))
    try:
        if process.wait() != 0:
            raise SystemExit(f"a run without kills failed:\n{process.said()[-4000:]}")
    finally:
        process.end()
    seconds = time.monotonic() - began
    found = bits(run, updates) if "run.deterministic=true" in words else None
    shutil.rmtree(run)
    return seconds, found


# --- the campaign


def campaign(args: argparse.Namespace) -> dict[str, Any]:
    """Play what is not in the file yet; figures over all games."""
    root = args.runs.resolve()
    prepare(root)
    file = root / "games.jsonl"
    played = {line["key"]: line for line in _lines(file)}
    models = (
        ("emulated", args.emulated, args.kills, args.updates),
        ("tiny", args.tiny, args.kills, args.updates),
        ("real", args.real, 1, args.real_updates),
    )
    for model, total, kills, updates in models:
        done = number = 0
        while done < total and number < GAMES * -(-total // kills):
            preset = args.presets[number % len(args.presets)]
            turn, number = number // len(args.presets), number + 1
            words = [str(root / f"{model}.toml"), f"schedule.preset={preset}", f"run.updates={updates}", *PRESETS[preset]]
            if model != "tiny":
                words = [word for word in words if word != "run.deterministic=true"]
            without = f"{model} {preset} without kills, {updates} updates"
            if without not in played:
                seconds, found = reference_of(root, model, preset, words, updates)
                _keep(file, played, {"key": without, "seconds": seconds, "bits": found})
            seconds, found = played[without]["seconds"], played[without]["bits"]
            key = f"{model} {preset} {turn}, seed {args.seed}, {kills} kills, {updates} updates"
            if key in played:
                done += _hits(played[key])
                continue
            plan = planned(preset, turn, kills, args.seed, seconds)
            run = root / f"{model}-{preset}-{args.seed}-{turn}"
            shutil.rmtree(run, ignore_errors=True)
            run.with_suffix(".log").unlink(missing_ok=True)
            game = Game(key, preset, words, updates, 4, f"{args.seed} {preset} {turn}", plan, commit=commit())
            play(game, run, found, seconds)
            print(f"{key}: {'; '.join(game.faults) or 'well'}", flush=True)
            if game.faults:
                print(f"  run: {run}\n  kills: {[asdict(kill) for kill in game.kills]}\n  exits: {game.exits}", flush=True)
            else:
                shutil.rmtree(run)
            _keep(file, played, asdict(game))
            done += _hits(played[key])
    return figures([line for line in played.values() if "kills" in line])


def _hits(game: Mapping[str, Any]) -> int:
    """Kills that were done."""
    return sum(bool(kill["hit"]) for kill in game["kills"])


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """What was played before; a line that was cut short is a game to be played again."""
    for line in file.read_text().splitlines() if file.exists() else ():
        with suppress(ValueError):
            yield json.loads(line)


def _keep(file: Path, played: dict[str, Any], line: dict[str, Any]) -> None:
    played[line["key"]] = line
    append_line(file, json.dumps(line).encode())


def figures(games: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the games say, for each model."""
    return {model: _figures([game for game in games if game["key"].startswith(model)]) for model in MODELS}


def _figures(games: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kills = [(game["preset"], kill) for game in games for kill in game["kills"] if kill["hit"]]
    faults = [fault for game in games for fault in game["faults"]]
    seconds: dict[str, list[float]] = defaultdict(list)
    for _, kill in kills:
        if kill["seconds"] is not None:
            seconds[kill["who"]].append(kill["seconds"])
    return {
        "games": len(games),
        "minutes": round(sum(game.get("seconds", 0.0) for game in games) / 60, 1),
        "commits": sorted({game.get("commit", "unknown") for game in games}),
        "kills": len(kills),
        "kills_by_worker_and_schedule": _counted(f"{kill['who']}, {preset}" for preset, kill in kills),
        "kills_by_aim": _counted(kill["hit"] for _, kill in kills),
        "lost": sum(fault.startswith("lost") for fault in faults),
        "repeated": sum(fault.startswith("repeated") for fault in faults),
        "audit_violations": sum(fault.startswith("audit") for fault in faults),
        "games_with_a_fault": sum(bool(game["faults"]) for game in games),
        "ended_early_and_resumed": sum(len(game["exits"]) for game in games),
        "compared_bit_for_bit": sum(game["equal"] is not None for game in games),
        "equal_bit_for_bit": sum(bool(game["equal"]) for game in games),
        "seconds_to_the_next_answer": {who: _spread(seconds[who]) for who in WHO if seconds[who]},
        "faults": [{"game": game["key"], "faults": game["faults"]} for game in games if game["faults"]],
    }


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": round(statistics.median(ordered), 2), "max": round(ordered[-1], 2), "kills": len(ordered)}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", type=int, default=200, help="kills on the tiny model")
    parser.add_argument("--emulated", type=int, default=0, help="kills with the emulated engine, whose processes start without torch")
    parser.add_argument("--kills", type=int, default=5, help="in a game; 1 on the real model")
    parser.add_argument("--real", type=int, default=5, help="kills on the real model")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--real-updates", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--runs", type=Path, default=Path("runs/crash"))
    return parser.parse_args(arguments)


def main() -> int:
    """Play, write the evidence, and fail if a game did, or kills or a kind of them are missing."""
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run under way ends with it
    with measured("crash") as found:
        found |= campaign(args)
    missing = [f"{model}: {found[model]['kills']} kills" for model in MODELS if found[model]["kills"] < getattr(args, model)]
    missing += unseen(found["tiny"]["kills_by_worker_and_schedule"], args.presets) if args.tiny >= ENOUGH * len(args.presets) else []
    print("\n".join(f"missing: {what}" for what in missing))
    return 1 if missing or any(found[model]["games_with_a_fault"] for model in MODELS) else 0


def unseen(counted: Mapping[str, int], presets: Sequence[str]) -> list[str]:
    """Pairs of worker and schedule of which none was killed: others may have made up the number."""
    return [f"{who}, {preset}" for preset in presets for who in WHO if not counted.get(f"{who}, {preset}")]


if __name__ == "__main__":
    sys.exit(main())
