"""The dimensions of the tensors in a kernel's text: rows of a program, edges of a step, and lanes.

What the loop IR computes one scalar at a time, Triton computes for all rows, edges and lanes around it at once. A
statement stands under some axes: (rows), (rows, edges), or these and lanes. Each of its values has one dimension for
each axis, of size 1 if it does not depend on that axis; a value that depends on no axis has no dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Axis:
    """`size` stands in shapes: "R" rows, "K" edges, or a power of two that holds all combinations of `lanes`.

    `mask` names the variable that is false for padding; "" if there is no padding.
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
"""The axis of edges while each position of a tile walks edges of its own; positions that have none left are masked."""


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def shape(axes: Iterable[Axis], *last: int) -> str:
    """The text of a shape, such as "[R, K, 64]"."""
    return f"[{', '.join([*(axis.size for axis in axes), *map(str, last)])}]"


def aligned(text: str, have: Sequence[str], want: Sequence[str]) -> str:
    """`text`, a value with the dimensions `have`, indexed so that it has those of `want`; `have` is some of these."""
    if not have or tuple(have) == tuple(want):
        return text
    return f"{text}[{', '.join(':' if name in have else 'None' for name in want)}]"


def names_of(axes: Iterable[Axis]) -> tuple[str, ...]:
    return tuple(axis.name for axis in axes)
