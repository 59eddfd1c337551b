"""Drawings of graphs in layers: what is computed first stands above what is computed from it.

A node stands right above the first that reads it. Edges lead through the layers between by bends of their own. The
order within a layer follows the mean position of neighbours (the barycentre method of Sugiyama et al.), and positions
are then the nearest to those means that leave room for all (least squares, by pooling adjacent violators). Parts that
no edge connects are moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FAR = 6
"""An edge over more layers than this is not routed; it is drawn only for a node that is looked at."""

_SWEEPS = 6
"""Times that the order of all layers is improved, and then positions."""

_BEND = 6
"""Width in pixels of an edge where it passes a layer."""

_GAP = 14
"""Pixels between neighbours in a layer."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """`x[i]` is the middle of node i in pixels, `layer[i]` its layer. `edges` are (from, to, x at each layer between),
    `far` those that are not routed. `width` covers all of it."""

    x: tuple[int, ...]
    layer: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]
    far: tuple[tuple[int, int], ...]
    width: int


def draw(operands: Sequence[Sequence[int]], widths: Sequence[int]) -> Drawing:
    """The drawing of a graph whose node i reads the nodes `operands[i]`, all of them before i."""
    n, layer = len(operands), _layers(operands)
    pairs = [(a, b) for b, read in enumerate(operands) for a in dict.fromkeys(read)]
    near = [(a, b) for a, b in pairs if layer[b] - layer[a] <= FAR]
    sizes, at, above = list(widths), list(layer), [list[int]() for _ in range(n)]
    paths = []
    for a, b in near:
        path = [a]
        for level in range(layer[a] + 1, layer[b]):
            path.append(len(sizes))
            sizes.append(_BEND)
            at.append(level)
            above.append([])
        path.append(b)
        for upper, lower in pairwise(path):
            above[lower].append(upper)
        paths.append(path)
    below = [list[int]() for _ in sizes]
    for lower, found in enumerate(above):
        for upper in found:
            below[upper].append(lower)
    rows = [list[int]() for _ in range(max(at, default=-1) + 1)]
    for i, level in enumerate(at):
        rows[level].append(i)
    x = _positions(rows, sizes, above, below)
    _move_together(x, at, sizes, above)
    left = min((v - size / 2 for v, size in zip(x, sizes, strict=True)), default=0.0)
    right = max((v + size / 2 for v, size in zip(x, sizes, strict=True)), default=0.0)
    shifted = [round(v - left) for v in x]
    edges = tuple((path[0], path[-1], *(shifted[i] for i in path[1:-1])) for path in paths)
    far = tuple((a, b) for a, b in pairs if layer[b] - layer[a] > FAR)
    return Drawing(tuple(shifted[:n]), tuple(layer), edges, far, round(right - left))


def _layers(operands: Sequence[Sequence[int]]) -> list[int]:
    """The layer of each node: below all that it reads, and right above the first that reads it."""
    layer = [0] * len(operands)
    for i, read in enumerate(operands):
        layer[i] = max((layer[a] + 1 for a in read), default=0)
    first: dict[int, int] = {}
    for i in reversed(range(len(operands))):
        layer[i] = first.get(i, layer[i] + 1) - 1
        for a in operands[i]:
            first[a] = min(first.get(a, layer[i]), layer[i])
    return layer


def _move_together(x: list[float], at: Sequence[int], sizes: Sequence[int], above: Sequence[Sequence[int]]) -> None:
    """Move each connected part as far to the left as the parts before it leave room, the largest part first."""
    part = list(range(len(x)))

    def root(i: int) -> int:
        while part[i] != i:
            part[i] = i = part[part[i]]
        return i

    for i, found in enumerate(above):
        for a in found:
            part[root(i)] = root(a)
    members: dict[int, list[int]] = {}
    for i in range(len(x)):
        members.setdefault(root(i), []).append(i)
    taken: dict[int, float] = {}
    for inside in sorted(members.values(), key=len, reverse=True):
        move = max(taken.get(at[i], 0.0) + _GAP - (x[i] - sizes[i] / 2) for i in inside)
        for i in inside:
            x[i] += move
            taken[at[i]] = max(taken.get(at[i], 0.0), x[i] + sizes[i] / 2)


def _positions(
    rows: list[list[int]], sizes: Sequence[int], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> list[float]:
    x = [0.0] * len(sizes)
    for row in rows:
        for i, centre in zip(row, _packed(row, [0.0] * len(row), sizes), strict=True):
            x[i] = centre
    for sweep in range(2 * _SWEEPS):
        down, sorting = sweep % 2 == 0, sweep < _SWEEPS
        for row in rows if down else reversed(rows):
            wanted = {i: _mean(i, x, above if down else below, above, below) for i in row}
            if sorting:
                row.sort(key=wanted.__getitem__)
            for i, centre in zip(row, _packed(row, [wanted[i] for i in row], sizes), strict=True):
                x[i] = centre
    return x


def _mean(
    i: int, x: Sequence[float], first: Sequence[Sequence[int]], above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
) -> float:  # fmt: skip
    """The mean position of a node's neighbours on one side, or on the other if it has none there."""
    around = first[i] or above[i] or below[i]
    return sum(x[a] for a in around) / len(around) if around else x[i]


def _packed(row: Sequence[int], wanted: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """The positions nearest to those `wanted` at which neighbours of a row, in this order, do not overlap."""
    offsets, total = [], 0.0
    for k, i in enumerate(row):
        total += (sizes[row[k - 1]] + sizes[i]) / 2 + _GAP if k else 0.0
        offsets.append(total)
    blocks = list[list[float]]()  # [sum, count] of neighbours that touch, from left to right
    for want, offset in zip(wanted, offsets, strict=True):
        blocks.append([want - offset, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    bases = [total / count for total, count in blocks for _ in range(int(count))]
    return [base + offset for base, offset in zip(bases, offsets, strict=True)]
