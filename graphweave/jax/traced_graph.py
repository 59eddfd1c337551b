"""Graphs whose edges JAX traces: arguments of a function that is compiled once for all edges of one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from graphweave.core.errors import DataError
from graphweave.core.types import DType
from graphweave.jax.elementwise import DTYPE_OF
from graphweave.jax.importer import IndexOf
from graphweave.jax.kernel_graph import KernelGraph, sized_graph

INDICES = IndexOf("src"), IndexOf("dst")
"""The kinds of the arguments that the edges of a traced graph are, in order."""


@dataclass(frozen=True, eq=False)
class TracedGraph:
    """Edges src[e] -> dst[e] [edges] from `num_src` sources to `num_dst` destinations, of which only the sizes are
    known. If it is `square`, both are the same nodes."""

    src: Array
    dst: Array
    num_src: int
    num_dst: int
    square: bool

    kinds: ClassVar[tuple[IndexOf, ...]] = INDICES

    @property
    def num_edges(self) -> int:
        found: int = self.src.shape[0]
        return found

    @property
    def indices(self) -> tuple[Array, ...]:
        """The arguments of these `kinds`."""
        return self.src, self.dst

    @property
    def walked(self) -> KernelGraph:
        """The graph as programs know it: one object for all graphs of these sizes."""
        index = DTYPE_OF[self.src.dtype.name]
        return sized_graph(self.num_src, None if self.square else self.num_dst, self.num_edges, index)


def traced_graph(src: Array, dst: Array, num_src: int, num_dst: int | None) -> TracedGraph:
    """The graph of two index arrays, of which at least one is traced. DataError for arrays that are no indices."""
    for name, index in (("src", src), ("dst", dst)):
        if index.ndim != 1:
            raise DataError(f"{name} must have shape [num_edges] (got {list(index.shape)}). Flatten it first.")
        if DTYPE_OF.get(index.dtype.name) not in (DType.i32, DType.i64):
            raise DataError(f"{name} must be int32 or int64 (got {index.dtype}). Convert it with .astype('int32').")
    if src.shape != dst.shape:
        raise DataError(
            f"src and dst must have one length (got {len(src)} and {len(dst)}): they name the ends of the same edges."
            " Pass such a pair."
        )
    if src.dtype != dst.dtype:
        src, dst = (index.astype("int64") for index in (src, dst))
    return TracedGraph(src, dst, num_src, num_src if num_dst is None else num_dst, num_dst is None)
