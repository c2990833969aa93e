"""The light layers and the command line do not load torch; looked at in a fresh interpreter."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pyarrow", "reasoning_gym")


@pytest.mark.parametrize(
    "module",
    [
        *("paceline", "paceline.types.records", "paceline.config.load", "paceline.core.machine", "paceline.sim.driver"),
        *("paceline.cli.main", "paceline.cli.emulated", "paceline.runtime.worker", "paceline.rewards.worker"),
    ],
)
def test_importing_a_light_module_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
