"""Bytes that a kernel must move and operations that it computes, counted from its loop IR and a graph's sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from graphweave.ir.loop.nodes import (
    Accum,
    Buffer,
    Call,
    Edges,
    FoldLanes,
    Kernel,
    Lanes,
    Let,
    Load,
    Place,
    Role,
    Rows,
    TileArray,
    TileGram,
    TileMatMul,
    Tiles,
    Var,
)
from graphweave.ir.loop.walk import csrs_around


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes and flops of one run.

    `compulsory` counts every tensor and index array once: the bytes that a perfect cache would move. `gather` counts
    without caches: a gathered row and its index for every edge in every pass over edges, and other tensors once.
    `flops` counts one for each element of every operator, two for each multiplication of a matrix product.
    """

    compulsory: int
    gather: int
    flops: int


def traffic_of(kernel: Kernel, sizes: Mapping[str, int], positions: Mapping[str, int]) -> Traffic:
    """The traffic of a kernel, given its sizes by name and the number of positions (edges) of each CSR."""
    items = 1 if kernel.items is None else sizes[kernel.items] // max(sizes[kernel.sizes[0]], 1)
    count = _TrafficCount(kernel, sizes, {csr: n * items for csr, n in positions.items()}, items)
    for stmt in kernel.body:
        count.visit(stmt, count.rows, "")
    own = sum(count.bytes_of(buffer) for buffer in kernel.buffers)
    around = csrs_around(kernel)
    stored = (c for c in kernel.csrs if c.positions is None)
    rows = (count.sizes[kernel.sizes[0]] if (csr := around.get(c.name)) is None else positions[csr] for c in stored)
    indptr = sum(n + 1 for n in rows) * kernel.index.itemsize
    only_gathered = count.gathered.keys() - count.streamed
    streamed = sum(count.bytes_of(b) for b in kernel.buffers if b.name not in only_gathered)
    return Traffic(own + indptr, streamed + indptr + sum(map(sum, count.gathered.values())), int(count.flops))


@dataclass(slots=True)
class _TrafficCount:
    kernel: Kernel
    sizes: Mapping[str, int]
    positions: Mapping[str, int]
    items: int = 1
    flops: float = 0.0
    gathered: dict[str, list[int]] = field(default_factory=dict)
    """Buffer -> bytes of each pass over edges that reads the buffer at rows given by an index."""
    streamed: set[str] = field(default_factory=set)
    _buffers: dict[str, Buffer] = field(init=False)
    _arrays: dict[str, int] = field(default_factory=dict)
    _indices: set[str] = field(default_factory=set)
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _walked: dict[str, int] = field(default_factory=dict)
    """The number of positions of each pass over edges, by its name."""

    def __post_init__(self) -> None:
        self._buffers = {b.name: b for b in self.kernel.buffers}
        self._arrays = {stash.name: math.prod(stash.shape) for stash in self.kernel.stashes}
        self._arrays |= {buffer.name: math.prod(buffer.shape) for buffer in self.kernel.buffers}

    @property
    def rows(self) -> int:
        return self.sizes[self.kernel.sizes[0]] * self.items

    def bytes_of(self, buffer: Buffer) -> int:
        rows = 1 if buffer.rows is None else self.sizes[buffer.rows]
        return rows * (self.items if buffer.items else 1) * self._row_bytes(buffer)

    def _row_bytes(self, buffer: Buffer) -> int:
        return math.prod(buffer.shape) * buffer.dtype.itemsize

    def visit(self, node: object, times: float, walk: str) -> None:
        """Counts a node that runs `times` times in all, in the pass over edges named `walk` ("" outside of passes)."""
        match node:
            case Edges(k=k, csr=csr, body=body, tile=tile):
                self._walked[walk if tile is not None else k] = self.positions[csr]
                return self._all(body, self.positions[csr], walk if tile is not None else k)
            case Tiles(tile=tile, csr=csr, body=body):
                self._walked[tile] = self.positions[csr]
                return self._all(body, self.positions[csr], tile)
            case TileArray(name=name, shape=shape):
                self._arrays[name] = math.prod(shape)
            case TileMatMul(out=other, x=x, add=also, blocks=n) | TileGram(x=x, y=other, out=also, blocks=n):
                self.flops += 2 * times * self._width(x) * self._width(other) // n
                whole = node.w if isinstance(node, TileMatMul) and node.row is not None else None
                self.streamed.update(name for name in (x, other, also, whole) if name in self._buffers)
                for place in (x, *([node.y] if isinstance(node, TileGram) else [])):
                    if isinstance(place, Rows):
                        self._gather(place.buffer, f"{walk} {place.column}", self._walked.get(walk, self.rows))
            case Lanes(lanes=lanes, body=body):
                return self._all(body, times * math.prod(extent for _, extent in lanes), walk)
            case FoldLanes(lanes=lanes):
                times *= math.prod(extent for _, extent in lanes)
                self.flops += times
            case Call() | Accum():
                self.flops += times
            case Let(name=name, value=Load(buffer=buffer)) if self._is_index(buffer):
                self._indices.add(name)
            case Load():
                self._load(node, times, walk)
            case _:
                pass
        self._all(_children(node), times, walk)

    def _all(self, nodes: Any, times: float, walk: str) -> None:
        for node in nodes:
            self.visit(node, times, walk)

    def _is_index(self, buffer: str) -> bool:
        return buffer in self._buffers and self._buffers[buffer].role in (Role.column, Role.index)

    def _load(self, load: Load, times: float, walk: str) -> None:
        """Counts a load. At a row given by an index, it counts every edge (or row), once for each pass and index."""
        buffer = self._buffers.get(load.buffer)
        if buffer is None or buffer.rows is None:
            return
        at = load.index[0]
        if not (self._is_index(load.buffer) or (isinstance(at, Var) and at.name in self._indices)):
            self.streamed.add(load.buffer)
            return
        self._gather(load.buffer, f"{walk} {at}", self._walked.get(walk, self.rows))

    def _gather(self, name: str, index: str, times: int) -> None:
        if (name, index) not in self._seen:
            self._seen.add((name, index))
            self.gathered.setdefault(name, []).append(times * self._row_bytes(self._buffers[name]))

    def _width(self, place: Place) -> int:
        return math.prod(self._buffers[place.buffer].shape) if isinstance(place, Rows) else self._arrays[place]


def _children(node: object) -> Iterator[object]:
    """The statements and expressions directly inside a node."""
    if not is_dataclass(node):
        return
    for f in fields(node):
        value = getattr(node, f.name)
        for item in value if isinstance(value, tuple) else (value,):
            if is_dataclass(item):
                yield item
