"""How a `vmap` inside of a compiled function runs gathers, scatters, joins and lookups on a whole batch at once.

PyTorch's own batching rules for these operators read sizes as numbers, which compiles the number of nodes and edges in,
so that every size of graph would be a compilation of its own. The rules here read sizes as symbols, and give what
PyTorch's rules give, the batch in front. They are in place from the first `vmap` that a trace for this backend enters
until the compilation ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._dynamo.variables import ctx_manager
from torch._functorch.autograd_function import VmapInfo
from torch._ops import OpOverload

_Dims: TypeAlias = Sequence[Any]
"""Which dim of each argument is the batch; None for an argument that is the same for the whole batch."""

_Rule: TypeAlias = Callable[..., tuple[Any, Any]]
"""Of the batch, the batch's dim in each argument, and the arguments: the result and its dim."""


@contextmanager
def batches_of_any_size() -> Iterator[None]:
    """Within the block, the first `vmap` that Dynamo enters puts the rules in place, until the end of the block."""
    vmap = getattr(ctx_manager, "VmapIncrementNestingCtxManagerVariable", None)  # absent in some versions
    if vmap is None:
        yield
        return
    enter = vmap.enter
    with ExitStack() as held:
        in_place = False

        def entered(self: object, tx: object) -> object:
            nonlocal in_place
            if not in_place:
                held.enter_context(rules_in_place())
                in_place = True
            return enter(self, tx)

        vmap.enter = entered
        held.callback(setattr, vmap, "enter", enter)
        yield


def in_vmap() -> bool:
    """Whether what is traced now stands inside of a `vmap`."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


@contextmanager
def rules_in_place() -> Iterator[None]:
    """Within the block, PyTorch's `vmap` follows the rules of this file."""
    with torch.library._scoped_library("aten", "FRAGMENT") as library:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that its own rules are overridden
            for name, rule in _RULES.items():
                torch.library.register_vmap(f"aten::{name}", rule, lib=library)
        yield


def _each_entry(op: OpOverload) -> _Rule:
    """`op(self, dim, index, ...)` whose index has an entry for each element of what is moved."""

    def rule(
        info: VmapInfo, dims: _Dims, self: Tensor, dim: int, index: Tensor, *rest: object, **options: object
    ) -> tuple[Tensor, int]:
        rank = _rank(self, dims[0])
        x, *others = _whole(info.batch_size, (self, *rest), (dims[0], *dims[3:]))
        out = op(x, _behind_batch(dim, rank), _with_batch(index, dims[2], info.batch_size), *others, **options)
        return out.squeeze(-1) if (rank if others else _rank(index, dims[2])) == 0 else out, 0

    return rule


def _each_row(op: OpOverload, by_entries: Callable[..., Tensor]) -> _Rule:
    """`op(self, dim, index, ...)` whose index has an entry for each row of what is moved. `by_entries` does the same
    with an entry for each element, for an index that differs over the batch."""

    def rule(
        info: VmapInfo, dims: _Dims, self: Tensor, dim: int, index: Tensor, *rest: Tensor, **options: object
    ) -> tuple[Tensor, int]:
        rank = _rank(self, dims[0])
        x, *others = _whole(info.batch_size, (self, *rest), (dims[0], *dims[3:]))
        dim = _behind_batch(dim, rank)
        if dims[2] is None:
            out = op(x, dim, index, *others, **options)
        else:
            moved = others[0] if others else x
            rows = _with_batch(index, dims[2], info.batch_size)
            rows = rows.reshape([n if i in (0, dim) else 1 for i, n in enumerate(_replaced(moved, dim, rows.size(1)))])
            entries = rows.expand(_replaced(moved, dim, rows.size(dim)))
            out = by_entries(x, dim, entries, *others, **options)
        return out.squeeze(-1) if rank == 0 else out, 0

    return rule


def _write_in_place(rule: _Rule) -> _Rule:
    """The rule for the form of an operator that writes into its first argument."""

    def written(info: VmapInfo, dims: _Dims, self: Tensor, *rest: object, **options: object) -> tuple[Tensor, int]:
        if dims[0] is None:
            raise RuntimeError(
                "vmap: what differs over the batch cannot be written into a tensor that is the same for all of it. "
                "Make that tensor from one that differs over the batch, as by x.new_zeros(...), or use the form of the "
                "operator that returns a new tensor."
            )
        rule(info, dims, self, *rest, **options)
        return self, dims[0]

    return written


def _concatenate(info: VmapInfo, dims: _Dims, tensors: Sequence[Tensor], dim: int = 0) -> tuple[Tensor, int]:
    """`cat`, which leaves out empty tensors of one dim among others."""
    rank = max(map(_rank, tensors, dims[0]))
    parts = [
        _with_batch(x, at, info.batch_size)
        for x, at in zip(tensors, dims[0], strict=True)
        if not (rank > 1 == _rank(x, at) and x.numel() == 0)
    ]
    return torch.cat(parts, _behind_batch(dim, rank)), 0


