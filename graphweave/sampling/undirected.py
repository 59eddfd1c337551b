"""Undirected graphs with weights of edges and sizes of nodes, which are what partitioners take."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.ranges import range_error
from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.native_numbers import Int64, NativeNumbers
from graphweave.runtime.toolchain import toolchain
from graphweave.sampling.native import address

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


class _RawUndirected(NativeNumbers):
    """The structure `Undirected` of `native/label_propagation.cpp`."""

    _fields_ = (*((n, _POINTER) for n in ("indptr", "neighbours", "weights", "sizes")), ("num_nodes", _I64))


@dataclass(frozen=True, eq=False)
class Undirected:
    """The neighbours of node v stand at positions `indptr[v]` to `indptr[v + 1]`, each edge at both of its ends."""

    indptr: Tensor
    """int64 [num_nodes + 1]"""
    neighbours: Tensor
    """int64 [positions], in rising order for each node, without the node itself."""
    weights: Tensor
    """int64 [positions], > 0"""
    sizes: Tensor
    """int64 [num_nodes], > 0"""

    @property
    def num_nodes(self) -> int:
        return self.sizes.numel()

    def propagate(self, labels: Tensor, totals: Tensor, order: Tensor, most: int, least: int) -> int:
        """One round of size-constrained label propagation over the nodes in `order`, in place; see `gw_propagate`.
        Returns how many nodes changed their label."""
        arrays = map(address, (order, labels, totals))
        return int(_library(toolchain()).gw_propagate(self._raw(), *arrays, totals.numel(), most, least))

    def breadth_first(self, roots: Tensor) -> Tensor:
        """int64 [num_nodes]: the nodes in the order in which a search in breadth finds them, which begins at the first
        of `roots` (all nodes in some order), and again at the next one not yet found."""
        order = torch.empty_like(roots)
        _library(toolchain()).gw_breadth_first(self._raw(), address(roots), address(order))
        return order

    def contracted(self, labels: Tensor) -> tuple[Undirected, Tensor]:
        """The graph whose nodes are the labels in use, and int64 [num_nodes]: the node that each node is part of.
        Edges within a label are dropped, those between two labels are one edge of their total weight."""
        _, coarse = labels.unique(return_inverse=True)
        count = int(coarse.max()) + 1
        sizes = torch.zeros(count, dtype=torch.int64, device="cpu").scatter_add_(0, coarse, self.sizes)
        ends = coarse.repeat_interleave(self.indptr.diff()), coarse[self.neighbours]
        return undirected(*ends, self.weights, sizes), coarse

    def cut(self, labels: Tensor) -> int:
        """The weight of the edges whose ends have different labels."""
        here = labels.repeat_interleave(self.indptr.diff())
        return int(self.weights[here != labels[self.neighbours]].sum()) // 2

    def _raw(self) -> _RawUndirected:
        arrays = (self.indptr, self.neighbours, self.weights, self.sizes)
        return _RawUndirected(*map(address, arrays), self.num_nodes)


def undirected(src: Tensor, dst: Tensor, weights: Tensor, sizes: Tensor) -> Undirected:
    """The graph whose edge from u to v weighs what all given edges src[e] -> dst[e] from u to v do; these must be given
    in both directions. Loops are dropped. `sizes`: int64 [num_nodes]."""
    count = sizes.numel()
    check_pairs(count, count)
    keep = src != dst
    keys, place = (src[keep] * count + dst[keep]).unique(return_inverse=True)
    total = torch.zeros(keys.numel(), dtype=torch.int64, device="cpu").scatter_add_(0, place, weights[keep])
    return _of_keys(keys, total, sizes)


def undirected_of(src: Tensor, dst: Tensor, num_nodes: int, sizes: Tensor | None = None) -> Undirected:
    """The graph in which u and v are joined if there is an edge between them in any direction; its weight is the number
    of these edges. `sizes`: int64 [num_nodes], > 0; by default 1 each."""
    check_pairs(num_nodes, num_nodes)
    u, v = src.long(), dst.long()
    loop = u == v
    if bool(loop.any()):
        u, v = u[~loop], v[~loop]
    keys = torch.empty(2 * u.numel(), dtype=torch.int64, device="cpu")
    for half, a, b in zip(keys.chunk(2), (u, v), (v, u), strict=False):
        torch.mul(a, num_nodes, out=half).add_(b)
    keys.numpy().sort()  # in place, in a fifth of the time of torch.unique with its inverse
    keys, total = keys.unique_consecutive(return_counts=True)
    sizes = torch.ones(num_nodes, dtype=torch.int64, device="cpu") if sizes is None else sizes
    return _of_keys(keys, total, sizes)


def _of_keys(keys: Tensor, weights: Tensor, sizes: Tensor) -> Undirected:
    """`keys`: u * num_nodes + v for each neighbour v of u, in rising order."""
    count = sizes.numel()
    heads = keys.div(max(count, 1), rounding_mode="floor")
    indptr = torch.zeros(count + 1, dtype=torch.int64, device="cpu")
    indptr[1:] = torch.bincount(heads, minlength=count).cumsum(0)
    return Undirected(indptr, keys - heads * count, weights, sizes)


def check_pairs(num_src: int, num_dst: int) -> None:
    """DataError if the pairs of a source and a destination cannot be numbered in 64 bits."""
    if num_src * num_dst >= 1 << 63:
        raise DataError(f"expected fewer than 2^63 pairs of nodes (got {num_src} x {num_dst}). Take fewer nodes.")


def matched(indptr: Tensor, neighbours: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    """int64 [num_nodes]: the smaller number of each node and of the neighbour with which it is joined.

    The nodes choose in `order`, each the neighbour of the heaviest edge that is not yet joined; a node that finds none
    stays alone. `indptr`, `neighbours` and `order` are int64, `weights` float64 [positions].
    """
    count = order.numel()
    if neighbours.numel() and not 0 <= int(neighbours.min()) <= int(neighbours.max()) < count:
        raise range_error(neighbours, count, what="neighbours", of="nodes", do="Correct it.")
    pair = torch.empty_like(order)
    arrays = [t.contiguous() for t in (indptr, neighbours, weights, order)]
    _library(toolchain()).gw_match(*map(address, arrays), count, address(pair))
    return pair


@lru_cache(maxsize=8)
def _library(tools: object) -> ctypes.CDLL:
    """`tools` is only the key of the cache: other compiler settings give another library."""
    found = kernel_cache.library(sources.source("label_propagation.cpp"))
    graph = ctypes.POINTER(_RawUndirected)
    found.gw_propagate.argtypes = (graph, *(_POINTER,) * 3, *(Int64,) * 3)
    found.gw_propagate.restype = _I64
    found.gw_breadth_first.argtypes = (graph, _POINTER, _POINTER)
    found.gw_breadth_first.restype = None
    found.gw_match.argtypes = (*(_POINTER,) * 4, Int64, _POINTER)
    found.gw_match.restype = None
    return found
