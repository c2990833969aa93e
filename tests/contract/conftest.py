"""Makes the helpers beside the contract tests importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