def _looked_up(
    info: object, dims: _Dims, weight: Tensor, indices: Tensor, padding_idx: int = -1, by_frequency: bool = False,
    sparse: bool = False,
) -> tuple[Tensor, int]:  # fmt: skip
    """`embedding`. Tables that differ over the batch are one table, whose rows have the features of all of them."""
    if dims[0] is None:
        return torch.embedding(weight, indices, padding_idx, by_frequency, sparse), dims[1]
    tables = weight.movedim(dims[0], 1)
    found = torch.embedding(tables.flatten(1), indices, padding_idx, by_frequency, sparse)
    found = found.unflatten(-1, tables.shape[1:])
    if dims[1] is None:
        return found, indices.dim()
    return found.diagonal(0, dims[1], indices.dim()).movedim(-1, 0), 0


def _layer_norm(
    info: VmapInfo, dims: _Dims, x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """`native_layer_norm`. A weight or a bias that differs over the batch is applied behind it."""
    x = _with_batch(x, dims[0], info.batch_size)
    if dims[2] is None and dims[3] is None:
        return torch.native_layer_norm(x, shape, weight, bias, eps), (0, 0, 0)
    out, mean, rstd = torch.native_layer_norm(x, shape, None, None, eps)
    if weight is not None:
        out = out * _beside(weight, dims[2], out)
    if bias is not None:
        out = out + _beside(bias, dims[3], out)
    return (out, mean, rstd), (0, 0, 0)


def _beside(w: Tensor, at: int | None, x: Tensor) -> Tensor:
    """`w`, which belongs to the last dims of `x`, in a form that is broadcast along the others."""
    return w if at is None else w.movedim(at, 0).unflatten(0, (-1, *[1] * (x.dim() - w.dim())))


def _whole(size: int, args: Sequence[object], dims: _Dims) -> list[Any]:
    """Arguments with the batch in front of each tensor."""
    return [_with_batch(x, at, size) if isinstance(x, Tensor) else x for x, at in zip(args, dims, strict=True)]


def _with_batch(x: Tensor, at: int | None, size: int) -> Tensor:
    """`x` with the batch as its first dim, and one dim behind it at least."""
    x = x.movedim(at, 0) if at is not None else x.expand(size, *x.shape)
    return x.unsqueeze(-1) if x.dim() == 1 else x


def _replaced(x: Tensor, dim: int, size: int) -> list[int]:
    """The shape of `x` with another size of `dim`."""
    return [*x.shape[:dim], size, *x.shape[dim + 1 :]]


def _rank(x: Tensor, at: int | None) -> int:
    """The number of dims that `x` has inside of `vmap`."""
    return x.dim() - (at is not None)


def _behind_batch(dim: int, rank: int) -> int:
    """`dim` of a tensor of `rank` dims, in the tensor that has the batch in front."""
    return dim % max(rank, 1) + 1


def _sum(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: int = 1) -> Tensor:
    return x.scatter_add(dim, index, source if alpha == 1 else source * alpha)


def _sum_into(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: int = 1) -> Tensor:
    return x.scatter_add_(dim, index, source if alpha == 1 else source * alpha)


_aten = torch.ops.aten
_RULES: dict[str, _Rule] = {
    "gather": _each_entry(_aten.gather.default),
    "scatter.src": _each_entry(_aten.scatter.src),
    "scatter.value": _each_entry(_aten.scatter.value),
    "scatter_add": _each_entry(_aten.scatter_add.default),
    "scatter_reduce.two": _each_entry(_aten.scatter_reduce.two),
    "scatter_.src": _write_in_place(_each_entry(_aten.scatter_.src)),
    "scatter_.value": _write_in_place(_each_entry(_aten.scatter_.value)),
    "scatter_add_": _write_in_place(_each_entry(_aten.scatter_add_.default)),
    "scatter_reduce_.two": _write_in_place(_each_entry(_aten.scatter_reduce_.two)),
    "index_select": _each_row(_aten.index_select.default, torch.gather),
    "index_add": _each_row(_aten.index_add.default, _sum),
    "index_copy": _each_row(_aten.index_copy.default, torch.scatter),
    "index_reduce": _each_row(_aten.index_reduce.default, torch.scatter_reduce),
    "index_add_": _write_in_place(_each_row(_aten.index_add_.default, _sum_into)),
    "index_copy_": _write_in_place(_each_row(_aten.index_copy_.default, Tensor.scatter_)),
    "index_reduce_": _write_in_place(_each_row(_aten.index_reduce_.default, Tensor.scatter_reduce_)),
    "cat": _concatenate,
    "embedding": _looked_up,
    "native_layer_norm": _layer_norm,
}
"""Operator -> its rule."""
