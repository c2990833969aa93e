"""How the code is written: numbers of core and edges, import contracts, and the wall time of each tier of tests.

The style numbers come from a tool outside the repository and are left out, with the reason, where it or radon is missing.
Usage: python benchmarks/style.py [--tool measure_style.py] [--tier DIR ...]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evidence import ROOT, measured

PACKAGE = ROOT / "src" / "paceline"
CORE = ("types", "core", "algo", "ports", "config")
TIERS = sorted(path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py")))


def style(tool: Path) -> dict[str, Any] | str:
    """Numbers of the core packages and of all others, or why there are none."""
    if not tool.is_file():
        return f"not measured: {tool.name} is not there"
    if importlib.util.find_spec("radon") is None:
        return "not measured: radon is not installed"
    edges = [path.name for path in sorted(PACKAGE.iterdir()) if (path / "__init__.py").is_file() and path.name not in CORE]
    parts = {name: ",".join(f"src/paceline/{part}" for part in names) for name, names in (("core", CORE), ("edges", edges))}
    command = [sys.executable, str(tool), *(f"{name}={paths}" for name, paths in parts.items())]
    found: dict[str, Any] = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    return found


def contracts() -> dict[str, Any]:
    """Exit code and verdict of import-linter."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {"exit_code": done.returncode, "verdict": next((line for line in done.stdout.splitlines() if line.startswith("Contracts:")), "")}


def tier(name: str) -> dict[str, Any]:
    """Wall time of one directory of tests, interpreter start included, and its last line."""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pytest", f"tests/{name}"], cwd=ROOT, capture_output=True, text=True, check=False)
    row = {"seconds": round(time.monotonic() - start, 1), "exit_code": done.returncode, "result": done.stdout.strip().splitlines()[-1]}
    print(name, row, flush=True)
    return row


def main() -> None:
    """Measure, write the evidence; exit 1 when a contract is broken or a tier fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", type=Path, default=ROOT.parent / "shared" / "tools" / "measure_style.py")
    parser.add_argument("--tier", choices=TIERS, action="append", help="only these directories of tests")
    arguments = parser.parse_args()
    with measured("style") as figures:
        figures |= {"style": style(arguments.tool), "contracts": contracts()}
        figures["tiers"] = {name: tier(name) for name in arguments.tier or TIERS}
        figures["seconds_of_all_tiers"] = round(sum(row["seconds"] for row in figures["tiers"].values()), 1)
    raise SystemExit(any(row["exit_code"] for row in (figures["contracts"], *figures["tiers"].values())))


if __name__ == "__main__":
    main()
