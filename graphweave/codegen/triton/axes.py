"""The dimensions of the tensors in a kernel's text: rows of a program, edges of a step, and lanes.

What the loop IR computes one scalar at a time, Triton computes for all rows, edges and lanes around it at once. A
statement stands under some axes, (rows), (rows, edges), or these and lanes; each of its values has one dimension an
axis, of size 1 where it does not depend on it, or none at all if it depends on nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Axis:
    """`size` is what shapes say: "R" rows, "K" edges, or a power of two that holds all combinations of `lanes`.

    `mask` names the truth of what is no padding, over the axes `masked`; "" where there is no padding.
    """

    name: str
    size: str
    lanes: tuple[tuple[str, int], ...] = ()
    mask: str = ""

    @property
    def extent(self) -> int:
        return math.prod(extent for _, extent in self.lanes)


Axes: TypeAlias = tuple[Axis, ...]
ROWS = Axis("rows", "R", mask="row_ok")
EDGES = Axis("edges", "K", mask="edge_ok")
WALK = Axis("edges", "K", mask="walk_ok")
"""Positions walk edges of their own: those are masked that have none left."""


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def shape(axes: Iterable[Axis], *last: int) -> str:
    """As "[R, K, 64]"."""
    return f"[{', '.join([*(axis.size for axis in axes), *map(str, last)])}]"


def aligned(text: str, have: Sequence[str], want: Sequence[str]) -> str:
    """`text`, whose dimensions are `have`, with a dimension for each of `want`, which they are some of, in order."""
    if not have or tuple(have) == tuple(want):
        return text
    return f"{text}[{', '.join(':' if name in have else 'None' for name in want)}]"


def names_of(axes: Iterable[Axis]) -> tuple[str, ...]:
    return tuple(axis.name for axis in axes)
