"""Edges that have no end in common, chosen greedily in a given order, on the CPU."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from graphweave.core.ranges import range_error
from graphweave.runtime import kernel_cache, sources


def match_edges(src: Tensor, dst: Tensor, order: Tensor, num_nodes: int) -> Tensor:
    """bool [edges]: whether the edge at each place of `order`, an int64 permutation of the edges, has no end in common
    with an edge that was chosen at an earlier place. The edges lead from node src[e] to node dst[e]; each is done after
    the one before it, on the CPU also for tensors elsewhere. IndexRangeError for a node that is none of 0..num_nodes-1.
    """
    ends = [end.detach().to("cpu", torch.int64).contiguous() for end in (src, dst, order)]
    chosen = torch.empty(order.shape, dtype=torch.bool, device="cpu")
    used = torch.zeros(num_nodes, dtype=torch.bool, device="cpu")
    pointers = [t.data_ptr() for t in (*ends, used, chosen)]
    if _library().gw_match_edges(*pointers, order.shape[0], num_nodes):
        wrong = src if bool(((src < 0) | (src >= num_nodes)).any()) else dst
        raise range_error(wrong, num_nodes)
    return chosen.to(order.device)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    found = kernel_cache.library(sources.source("matching.cpp"))
    pointer, long = ctypes.c_void_p, ctypes.c_int64
    found.gw_match_edges.argtypes = (*(pointer,) * 5, long, long)
    found.gw_match_edges.restype = ctypes.c_int32
    return found
