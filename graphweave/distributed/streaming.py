"""Linear deterministic greedy partitioning: nodes come one after the other, each with its neighbours."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache

import torch
from torch import Tensor

from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.native_numbers import Int64, NativeNumbers
from graphweave.runtime.toolchain import toolchain
from graphweave.sampling.native import address

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64

SLACK = 0.05
"""A part takes at most this share more than the mean weight of a part, unless a node fits nowhere."""


class _RawStreamedNodes(NativeNumbers):
    """The structure `StreamedNodes` of `native/streaming_partition.cpp`."""

    _fields_ = (*((name, _POINTER) for name in ("indptr", "neighbours", "weights")), ("first", _I64), ("count", _I64))


class GreedyStream:
    """Parts of nodes by linear deterministic greedy (Stanton and Kliot, "Streaming Graph Partitioning for Large
    Distributed Graphs", 2012, section 4). Node v joins the part p of largest

        |neighbours of v in p| * (1 - load(p) / capacity),   capacity = 1.05 * sum of weights / num_parts, rounded up,

    of the parts that have room for it. If it has no neighbour there, or none has room, it joins the part of the
    smallest load. Ties go to the smaller load, then to a part drawn by `seed`. Edges to nodes that are not yet placed,
    self-loops among them, have no effect. It keeps 4 bytes a node. The result is a function of the graph, the order of
    the nodes and `seed`.
    """

    def __init__(self, weights: Tensor, num_parts: int, seed: int) -> None:
        """`weights`: int64 [num_nodes], > 0."""
        self._weights, self._seed, self._placed = weights, seed, 0
        self._capacity = math.ceil((1 + SLACK) * int(weights.sum()) / num_parts)
        self.parts = torch.full((weights.numel(),), -1, dtype=torch.int32)
        """int32 [num_nodes]: the part of each node that came, -1 for the others."""
        self.loads = torch.zeros(num_parts, dtype=torch.int64)
        """int64 [num_parts]: the weight of each part's nodes."""

    def place(self, indptr: Tensor, neighbours: Tensor) -> None:
        """Places the next nodes. The neighbours of the i-th of them, int64, stand at positions `indptr[i]` to
        `indptr[i + 1]`; an edge that is there twice counts twice."""
        first, count = self._placed, indptr.numel() - 1
        weights = self._weights[first : first + count]
        raw = _RawStreamedNodes(address(indptr), address(neighbours), address(weights), first, count)
        parts, loads = address(self.parts), address(self.loads)
        _library(toolchain()).gw_place_stream(raw, parts, loads, self.loads.numel(), self._capacity, self._seed)
        self._placed += count


@lru_cache(maxsize=8)
def _library(tools: object) -> ctypes.CDLL:
    """`tools` is only the key of the cache: other compiler settings give another library."""
    found = kernel_cache.library(sources.source("streaming_partition.cpp"))
    found.gw_place_stream.argtypes = (ctypes.POINTER(_RawStreamedNodes), _POINTER, _POINTER, *(Int64,) * 3)
    found.gw_place_stream.restype = None
    return found
