"""What one sees when something fails: each failure made for real on a tiny random model; what `train` and `doctor` print, verbatim.

The evidence is what was printed (the place of the run left out, nothing else). The guide docs/guides/when-it-fails.md quotes it between
`<!-- quote NAME -->` and `<!-- end quote -->`; this script writes the quotes anew, and a test holds the guide to the evidence.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evidence import ROOT, measured

GUIDE = ROOT / "docs" / "guides" / "when-it-fails.md"
EVIDENCE = ROOT / "docs" / "evidence" / "quotes.json"
QUOTE = re.compile(r"(<!-- quote (\w+) -->\n).*?(<!-- end quote -->)", re.DOTALL)
HANGING = re.compile(r"  rewards: group .* for ([6-9]|[0-9]{2})\.[0-9] s")
"""So long that the timer has ticked since, and the ledger has what came before."""
CONFIG = """
[run]
dir = "RUN"
updates = 6
checkpoint_every = 1

[model]
path = "model"

[task]
kind = "file"
path = "rows.jsonl"
gold_column = "answer"
shuffle = false

[[reward]]
kind = "function"
function = "reward.py:solved"

[rollout]
slots = 8
max_prompt_tokens = 100
max_tokens = 6

[schedule]
group_size = 4
groups_per_update = 2

[trainer]
warmup_updates = 0

[pool]
rollout_threads = 1
trainer_threads = 1
"""
REWARD = """
import ctypes
import os
import time


def solved(completions, gold, **columns):
    FAULTS.get(gold[0], lambda: None)()
    return [float(len(text) % 3 == 0) for text in completions]


def hangs():
    time.sleep(3600)


def raises():
    raise ValueError("the sandbox answered with status 502")


def crashes():
    ctypes.string_at(0)


def fills_the_disk():
    disk = os.open("disk/others", os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 1 << 12):
        try:
            while os.write(disk, bytes(size)):
                pass
        except OSError:
            continue


FAULTS = {"hangs": hangs, "raises": raises, "crashes": crashes, "fills": fills_the_disk}
"""
BAD_ROW = 3
PATIENCE_S = 120.0

Step = dict[str, Any]
"""`command` as a user types it, its `exit` code, and `output`: the lines that it printed, both streams as they came."""


class Place:
    """A directory with a model, rows, a reward and a configuration. `fault`: the gold of one row, which makes the reward fail so."""

    def __init__(self, root: Path, model: Path, fault: str = "14") -> None:
        self.root = root
        root.mkdir()
        shutil.copytree(model, root / "model")
        rows = [{"prompt": f"What is 10 + {i}?", "answer": str(10 + i)} for i in range(8)]
        rows[BAD_ROW]["answer"] = fault
        (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (root / "reward.py").write_text(REWARD.lstrip())
        (root / "run.toml").write_text(CONFIG.lstrip())
        paths = os.pathsep.join(entry for entry in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if entry)
        self.environment = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`paceline WORDS`, running."""
        command = [sys.executable, "-m", "paceline.cli.main", *words]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.root, env=self.environment
        )  # fmt: skip

    def run(self, *words: str) -> Step:
        """`paceline WORDS`, to its end."""
        return self.ended(self.start(*words), words)

    def ended(self, process: subprocess.Popen[str], words: Sequence[str], before: str = "") -> Step:
        """The end of a command of which `before` was read already."""
        assert process.stdout is not None
        patience = threading.Timer(PATIENCE_S, process.kill)
        patience.start()
        output = process.stdout.read()
        code = process.wait()
        patience.cancel()
        return self.step(words, code, before + output)

    def step(self, words: Sequence[str], code: int, output: str) -> Step:
        """A step as the evidence has it; a shell's exit code for a signal."""
        for place in (f"{self.root.resolve()}/", f"{self.root}/", f"{ROOT}/"):
            output = output.replace(place, "")
        return {"command": " ".join(["paceline", *words]), "exit": code if code >= 0 else 128 - code, "output": output.splitlines()}

    def until(self, process: subprocess.Popen[str], words: str) -> str:
        """Read what a command prints up to the line that begins with `words`."""
        assert process.stdout is not None
        read = ""
        for line in process.stdout:
            read += line
            if line.startswith(words):
                return read
        raise AssertionError(f"it never said {words!r}:\n{read}")

    def worker(self, name: str) -> int:
        """The process that writes a worker's log."""
        log = str((self.root / "RUN" / "logs" / f"{name}.log").resolve())
        for descriptor in Path("/proc").glob("[0-9]*/fd/1"):
            with suppress(OSError):
                if os.readlink(descriptor) == log:
                    return int(descriptor.parts[2])
        raise AssertionError(f"worker {name} is not there")


