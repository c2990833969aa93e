"""A page in a real browser, headless: measurements of what it lays out and does, and pictures of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from html import escape, unescape
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files", "--no-first-run",
    "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
_FRAME = """<!doctype html><meta charset="utf-8"><style>body{{margin:0}}iframe{{border:0;display:block}}</style>
<iframe src="{page}" width="{width}" height="{height}"></iframe><pre id="found"></pre>
<script>
const errors = [], frame = document.querySelector("iframe");
frame.contentWindow.addEventListener("error", (event) => errors.push(String(event.message)));
frame.addEventListener("load", async () => {{
  const window = frame.contentWindow, document = frame.contentDocument;
  let value = null;
  try {{ value = await (async () => {{ {script} }})(); }} catch (error) {{ errors.push(String(error)); }}
  self.document.getElementById("found").textContent = JSON.stringify({{ value, errors }});
}});
</script>"""


def find() -> str | None:
    """The browser's command; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Browser:
    """Opens pages in frames of a given size, so that a phone's width is possible: a window of its own is never so narrow."""

    def __init__(self, command: str, timeout_s: float = 120.0) -> None:
        self._command = command
        self._timeout_s = timeout_s

    def ask(self, page: Path, script: str, width: int = 1280, height: int = 900, *, measures: bool = False) -> Any:
        """What `script`, the body of an async function that sees the page's `window` and `document`, returns. AssertionError for errors.

        measures: the script reads clocks and waits for nothing. Otherwise time is virtual, and leaps over waits.
        """
        clock = [] if measures else ["--virtual-time-budget=20000"]
        with tempfile.TemporaryDirectory() as home:
            frame = self._frame(Path(home), page, width, height, script)
            out = self._run(Path(home), ["--dump-dom", *clock, f"--window-size={max(width, 500)},{height}"], frame)
        match = re.search(r'<pre id="found">(.*?)</pre>', out, re.DOTALL)
        assert match is not None, f"there is no frame: {out[-500:]}"
        assert match[1], f"the page did not load: {out[-500:]}"
        found = json.loads(unescape(match[1]))
        assert not found["errors"], found["errors"]
        return found["value"]

    def picture(self, page: Path, target: Path, width: int = 1280, height: int = 900, dark: bool = False, script: str = "") -> None:
        """A screenshot of the page from its top, after `script`."""
        assert page.is_file(), f"{page}: there is no page"
        with tempfile.TemporaryDirectory() as home:
            frame = self._frame(Path(home), page, width, height, script)
            scheme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
            size = f"--window-size={max(width, 500)},{height}"
            self._run(Path(home), [*scheme, size, "--virtual-time-budget=5000", f"--screenshot={target}"], frame)

    def _frame(self, home: Path, page: Path, width: int, height: int, script: str) -> Path:
        frame = home / "frame.html"
        frame.write_text(_FRAME.format(page=escape(page.resolve().as_uri()), width=width, height=height, script=script))
        return frame

    def _run(self, home: Path, flags: list[str], page: Path) -> str:
        words = [self._command, *_FLAGS, f"--user-data-dir={home / 'profile'}", *flags, page.as_uri()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=self._timeout_s, check=True)
        return done.stdout
