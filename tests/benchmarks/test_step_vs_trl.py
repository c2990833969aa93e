import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import step_vs_trl


def run(seconds: list[float], peak: int) -> dict:
    return {"rows": [{"seconds": s, "generation": s / 4, "training": s / 2} for s in seconds], "peak_pss_bytes": peak}


def test_ratios_compare_the_medians_of_the_runs_that_took_turns() -> None:
    timed = {"trl": [run([9, 12, 30], 1), run([8, 8, 8], 1)], "paceline": [run([3, 4, 5], 1), run([1, 2, 9], 1)]}
    watched = {
        "trl": [run([99], 400), run([99], 700)],
        "paceline": [run([1], 500), run([1], 450)],
        step_vs_trl.OWN: [run([99], 600), run([99], 500)],
    }
    found = step_vs_trl.times(timed)
    assert found["seconds"]["ratio"]["values"] == [3.0, 4.0]
    assert found["training"]["paceline"]["values"] == [2.0, 1.0]
    shares = step_vs_trl.peaks(watched)["paceline_over_trl"]
    assert shares["values"] == pytest.approx([1.25, 0.9]), "of the smaller of TRL's two"


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="proportional set sizes are Linux's")
def test_the_memory_of_a_side_is_that_of_all_its_processes() -> None:
    hold = "x = b'1' * 50_000_000; input()"
    nested = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {hold!r}], stdin=sys.stdin); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE)
    try:
        least = 0
        for _ in range(200):
            least = max(least, sum(step_vs_trl.pss(process.pid).values()))
            if least > 50_000_000:
                break
            subprocess.run([sys.executable, "-c", ""], check=True)
        assert least > 50_000_000
    finally:
        process.communicate(b"\n")
