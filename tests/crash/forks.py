"""Runs over fakes in processes of their own, killed with SIGKILL: `python forks.py ROOT SEED KILLS NAME...` for schedules by name.

This process does nothing but fork and kill, so that a life costs milliseconds. Within each life workers are lost at random, too.
"""

import asyncio
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from runtime_builders import scheduled
from runtime_runs import Lived

from paceline.types.progress import Progress

UPDATES = 12
LIMIT_S = 60.0
SHARE = 0.5
"""A kill comes within this share of the time that an undisturbed run of the same schedule takes here."""


def live(root: Path, name: str, rng: random.Random) -> None:
    """One process of a run, to its end. Its exit code: 0 when the run came to its end."""
    plan = scheduled(name, total_updates=UPDATES, checkpoint_every=2, on_failure="drop_group")  # a judge may be lost twice over one group
    run = Lived(root, plan, resume=(root / "ledger.sqlite").exists(), trainer_restarts=100)

    def watch(progress: Progress) -> None:
        if rng.random() < 0.03:
            worker = run.pool.workers.get(rng.choice(("rollout-0", "rollout-1", "trainer", "reward-0")))
            if worker is not None:
                worker.kill()

    run.watch = watch
    stop = asyncio.run(run.go())
    os._exit(0 if stop.ok else 1)


def play(root: Path, name: str, seed: int, kills: int) -> int:
    """Kill a run up to so often, and let it come to its end; how often it was killed in fact."""
    rng = random.Random(f"{seed} {name}")
    began = time.monotonic()
    if kills:
        play(root.with_name(f"{root.name}-undisturbed"), name, seed, 0)
    most = SHARE * (time.monotonic() - began)
    for number in range(kills + 1):
        child = os.fork()
        if child == 0:
            try:
                live(root, name, random.Random(f"{seed} {name} {number}"))
            except BaseException:  # noqa: BLE001 - the end of this process, whatever it is
                traceback.print_exc()
            finally:
                os._exit(3)
        until = time.monotonic() + (rng.uniform(0, most) if number < kills else LIMIT_S)
        while time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                if code == 0:
                    return number
                sys.exit(f"{name}, seed {seed}: life {number} ended with exit code {code}")
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    sys.exit(f"{name}, seed {seed}: hangs, it was not over after {LIMIT_S:g} s that nobody disturbed")


if __name__ == "__main__":
    home, first, most = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    print(sum(play(home / each, each, first, most) for each in sys.argv[4:]))
