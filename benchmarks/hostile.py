"""64 hostile answers in one batch: what they cost, and whether the next normal batch is right.

    python benchmarks/hostile.py [--deadline 0.5] [--workers 2] [--repeats 3]

Every answer is meant to hang or to exhaust the comparison: towers of powers, giant factorials and binomials, deep nesting, a megabyte of
text, code. Asserted: the batch takes at most deadline x ceil(64 / workers) + 2 s, keeps its length and order, gives every answer 0 with a
reason, and verifiers stay within their memory; the batch of normal answers after it is right. A bench is started beforehand (its start is
measured apart).
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import Counter
from pathlib import Path

from evidence import measured
from paceline.rewards.bench import MEMORY_MIB, Bench
from paceline.rewards.maths import MathVerifier

GOLD = r"\sqrt{2}+x"
HOSTILE = (
    "10^{10^{10}}", "999999999!", "2^{2^{2^{2^{2^{2}}}}}", r"\binom{10^{12}}{10^{11}}", "((((x+1)^{9999}+1)^{9999}+1)^{9999}+1)",
    r"\sin(10^{10^{8}})", r"\sqrt{\sqrt{\sqrt{10^{1000000}+1}}}", "(10^{9})!+x", r"\lfloor 10^{10^{9}}\cdot\pi\rfloor",
    r"7^{7^{7^{7}}}+\sqrt{2}", r"\sqrt{" * 2000 + "2" + "}" * 2000, "{" * 3000, "a" * 1_000_000, "1/" * 900 + "3", "x^" * 25 + "x",
    "__import__('os').system('touch PWNED')",
)  # fmt: skip
NORMAL = ((r"\frac{1}{2}", "0.5", 1.0), (r"\sqrt{8}", r"2\sqrt{2}", 1.0), ("x^2-1", "(x-1)(x+1)", 1.0), ("(1,2)", "(2,1)", 0.0))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_mib(pid: int) -> float:
    """Resident memory of a process, MiB; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * 4096 / 2**20


class Peak(threading.Thread):
    """The largest resident memory of any verifier of a keeper, looked at twenty times a second."""

    def __init__(self, keeper: int) -> None:
        super().__init__(daemon=True)
        self._keeper, self._over, self.mib = keeper, threading.Event(), 0.0

    def run(self) -> None:
        while not self._over.wait(0.05):
            self.mib = max([self.mib, *(resident_mib(pid) for pid in children(self._keeper))])

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.mib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deadline", type=float, default=0.5, help="seconds per answer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    bench = Bench(arguments.workers)
    start = time.monotonic()
    bench.start()
    started = time.monotonic() - start
    idle = max(resident_mib(pid) for pid in children(bench.pid))
    verifier = MathVerifier(timeout_s=arguments.deadline, bench=bench)
    bound = arguments.deadline * -(-64 // arguments.workers) + 2
    with measured("hostile", arguments.repeats) as figures:
        walls, peaks, reasons = [], [], Counter[str]()
        for _ in range(arguments.repeats):
            peak = Peak(bench.pid)
            peak.start()
            start = time.monotonic()
            scores = verifier.scores([(GOLD, f"\\boxed{{{text}}}") for text in HOSTILE * 4])
            walls.append(time.monotonic() - start)
            peaks.append(peak.stop())
            code = [score.reason for score, text in zip(scores, HOSTILE * 4, strict=True) if text == HOSTILE[-1]]
            assert code == ["unreadable"] * 4, "in the order of the answers"
            assert all(score.value == 0.0 and score.reason for score in scores), "every answer has its 0 and its reason"
            assert walls[-1] <= bound, f"{walls[-1]:.1f} s, at most {bound:.1f}"
            assert peaks[-1] <= idle + MEMORY_MIB, f"{peaks[-1]:.0f} MiB, at most {idle:.0f} + {MEMORY_MIB}"
            normal = MathVerifier(bench=bench).scores([(gold, f"\\boxed{{{answer}}}") for gold, answer, _ in NORMAL])
            assert [score.value for score in normal] == [value for *_, value in NORMAL], "the next normal batch is right"
            reasons.update(score.reason for score in scores)
        figures |= {
            "answers": 64,
            "deadline_s": arguments.deadline,
            "workers": arguments.workers,
            "bound_s": bound,
            "wall_s": [round(wall, 2) for wall in walls],
            "wall_s_median": round(statistics.median(walls), 2),
            "start_s": round(started, 2),
            "peak_resident_mib": round(max(peaks), 1),
            "memory_limit_mib": MEMORY_MIB,
            "reasons_per_batch": {reason: count / arguments.repeats for reason, count in sorted(reasons.items())},
        }
    bench.close()
    assert not Path("PWNED").exists()


if __name__ == "__main__":
    main()
