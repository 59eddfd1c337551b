"""Which graphs are similar: a graph's statistics, rounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.core.types import UNIT, Space
from graphweave.ir.message.nodes import MapOf, MapType, Ref

_SAMPLE = 4096
"""Edges whose ends are compared, to tell whether neighbours have near numbers."""

_NEAR = 64
"""Two nodes are near if their numbers differ by less than the number of nodes divided by this."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """Statistics of one graph. `degrees` has the most edges of a row for each map, `near` the share of sampled edges
    whose ends have near numbers for each pair of maps between rows of one space."""

    rows: Mapping[Space, int]
    degrees: tuple[int, ...]
    near: tuple[float, ...]

    @property
    def is_local(self) -> bool:
        """Whether most edges lead to nodes with near numbers."""
        return bool(self.near) and min(self.near) > 0.5

    def bucket(self) -> str:
        """Text that is equal for similar graphs: row counts to a factor of two, degrees to a factor of
        four, nearness to a half."""
        rows = [
            f"{space.name}:{round(_power(n))}" for space, n in sorted(self.rows.items(), key=lambda item: item[0].name)
        ]
        degrees = ",".join(str(round(_power(d) / 2)) for d in self.degrees)
        return f"rows {' '.join(rows)} degrees {degrees} near {','.join(str(round(n)) for n in self.near)}"


def shape_of(facts: Facts, rows: Mapping[Space, int], value: Callable[[Facts, Ref], Tensor | None]) -> GraphShape:
    """The statistics of a program's maps. `value` gives a tensor that depends on the graph alone, None if it is not
    known, and `rows` the known row counts."""
    program = facts.program
    degrees: list[int] = []
    near: list[float] = []
    seen: dict[tuple[Space, Space], Tensor] = {}
    for ref, node in enumerate(program.nodes):
        t = program.types[ref]
        if not isinstance(node, MapOf) or not isinstance(t, MapType) or t.cod == UNIT:
            continue
        index = value(facts, node.index)
        if index is None or not index.numel():
            continue
        count = rows.get(t.cod, 0)
        if 0 < count <= 8 * index.numel():
            degrees.append(int(torch.bincount(index.clamp(0, count - 1).long(), minlength=1).max()))
        other = seen.setdefault((t.dom, t.cod), index)
        if other is not index and other.shape == index.shape:
            step = max(1, index.numel() // _SAMPLE)
            apart = (index[::step].long() - other[::step].long()).abs()
            near.append(float((apart * _NEAR < count).float().mean()))
    return GraphShape(dict(rows), tuple(degrees), tuple(near))


def _power(n: int) -> float:
    return math.log2(n) if n else -1.0
