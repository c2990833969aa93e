"""SVG as strings: rectangles, lines, texts and paths with classes; colours live in one style sheet, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

HUES = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#d4a72c", "#9c755f")
"""Policy versions, in turn; told apart on white and on black."""
WAITS = {
    "rollout": ("#c9d6e6", "#33465c"),
    "reward": ("#efc8d8", "#5c3346"),
    "window": ("#f3dfb0", "#5c4a20"),
    "order": ("#dccdec", "#463a5c"),
    "evaluation": ("#cfe8d5", "#2c5138"),
    "load": ("#d5dbe1", "#3d444d"),
    "data": ("#e3d5c8", "#54463a"),
    "fleet": ("#e6e6e6", "#333333"),
    "publish": ("#8b949e", "#8b949e"),
    "checkpoint": ("#5a8f9c", "#5a8f9c"),
    "train": ("#24292f", "#d0d7de"),
    "step": ("#57606a", "#9aa4ae"),
}
"""What the trainer does or waits for: (light, dark)."""
_INKS = {"page": ("#ffffff", "#0d1117"), "ink": ("#1f2328", "#e6edf3"), "soft": ("#656d76", "#8b949e"), "on": ("#ffffff", "#0d1117")}
_STROKES = {"grid": ("#d8dee4", "#262c36"), "mark": ("#57606a", "#8b949e"), "move": ("#1f2328", "#e6edf3")}


def style() -> str:
    """The style sheet. Plain classes in both themes, so that simple viewers draw the light one."""
    hues = "".join(f".v{i}{{fill:{hue}}}.l{i}{{stroke:{hue}}}" for i, hue in enumerate(HUES))
    base = (
        "text{font:11px system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif}"
        ".title{font-size:15px;font-weight:600}.small{font-size:9px}.white{fill:#fff}.right{text-anchor:end}.mid{text-anchor:middle}"
        ".thin{opacity:.38}.line{fill:none;stroke-width:1}.grid,.mark,.move{fill:none;stroke-width:1}.mark{stroke-dasharray:2 3}"
        ".move{opacity:.35}.gone{fill:#8b949e}.area{opacity:.3}"
    )
    return f"<style>{base}{hues}{_theme(0)}@media(prefers-color-scheme:dark){{{_theme(1)}}}</style>"


def _theme(which: int) -> str:
    fills = "".join(f".{name}{{fill:{pair[which]}}}" for name, pair in _INKS.items())
    waits = "".join(f".t-{name}{{fill:{pair[which]}}}" for name, pair in WAITS.items())
    return fills + waits + "".join(f".{name}{{stroke:{pair[which]}}}" for name, pair in _STROKES.items())


class Canvas:
    """Collects shapes; sizes are in pixels of the view box."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._merged: dict[str, list[str]] = {}

    def rect(self, kind: str, x: float, y: float, width: float, height: float, tip: str = "", round_by: float = 0) -> None:
        """A filled rectangle, at least half a pixel wide."""
        corner = f' rx="{round_by}"' if round_by else ""
        body = f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0.5))}" height="{_n(height)}"{corner}'
        self._parts.append(f"{body}><title>{escape(tip)}</title></rect>" if tip else f"{body}/>")

    def merge(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        """A rectangle that becomes one shape with all others of its class, at the next `flush`: a fifth of the size, and no tip.

        It keeps its true width, however thin, so that what is many does not cover what is long.
        """
        self._merged.setdefault(kind, []).append(f"M{x:.2f} {_n(y)}h{width:.2f}v{_n(height)}h-{width:.2f}z")

    def flush(self) -> None:
        """Draw what was merged, the class first met at the bottom."""
        for kind, shapes in self._merged.items():
            self.path(kind, "".join(shapes))
        self._merged.clear()

    def text(self, kind: str, x: float, y: float, words: str) -> None:
        """A text whose baseline starts (ends, with `right`; is centred, with `mid`) at a point."""
        self._parts.append(f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}">{escape(words)}</text>')

    def path(self, kind: str, commands: str, tip: str = "") -> None:
        """A path as SVG writes it."""
        body = f'<path class="{kind}" d="{commands}"'
        self._parts.append(f"{body}><title>{escape(tip)}</title></path>" if tip else f"{body}/>")

    def line(self, kind: str, x: float, y: float, x2: float, y2: float) -> None:
        """A straight line."""
        self.path(kind, f"M{_n(x)} {_n(y)}L{_n(x2)} {_n(y2)}")

    def document(self, width: float, height: float, label: str) -> str:
        """The whole file."""
        return self._svg(width, height, label, style(), f'<rect class="page" width="{_n(width)}" height="{_n(height)}"/>')

    def fragment(self, width: float, height: float, label: str) -> str:
        """For a page that has `style()` once: no style sheet of its own, no background."""
        return self._svg(width, height, label)

    def _svg(self, width: float, height: float, label: str, *before: str) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" role="img" aria-label="{escape(label)}">'
        return "\n".join([head, *before, *self._parts, "</svg>"]) + "\n"


def steps(points: Iterable[tuple[float, float]], base: float, end: float) -> str:
    """A path around the area under a step function: (x, y) from which on y holds, down to `base`, until x = `end`."""
    commands: list[str] = []
    before = None
    for x, y in points:
        if y != before:
            commands.append(f"H{_n(x)}V{_n(y)}" if commands else f"M{_n(x)} {_n(base)}V{_n(y)}")
        before = y
    return "".join([*commands, f"H{_n(end)}V{_n(base)}Z"]) if commands else ""


def _n(value: float) -> str:
    """A number in tenths of a pixel, as short as it goes."""
    return f"{value:.1f}".removesuffix(".0")
