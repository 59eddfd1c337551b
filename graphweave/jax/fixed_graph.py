"""Graphs whose index tensors are known when JAX traces, and the graph of each form in which users have theirs."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.ranges import position, range_error
from graphweave.core.types import DType
from graphweave.graph.structure import Structure
from graphweave.jax.graph_forms import SizedEdges, is_traced, known
from graphweave.jax.importer import IndexOf, Rows
from graphweave.jax.kernel_graph import KernelGraph, spaces_of
from graphweave.jax.traced_graph import TracedGraph, traced_graph

_MOST_GRAPHS = 16
"""At most this many graphs that are given as arrays are remembered with their formats, those used last."""

_FORMS = (
    "a graphweave.jax.FixedGraph, a graphweave.Graph, an edge_index [2, num_edges], a pair (src, dst) of arrays, a"
    " sparse matrix of JAX, SciPy or PyTorch, or PyG's EdgeIndex"
)


class FixedGraph(KernelGraph):
    """Edges src[e] -> dst[e] from `num_src` sources to `num_dst` destinations, for functions of JAX.

    `src`, `dst` [edges]: int32 or int64, arrays of NumPy or JAX, or tensors; copied, so that later edits change
    nothing. Without `num_dst`, sources and destinations are the same `num_src` nodes. Equal only to itself, hashable,
    and a static leaf for JAX: close over it, or pass it as a static argument. Its formats and the kernels' tables on it
    are made when a function on it is first traced, and live as long as it, or as compiled functions that use it.

    DataError for arrays that are no indices, IndexRangeError for an index out of range.
    """

    def __init__(self, src: Any, dst: Any, num_src: int, num_dst: int | None = None) -> None:
        self.square = num_dst is None
        """Whether sources and destinations are the same nodes."""
        self.num_src, self.num_dst = (
            _count("num_src", num_src),
            _count("num_dst", num_src if num_dst is None else num_dst),
        )
        self._src, self._dst = (
            _index("src", src, self.num_src, "sources"),
            _index("dst", dst, self.num_dst, "destinations"),
        )
        if self._src.shape != self._dst.shape:
            raise DataError(
                f"src and dst must have one length (got {len(self._src)} and {len(self._dst)}): they name the ends of"
                " the same edges. Pass such a pair."
            )
        if self._src.dtype != self._dst.dtype:
            self._src, self._dst = self._src.long(), self._dst.long()
        index = DType.i64 if self._src.dtype is torch.int64 else DType.i32
        frame = spaces_of(self.num_src, None if self.square else self.num_dst, self.num_edges, index)
        super().__init__(frame, {"src": self._src, "dst": self._dst})

    kinds: tuple[IndexOf, ...] = ()
    indices: tuple[Array, ...] = ()
    """A program has no arguments for its edges, unlike those of a `TracedGraph`."""

    @property
    def num_edges(self) -> int:
        return len(self._src)

    @property
    def walked(self) -> KernelGraph:
        """The graph as programs know it."""
        return self

    @property
    def destinations(self) -> Tensor:
        """The destination of each edge, which nobody may write to."""
        return self._dst

    def __repr__(self) -> str:
        return f"FixedGraph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges})"


def graph_in_any_form(graph: Any, rows: Mapping[Rows, int | None], num_dst: int | None) -> FixedGraph | TracedGraph:
    """`graph` in any form, a `TracedGraph` where JAX traces its edges. `rows` are those of the arguments src and dst,
    None where there are none; they and `num_dst` count the rows of arrays, and must fit other graphs."""
    found: FixedGraph | TracedGraph
    if isinstance(graph, FixedGraph):
        found = graph
    elif isinstance(graph, Structure):
        found = _of_graph(graph)
    else:
        edges = graph if isinstance(graph, SizedEdges) else SizedEdges(*_pair(graph), None, None)
        found = _of_arrays(edges, rows, num_dst)
    if num_dst is not None and num_dst != found.num_dst:
        raise DataError(f"num_dst is {num_dst}, but there are {found.num_dst} destinations. Leave it out.")
    return found


# ---------------------------------------------------------------- forms of graphs

_remembered: OrderedDict[Hashable, FixedGraph] = OrderedDict()


def _of_graph(graph: Structure) -> FixedGraph:
    relation = graph.only_relation()
    sizes = [graph.node_frame(end).rows.shape[0] for end in (relation.srctype, relation.dsttype)]
    same = relation.srctype == relation.dsttype
    return _shared(relation.src, relation.dst, sizes[0], None if same else sizes[1])


def _pair(graph: Any) -> tuple[Any, Any]:
    if isinstance(graph, (tuple, list)) and len(graph) == 2:
        src, dst = graph
        if is_traced(src) or is_traced(dst):
            return jnp.asarray(src), jnp.asarray(dst)
        return known("graph[0]", src), known("graph[1]", dst)
    if not hasattr(graph, "shape"):
        raise DataError(f"graph must be {_FORMS} (got {type(graph).__name__}). Pass one of these.")
    array = graph if is_traced(graph) else known("graph", graph)
    if array.ndim != 2 or array.shape[0] != 2:
        raise DataError(
            f"graph must be an edge_index of shape [2, num_edges] (got {list(array.shape)})."
            " Transpose it, if it is [num_edges, 2]."
        )
    return array[0], array[1]


def _of_arrays(edges: SizedEdges, rows: Mapping[Rows, int | None], num_dst: int | None) -> FixedGraph | TracedGraph:
    num_src = rows["src"] if edges.num_src is None else edges.num_src
    known_ends = [n for n in (edges.num_dst, rows["dst"], num_dst) if n is not None]
    ends = known_ends[0] if known_ends else num_src
    if ends is None:
        raise DataError(
            "num_dst must be given: neither graph nor dst nor src says how many destinations there are (got None)."
            " Pass num_dst=..., or a graphweave.jax.FixedGraph."
        )
    traced = is_traced(edges.src) or is_traced(edges.dst)
    if num_src is None and traced:
        num_src = ends  # nothing is read from sources
    elif num_src is None:
        num_src = max(int(np.max(edges.src, initial=-1)) + 1, 0)
    same = not known_ends or ends == edges.num_dst == num_src
    if traced:
        return traced_graph(edges.src, edges.dst, num_src, None if same else ends)
    return _shared(edges.src, edges.dst, num_src, None if same else ends, names=("graph[0]", "graph[1]"))


def _shared(
    src: Any, dst: Any, num_src: int, num_dst: int | None, names: tuple[str, str] = ("src", "dst")
) -> FixedGraph:
    """The graph of these indices, the same one for equal indices."""
    arrays = [np.ascontiguousarray(np.asarray(index)) for index in (src, dst)]
    digest = hashlib.blake2b(b"".join(a.tobytes() for a in arrays), digest_size=16).digest()
    key = digest, *((a.dtype.str, a.shape) for a in arrays), num_src, num_dst
    found = _remembered.get(key)
    if found is None:
        for name, a, count, of in zip(names, arrays, (num_src, num_src if num_dst is None else num_dst),
                                      ("sources", "destinations"), strict=True):  # fmt: skip
            _index(name, a, count, of)
        found = _remembered[key] = FixedGraph(arrays[0], arrays[1], num_src, num_dst)
        if len(_remembered) > _MOST_GRAPHS:
            _remembered.popitem(last=False)
    _remembered.move_to_end(key)
    return found


# ---------------------------------------------------------------- checks


def _index(name: str, index: Any, rows: int, of: str) -> Tensor:
    array = known(name, index)
    if array.dtype not in (np.int32, np.int64):
        raise DataError(f"{name} must be int32 or int64 (got {array.dtype}). Convert it with .astype('int64').")
    if array.ndim != 1:
        raise DataError(f"{name} must have shape [num_edges] (got {list(array.shape)}). Flatten it first.")
    out = torch.from_numpy(np.array(array, order="C"))
    if position(out, rows) is not None:
        raise range_error(out, rows, what=name, of=of)
    return out


def _count(name: str, n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise DataError(f"{name} must be a number of rows (got {n!r}). Pass one.")
    return int(n)
