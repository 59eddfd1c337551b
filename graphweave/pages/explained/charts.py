"""Charts of an explanation: the roofline of its kernels, and the memory over the steps of a call."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphweave.core.kernel_cost import KernelCost
from graphweave.pages.elements import Html, figure, join, tag
from graphweave.pages.explained.data import ExplainedData, ShownKernel
from graphweave.pages.explained.links import kernel_class

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 300, 64, 44, 14, 20

_MAX_STEP = 60
"""Pixels of a step in the chart of memory, at most."""


def roofline(data: ExplainedData) -> Html:
    """Operations a second against operations a byte, below the roof that the machine's rates make."""
    shown = [(k, k.cost) for k in data.kernels if k.cost is not None and k.cost.flops and k.cost.compulsory]
    if not shown:
        return Html("")
    rates = data.rates
    points = [(cost.flops / cost.compulsory, _rate(cost)) for _, cost in shown]
    ridge = rates.products / rates.bandwidth
    low = 10 ** math.floor(math.log10(min(ridge, *(x for x, _ in points)) / 1.5))
    high = 10 ** math.ceil(math.log10(max(ridge, *(x for x, _ in points)) * 1.5))
    bottom = 10 ** math.floor(math.log10(min(low * rates.bandwidth, *(y for _, y in points))))
    top = 10 ** math.ceil(math.log10(rates.products * 1.1))
    axes = _Axes(low, high, bottom, top)
    corners = [(low, low * rates.bandwidth), (ridge, rates.products), (high, rates.products)]
    roof = " ".join(f"{axes.x(x):.1f},{axes.y(max(y, bottom)):.1f}" for x, y in corners)
    measured = any(cost.seconds is not None for _, cost in shown)
    parts = [axes.grid("operations for each byte that must move", "operations a second"),
             tag("polyline", points=roof, class_="roof")]  # fmt: skip
    parts += [_point(k, cost, axes, x, y) for (k, cost), (x, y) in zip(shown, points, strict=True)]
    svg = _svg(parts)
    words = "Filled: as measured. Rings: not measured, drawn at their bound." if measured else (
        "Not measured: each kernel is drawn at its bound, on the roof. graphweave profile measures.")  # fmt: skip
    caption = (f"The roof is this machine's: {rates.bandwidth / 1e9:.3g} GB/s, {rates.products / 1e9:.3g} Gflop/s in "
               f"matrix products. Below the slope, memory bounds a kernel. {words}")  # fmt: skip
    alt = "Roofline: " + "; ".join(
        f"{k.name} {x:.2g} operations a byte, {y / 1e9:.3g} Gflop/s"
        for (k, _), (x, y) in zip(shown, points, strict=True)
    )
    return figure(svg, caption, alt)


def memory(data: ExplainedData) -> Html:
    """Bytes over the steps of a call, as a line of steps."""
    steps = data.memory
    peak = max(1, *(max(s.during, s.after) for s in steps))
    room, tall = min(_MAX_STEP, (_WIDTH - _LEFT - _RIGHT) / len(steps)), _HEIGHT - _TOP - _BOTTOM
    parts = [
        tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_TOP + tall, y2=_TOP + tall, class_="rule"),
        tag("text", _bytes(peak), x=_LEFT - 6, y=_TOP + 10, text_anchor="end"),
        tag("text", "0", x=_LEFT - 6, y=_TOP + tall, text_anchor="end"),
    ]
    for i, s in enumerate(steps):
        for value, kind, share in ((s.during, "during", 0.8), (s.after, "after", 0.8)):
            high = tall * value / peak
            about = tag("title", f"{s.half}, {s.step}: {_bytes(s.during)} during, {_bytes(s.after)} after")
            parts.append(tag("rect", about, x=f"{_LEFT + (i + 0.1) * room:.1f}", y=f"{_TOP + tall - high:.1f}",
                             width=f"{share * room:.1f}", height=f"{high:.1f}", class_=f"memory {kind}"))  # fmt: skip
    starts = [i for i, s in enumerate(steps) if i == 0 or steps[i - 1].half != s.half]
    parts += [tag("text", steps[i].half, x=f"{_LEFT + (i + 0.1) * room:.1f}", y=_HEIGHT - 24) for i in starts]
    most = max(steps, key=lambda s: s.during)
    alt = f"Memory over {len(steps)} steps. The most is {_bytes(most.during)}, during {most.step} of the {most.half}."
    listed = tag("ol", *(tag("li", f"{s.half}, {s.step}: {_bytes(s.during)} during, {_bytes(s.after)} after")
                         for s in steps), class_="steps")  # fmt: skip
    caption = "Light: during a step. Dark: what stays after it. " + alt
    return join([figure(_svg(parts), caption, alt), tag("details", tag("summary", "The steps as text"), listed)])


def _rate(cost: KernelCost) -> float:
    seconds = cost.seconds or cost.bound_seconds
    return cost.flops / seconds if seconds else 1.0


def _point(kernel: ShownKernel, cost: KernelCost, axes: _Axes, x: float, y: float) -> Html:
    about = f"{kernel.name}: {x:.3g} operations a byte, {y / 1e9:.3g} Gflop/s, {_bytes(cost.compulsory)}"
    kind = f"{kernel_class(kernel)} {'measured' if cost.seconds is not None else 'bound'}"
    circle = tag("circle", tag("title", about), cx=f"{axes.x(x):.1f}", cy=f"{axes.y(y):.1f}", r=6, class_=kind,
                 data_kernel=kernel.key)  # fmt: skip
    return circle


class _Axes:
    """Two logarithmic axes."""

    def __init__(self, left: float, right: float, bottom: float, top: float) -> None:
        self._left, self._right, self._bottom, self._top = map(math.log10, (left, right, bottom, top))

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(value) - self._left) / (self._right - self._left)

    def y(self, value: float) -> float:
        span = _HEIGHT - _TOP - _BOTTOM
        return _TOP + span * (self._top - math.log10(value)) / (self._top - self._bottom)

    def grid(self, below: str, at_left: str) -> Html:
        parts = []
        for power in range(round(self._left), round(self._right) + 1):
            at = f"{self.x(10.0**power):.1f}"
            parts.append(tag("line", x1=at, x2=at, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="rule"))
            parts.append(
                tag("text", _power(power), x=at, y=_HEIGHT - _BOTTOM + 16, text_anchor="middle", class_="soft")
            )
        for power in range(round(self._bottom), round(self._top) + 1):
            at = f"{self.y(10.0**power):.1f}"
            parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=at, y2=at, class_="rule"))
            parts.append(tag("text", _power(power), x=_LEFT - 6, y=at, dy=4, text_anchor="end", class_="soft"))
        parts.append(tag("text", below, x=(_WIDTH + _LEFT) / 2, y=_HEIGHT - 6, text_anchor="middle"))
        rotated = f"rotate(-90 14 {_HEIGHT / 2})"
        parts.append(tag("text", at_left, x=14, y=_HEIGHT / 2, text_anchor="middle", transform=rotated))
        return join(parts)


def _power(power: int) -> str:
    """A power of ten: "100 M"."""
    return f"{10.0**power:g}" if power < 3 else f"{10 ** (power % 3)} {'kMGTP'[power // 3 - 1]}"


def _svg(parts: Sequence[str]) -> Html:
    return Html(f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" font-size="12">{"".join(parts)}</svg>')


def _bytes(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
