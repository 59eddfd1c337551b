"""A drawing of boxes, lines and words, written as SVG: all text is text, and the same drawing is the same file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal


@dataclass(frozen=True, slots=True)
class DrawingColours:
    """Colours of a drawing for light or for dark pages. `series` tells things apart that are of one kind."""

    text: str
    faint: str
    box: str
    accent: str
    series: tuple[str, ...]


LIGHT = DrawingColours("#1f2328", "#59636e", "#eef4f3", "#00796b", ("#0b57d0", "#b4490c", "#7b3fb5", "#8a5000"))
DARK = DrawingColours("#e6edf3", "#9aa3ad", "#16302d", "#4db6ac", ("#8ab4f8", "#f4a47a", "#cba6f7", "#f2c46c"))

Point = tuple[float, float]


@dataclass(slots=True)
class SvgDrawing:
    """A drawing of `width` x `height` pixels, from the top left. `title` says in words what it shows."""

    width: float
    height: float
    colours: DrawingColours
    title: str
    _parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = "none", edge: str = "none",
        radius: float = 4, opacity: float = 1, dashed: bool = False,
    ) -> None:  # fmt: skip
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" fill="{fill}"'
            f' fill-opacity="{opacity:g}" stroke="{edge}"{dashes}/>'
        )

    def line(
        self, points: Sequence[Point], colour: str, *, width: float = 1.2, dashed: bool = False, arrow: bool = False,
        opacity: float = 1,
    ) -> None:  # fmt: skip
        """A line through `points`, with an arrow's head at the last one."""
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"'
            f' stroke-opacity="{opacity:g}" stroke-linejoin="round"{dashes}/>'
        )
        if arrow:
            self._head(points[-2], points[-1], colour)

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour}"/>')

    def words(
        self, x: float, y: float, text: str, *, size: float = 13, colour: str = "", bold: bool = False,
        italic: bool = False, code: bool = False, anchor: Literal["start", "middle", "end"] = "start",
    ) -> None:  # fmt: skip
        """A line of text, whose baseline begins at (x, y), or ends there, or has its middle there."""
        looks = (' font-weight="600"' if bold else "") + (' font-style="italic"' if italic else "")
        looks += ' font-family="ui-monospace, Menlo, Consolas, monospace"' if code else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour or self.colours.text}"'
            f' text-anchor="{anchor}"{looks} xml:space="preserve">{escape(text)}</text>'
        )

    def svg(self) -> str:
        inner = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}"'
            f' width="{self.width:g}" height="{self.height:g}" role="img"'
            f' font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n{inner}\n</svg>\n"
        )

    def _head(self, before: Point, tip: Point, colour: str) -> None:
        """The head of an arrow from `before` to `tip`."""
        dx, dy = tip[0] - before[0], tip[1] - before[1]
        length = (dx * dx + dy * dy) ** 0.5 or 1.0
        dx, dy = 7 * dx / length, 7 * dy / length
        corners = (tip, (tip[0] - dx - dy / 2, tip[1] - dy + dx / 2), (tip[0] - dx + dy / 2, tip[1] - dy - dx / 2))
        path = " ".join(f"{x:g},{y:g}" for x, y in corners)
        self._parts.append(f'<polygon points="{path}" fill="{colour}"/>')
