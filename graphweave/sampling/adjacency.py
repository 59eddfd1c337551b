"""The edges of one relation, grouped by destination, with what a sampler asks of each edge: a weight and a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.sampling.native import RawAdjacency, address
from graphweave.sampling.weighted import checked_weights


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Edges grouped by destination (CSC): those of node v stand at positions `indptr[v]` to `indptr[v + 1]`.

    Indices are int32, or int64 where int32 does not hold the numbers of nodes and edges.
    """

    indptr: Tensor
    """[num_dst + 1]"""
    sources: Tensor
    """[num_edges]: the source of the edge at each position."""
    edges: Tensor | None
    """[num_edges]: the number of the edge at each position; None if that is the position itself."""
    weights: Tensor | None
    """float64 [num_edges], by position."""
    edge_times: Tensor | None
    """int64 [num_edges], by position."""
    node_times: Tensor | None
    """int64 [num_src]"""
    num_src: int
    num_dst: int

    @property
    def num_edges(self) -> int:
        return self.sources.numel()

    def raw(self, excluded: Tensor | None = None) -> RawAdjacency:
        """The addresses, valid while this object and `excluded` live: int64 positions in rising order, each once, that
        no row draws."""
        arrays = (self.indptr, self.sources, self.edges, self.weights, self.edge_times, self.node_times)
        count = 0 if excluded is None else excluded.numel()
        return RawAdjacency(*map(address, arrays), self.indptr.dtype == torch.int64, address(excluded), count)

    def places(self) -> Tensor | None:
        """[num_edges], dtype of indptr: the position of each edge; None if that is the edge itself."""
        if self.edges is None:
            return None
        out = torch.empty_like(self.edges)
        out[self.edges.long()] = torch.arange(self.num_edges, dtype=out.dtype, device="cpu")
        return out


def adjacency(
    src: Tensor,
    dst: Tensor,
    num_src: int,
    num_dst: int,
    *,
    weights: Tensor | None = None,
    edge_times: Tensor | None = None,
    node_times: Tensor | None = None,
    what: str = "the graph",
) -> Adjacency:
    """Groups the edges src[e] -> dst[e] by destination, in native code; within a node they keep their order.

    `src`, `dst`: int32 or int64 [num_edges] on the CPU. `weights` [num_edges]: finite and not negative. `edge_times`
    [num_edges] and `node_times` [num_src]: integers. DataError for other shapes, dtypes and values, IndexRangeError for
    an index out of range; `what` names the edges in these messages.
    """
    for name, index in (("src", src), ("dst", dst)):
        if index.device.type != "cpu":
            raise DataError(f"{what}: {name} must be on the CPU to be sampled (got {index.device}). Call .cpu().")
    by_dst, by_src = Index(dst, num_dst), Index(src, num_src)
    wide = by_dst.wide or by_src.wide
    grouped = formats.csr(by_dst, wide)
    order = formats.perm(by_dst, wide)
    sources = formats.column(by_dst, by_src, wide)
    if weights is not None:
        weights = _checked_weights(weights, src.numel(), what)
    if edge_times is not None:
        edge_times = checked_times(edge_times, src.numel(), f"{what}: edge times", "edges")
    if node_times is not None:
        node_times = checked_times(node_times, num_src, f"{what}: node times", "source nodes")
    if order is not None:
        places = order.long()
        weights = None if weights is None else weights[places]
        edge_times = None if edge_times is None else edge_times[places]
    return Adjacency(grouped.indptr, sources, order, weights, edge_times, node_times, num_src, num_dst)


def _checked_weights(weights: Tensor, num_edges: int, what: str) -> Tensor:
    if list(weights.shape) not in ([num_edges], [num_edges, 1]) or weights.is_complex():
        raise DataError(
            f"{what}: weights must be numbers of shape [{num_edges}] (got {weights.dtype} {list(weights.shape)})."
            " Give one for each edge."
        )
    return checked_weights(weights, f"{what}: weights", "edge")


def checked_times(times: Tensor, count: int, what: str, of: str) -> Tensor:
    """`times` as int64 [count] on the CPU. DataError for other shapes, and for floating-point numbers."""
    if times.is_floating_point() or times.is_complex() or times.dtype == torch.bool or list(times.shape) != [count]:
        raise DataError(
            f"{what} must be integers of shape [{count}], one for each of the {of}"
            f" (got {times.dtype} {list(times.shape)}). Convert them with .long()."
        )
    found = times.to("cpu", torch.int64).contiguous()
    if times.dtype == torch.uint64 and found.numel() and int(found.min()) < 0:
        raise DataError(f"{what} must be integers below 2^63 (got larger ones of torch.uint64). Take differences.")
    return found
