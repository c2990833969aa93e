"""Makes the runs over fakes, their worker bodies and the crash benchmark importable, here and in processes that are started from here."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "runtime"), str(TESTS.parent / "benchmarks"), str(Path(__file__).parent)]
