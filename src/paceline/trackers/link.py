"""What a tracker of a service is opened with."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIVEN_UP = threading.Event()
"""Set when a service did not close at the end of a run: at the exit of the interpreter its package may wait for it, without end."""


@dataclass(frozen=True, slots=True)
class Link:
    """Which run of which project a tracker continues. Every lineage of a run has the same one."""

    run: str
    """Id of the run, unique, made once and kept in the run directory."""
    project: str
    name: str
    """Shown by the service."""
    directory: Path
    """For what the tracker keeps on this machine; exists."""
    config: Mapping[str, Any]
    """The resolved configuration, shown by services that can."""
    offline: bool = False
    server: str = ""
    """Address of the service; empty = its own default, or none."""
