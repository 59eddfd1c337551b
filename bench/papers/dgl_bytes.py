"""The bytes that a step of DGL moves, counted call by call without caches. Runs in DGL's process.

A call of PyTorch's reads its operands and writes its results; a view moves nothing. A call of DGL's kernels reads, for
each edge, two indices and a row of each operand (g-SpMM, g-SDDMM: section 3 of the paper "Deep Graph Library"), and
writes its results once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from dgl.backend.pytorch import sparse
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

INDICES = 16
"""Bytes of the two int64 indices of an edge."""


class _Counter(TorchDispatchMode):
    """Counts the calls of PyTorch. `quiet` is above 0 while a kernel of DGL runs, which is counted by its operands."""

    def __init__(self) -> None:
        super().__init__()
        self.moved, self.quiet = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not self.quiet and not view:
            self.moved += _size((args, kwargs)) + _size(out)
        return out


def _size(tree: Any) -> int:
    """Bytes of all tensors. An expanded tensor is as large as what is stored."""
    return sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in tree_leaves(tree) if isinstance(t, Tensor))


def _row(x: Any) -> int:
    return 0 if x is None else x[:1].numel() * x.element_size()


def _kernel(counter: _Counter, call: Callable[..., Any], operands: slice) -> Callable[..., Any]:
    """`call` with its first argument, a graph, walked once: for each edge its indices and a row of each operand."""

    @functools.wraps(call)
    def counted(graph: Any, *args: Any, **given: Any) -> Any:
        counter.quiet += 1
        try:
            out = call(graph, *args, **given)
        finally:
            counter.quiet -= 1
        rows = sum(_row(x) for x in args[operands] if x is None or isinstance(x, Tensor))
        counter.moved += graph.num_edges(0) * (INDICES + rows) + _size(out)
        return out

    return counted


KERNELS = {
    "_gspmm": slice(2, 4),
    "_gsddmm": slice(1, 3),
    "_edge_softmax_forward": slice(0, 1),
    "_edge_softmax_backward": slice(0, 2),
}
"""DGL's kernels that walk a graph -> which of the arguments after the graph are tensors."""


def moved_by(step: Callable[[], Any]) -> int:
    """The bytes of one step, forward and backward."""
    counter = _Counter()
    own = {name: getattr(sparse, name) for name in KERNELS}
    for name, operands in KERNELS.items():
        setattr(sparse, name, _kernel(counter, own[name], operands))
    try:
        with counter:
            step()
    finally:
        for name, call in own.items():
            setattr(sparse, name, call)
    return counter.moved