def hang(place: Place) -> Iterator[Step]:
    """A reward that never returns: looked at while it hangs, and after its deadline."""
    words = ("train", "run.toml", "reward.0.timeout_s=30")
    train = place.start(*words)
    seen = place.run("doctor", "RUN")
    while train.poll() is None and not any(HANGING.match(line) for line in seen["output"]):
        time.sleep(0.5)
        seen = place.run("doctor", "RUN")
    yield seen
    yield place.ended(train, words)
    yield place.run("doctor", "RUN")


def plain(place: Place) -> Iterator[Step]:
    """Whatever the place makes fail."""
    yield place.run("train", "run.toml")
    yield place.run("doctor", "RUN")


def column(place: Place) -> Iterator[Step]:
    """A column that the file does not have."""
    yield place.run("train", "run.toml", "task.gold_column=gold")
    yield place.run("doctor", "RUN")


def disk(place: Place) -> Iterator[Step]:
    """A disk of its own, mounted for these commands alone, that somebody else fills while the run trains."""
    words = ("train", "run.toml", "run.dir=disk/RUN"), ("doctor", "disk/RUN")
    shell = "mount -t tmpfs -o size=128m tmpfs disk"
    for number, step in enumerate(words):
        shell += f"; {sys.executable} -m paceline.cli.main {' '.join(step)} >out-{number} 2>&1; echo $? >code-{number}"
    (place.root / "disk").mkdir()
    subprocess.run(["unshare", "--map-root-user", "--mount", "sh", "-c", shell], cwd=place.root, env=place.environment, check=True)
    for number, step in enumerate(words):
        yield place.step(step, int((place.root / f"code-{number}").read_text()), (place.root / f"out-{number}").read_text())


def killed_trainer(place: Place) -> Iterator[Step]:
    """`kill -9` of the trainer's process after the second update."""
    train = place.start("train", "run.toml", "run.updates=5")
    read = place.until(train, "update 2/")
    os.kill(place.worker("trainer"), signal.SIGKILL)
    yield place.ended(train, ("train", "run.toml", "run.updates=5"), read)
    yield place.run("doctor", "RUN")


def killed(place: Place) -> Iterator[Step]:
    """`kill -9` of the whole run after the second update, and how it goes on."""
    train = place.start("train", "run.toml", "run.updates=5")
    read = place.until(train, "update 2/")
    train.kill()
    yield place.ended(train, ("train", "run.toml", "run.updates=5"), read)
    yield place.run("doctor", "RUN")
    yield place.run("train", "RUN/config.toml", "--resume")


FAILURES: dict[str, tuple[str, str, Callable[[Place], Iterator[Step]]]] = {
    "hang": ("a reward that never returns", "hangs", hang),
    "raise": ("a reward that raises", "raises", plain),
    "crash": ("a reward whose process dies (a fault in native code)", "crashes", plain),
    "disk": ("a full disk", "fills", disk),
    "column": ("a column that the file lacks", "", column),
    "trainer": ("a trainer that is killed", "", killed_trainer),
    "killed": ("a run that is killed", "", killed),
}
"""What is made to fail, by its name in the evidence: in words, the fault of the reward, and how it is watched."""


def quoted(figures: Mapping[str, Any], name: str) -> str:
    """The steps of one failure as a text block."""
    lines = []
    for step in figures[name]["steps"]:
        lines += [f"$ {step['command']}", *step["output"], f"[exit code {step['exit']}]", ""]
    return "```text\n" + "\n".join(lines[:-1]) + "\n```\n"


def inserted(text: str, figures: Mapping[str, Any]) -> str:
    """A guide with the quotes that it names as the evidence has them."""
    return QUOTE.sub(lambda match: match[1] + quoted(figures, match[2]) + match[3], text)


def main() -> None:
    """Make the failures, write the evidence and the quotes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAILURES, help="print these, and write nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        model = Path(home) / "model"
        tiny = f"from paceline.models.tiny import write_tiny; from pathlib import Path; write_tiny(Path({str(model)!r}))"
        subprocess.run([sys.executable, "-c", tiny], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
        if arguments.only:
            found = made(Path(home), model, arguments.only)
            print("\n".join(quoted(found, name) for name in arguments.only))
            return
        with measured("quotes") as figures:
            figures |= made(Path(home), model, list(FAILURES))
    GUIDE.write_text(inserted(GUIDE.read_text(), figures))


def made(home: Path, model: Path, names: Sequence[str]) -> dict[str, Any]:
    """What was printed, by failure."""
    figures = {}
    for name in names:
        what, fault, watch = FAILURES[name]
        place = Place(home / name, model, *([fault] if fault else []))
        figures[name] = {"what": what, "steps": list(watch(place))}
    return figures


if __name__ == "__main__":
    main()
