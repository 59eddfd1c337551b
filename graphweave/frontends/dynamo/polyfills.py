"""Library functions that look into tensors to choose a way, and so break the graph: equals that can be traced.

They are in place only while a compiled function is called, as its guards ask for them too, and only for a library that
is imported already. They are equals: another thread that meets one meanwhile computes the same.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from graphweave.frontends.dynamo import sparse_polyfills


def _no_segments(num_segments: int, max_segment_size: int, in_channels: int, out_channels: int) -> bool:
    """RGCNConv asks whether to sort edges by type, which depends on sizes that data decides, and is off when traced."""
    return False


def _typed_linear(self: Any, x: Tensor, type_vec: Tensor) -> Tensor:
    """HeteroLinear: each row times the matrix of its type, where the original sorts rows and loops over types."""
    out = x.unsqueeze(1).bmm(self.weight.index_select(0, type_vec)).squeeze(1)
    return out if self.bias is None else out + self.bias.index_select(0, type_vec)


def _num_nodes(edge_index: Any, num_nodes: int | None = None) -> Any:
    """What a softmax of some relation's edges is over: the largest index and 1, where the original asks for none first.

    A frame that asks is traced for an index that has edges, and is then run for one that has none.
    """
    from torch_geometric.utils.num_nodes import maybe_num_nodes  # optional, and there if this is called

    if num_nodes is not None or type(edge_index) is not Tensor or edge_index.is_sparse:
        return maybe_num_nodes(edge_index, num_nodes)
    return int(torch.cat([edge_index.reshape(-1), edge_index.new_full((1,), -1)]).max()) + 1


_EQUALS: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    ("torch_geometric.backend", ("use_segment_matmul_heuristic",), _no_segments),
    ("torch_geometric.utils._softmax", ("maybe_num_nodes",), _num_nodes),
    ("torch_geometric.nn.dense.linear", ("HeteroLinear", "forward"), _typed_linear),
    *sparse_polyfills.EQUALS,
)
"""Module, attribute, and what takes its place."""

_lock = threading.Lock()
_calls = 0
_originals: list[tuple[Any, str, Any]] = []


@contextmanager
def polyfilled() -> Iterator[None]:
    """Inside, equals are in place. May be nested, and entered by several threads."""
    global _calls
    with _lock:
        _calls += 1
        if _calls == 1:
            _put_in_place()
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if _calls == 0:
                while _originals:
                    owner, name, original = _originals.pop()
                    setattr(owner, name, original)


def in_place() -> bool:
    """Is some compiled function being called?"""
    return _calls > 0


def _put_in_place() -> None:
    for module, path, equal in _EQUALS:
        owner: Any = sys.modules.get(module)
        for name in path[:-1]:
            owner = getattr(owner, name, None)
        if owner is not None and hasattr(owner, path[-1]):
            _originals.append((owner, path[-1], getattr(owner, path[-1])))
            setattr(owner, path[-1], equal)
