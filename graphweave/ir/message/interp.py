"""Slow interpreter of message programs: it runs each node as ATen calls and checks the result against the node's type.

`apply` is the meaning of one node. It only makes ATen calls and never looks at values or sizes, so it also runs on fake
tensors and FX proxies. This is how nodes of the algebra become ATen calls again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.core.calls import named
from graphweave.core.errors import DataError, IRError
from graphweave.core.locality import inverse, places_of
from graphweave.core.numbers import Number, typed
from graphweave.core.orders import choose_rows, distinct_rows, order_rows, running_sums
from graphweave.core.own_reducer import OwnReducer
from graphweave.core.ranges import position, range_error
from graphweave.core.ranks import all_reduced, exchanged, steady_rows, summed_back
from graphweave.core.sizes import Size, number
from graphweave.core.types import UNIT, DType, Fold, OwnFold, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import TORCH_DTYPE, materialise, resolve
from graphweave.ir.message.layouts import laid_out
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.message.unions import (
    check_columns,
    each_item,
    equal_runs,
    join_indices,
    numbers_of_segments,
    rounds,
    rows_of_segments,
)
from graphweave.ir.operator_calls import call_of
from graphweave.ir.philox import uniform

Values: TypeAlias = Mapping[Ref, Any] | Sequence[Any]
Types: TypeAlias = Mapping[Ref, ir.ValueType] | Sequence[ir.ValueType]
RowsOf: TypeAlias = Callable[[Space], Any]

aten = torch.ops.aten


# ---------------------------------------------------------------- one node


def _at_once(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    return function(*args, **kwargs)


def apply(
    node: ir.Node, values: Values, types: Types, rows_of: RowsOf, *,
    device: torch.device | str = "cpu", call: Callable[..., object] = _at_once,
) -> Any:  # fmt: skip
    """The value of `node`. Its operands are `values[ref]` of type `types[ref]`; `rows_of(space)` counts rows.

    The value of a map is its int64 index tensor [rows of dom], without negative values; that of `ToUnit` is None.
    Indices must be in range: nothing is checked here. Constants are made on `device`. `call(function, *args)` makes the
    calls that proxies would not see: those of this package's functions, and those without operands. Raises IRError for
    an Input.
    """
    match node:
        case ir.Const(value, t):
            return _full(_sizes(t, rows_of), value, t.dtype, device, call)
        case ir.Random(seed, t):
            return _random(values[seed], t, rows_of, call)
        case ir.MapOf(index, cod, wrap):
            return _index(values[index], _type(types, index), rows_of(cod) if wrap else None)
        case ir.ToUnit():
            return None
        case ir.Pull(x, m):
            return _pull(values[x], _type(types, x), values[m], _map(types, m), rows_of)
        case ir.Push(x, m):
            return _push(node, values[x], _type(types, x), values[m], _map(types, m), rows_of)
        case ir.Pointwise(op, args):
            ts = [_type(types, a) for a in args]
            rank = max(len(t.shape) for t in ts)
            operands = (_with_rank(values[a], t, rank) for a, t in zip(args, ts, strict=True))
            return call(call_of(op), *operands) if op.facts.numbers else call_of(op)(*operands)
        case ir.Concat(xs, dim):
            return _concat([values[x] for x in xs], [_type(types, x) for x in xs], dim, rows_of)
        case ir.MatMul(x, w, m):
            return _matmul(values, types, x, w, m, rows_of)
        case ir.AddMatMul(a, x, w, m):
            return aten.add.Tensor(values[a], _matmul(values, types, x, w, m, rows_of))
        case ir.Gram(x, y, m):
            return _gram(values, types, x, y, m, rows_of)
        case ir.Join(xs, _) if all(_type(types, x).space == UNIT for x in xs):
            return aten.stack.default([values[x] for x in xs])
        case ir.Join(xs, _):
            return aten.cat.default([_with_row(values[x], _type(types, x)) for x in xs], 0)
        case ir.Part(x, of, at):
            return _part(values[x], of, at, rows_of)
        case ir.Input(name):
            raise IRError(f"input {name!r} has no value of its own: it is given")
        case _ if isinstance(node, ir.Opaque):
            return _called(node, values, types, rows_of, device, call)
        case _:
            return _reshaping(node, values[node.x], _type(types, node.x), rows_of)


def _called(
    node: ir.Opaque,
    values: Values,
    types: Types,
    rows_of: RowsOf,
    device: torch.device | str,
    call: Callable[..., object],
) -> object:
    match node:
        case ir.Distinct(keys):
            return call(distinct_rows, [values[key] for key in keys])
        case ir.DistinctRow(distinct):
            return values[distinct].rows
        case ir.DistinctKey(distinct, k):
            return values[distinct].columns[k]
        case ir.JoinIndices(indices, of, at, wraps):
            return call(join_indices, [values[i] for i in indices], _rows_of_each(of, rows_of), at, wraps)
        case ir.RowsOfSegments(of, at):
            return call(rows_of_segments, _rows_of_each(of, rows_of), at, torch.device(device))
        case ir.NumbersOfSegments(of, numbers):
            return call(numbers_of_segments, _rows_of_each(of, rows_of), numbers, torch.device(device))
        case ir.EqualRuns(of, space):
            return call(equal_runs, rows_of(space), rows_of(of), torch.device(device))
        case ir.Rounds(of, space):
            return call(rounds, rows_of(space), rows_of(of), torch.device(device))
        case ir.EachItem(m, _, space):
            return call(each_item, values[m], rows_of(_map(types, m).cod), rows_of(space))
        case ir.Places(src, dst, of, order):
            return call(places_of, values[src], values[dst], rows_of(of), order)
        case ir.Inverse(x):
            return call(inverse, values[x])
        case ir.Reordered(x, index):
            return call(torch.index_select, values[x], 0, values[index])
        case ir.Order(keys, descending):
            return call(order_rows, [values[key] for key in keys], descending)
        case ir.Chosen(mask):
            return call(choose_rows, values[mask])
        case ir.RunningSum(x, reverse):
            return call(running_sums, values[x], reverse)
        case ir.Exchange(x, link, steady=True):
            return call(steady_rows, values[x], link)
        case ir.Exchange(x, link, slot=slot):
            return call(exchanged, values[x], link, slot)
        case ir.ExchangeBack(x, fold, link):
            return call(summed_back, values[x], fold.value, link)
        case ir.AllReduce(x, fold, group):
            return call(all_reduced, values[x], fold.value, group)
        case ir.After(x):
            return values[x]
        case ir.LaidOut(x, order, whole):
            return call(laid_out, values[x], order, whole)
        case ir.Own(x, order):
            return call(laid_out, values[x], order, True)
        case ir.Kept(x):
            return torch.clone(values[x])
        case ir.AssertIndex(index, size):
            return call(check_columns, values[index], size)
        case ir.Aten():
            return _aten(node, values, device, call)


def _aten(node: ir.Aten, values: Values, device: torch.device | str, call: Callable[..., object]) -> object:
    keywords = {name: materialise(a, values) for name, a in node.kwargs}
    if node.target in _MADE_BY_COMPILER and torch.device(device).type != "cpu":
        keywords.setdefault("device", torch.device(device))
    return call(resolve(node.target), *(materialise(a, values) for a in node.args), **keywords)


_MADE_BY_COMPILER = frozenset({named.ARANGE, named.ARANGE_OF_STEPS, named.TENSOR_OF_SIZE})
"""Calls that make tensors: those of the user name their device, and the compiler's own are made where programs run."""


def _reshaping(node: ir.Node, x: object, t: ir.Type, rows_of: RowsOf) -> object:
    lead = _lead(t.space)
    match node:
        case ir.Cast(_, dtype):
            return aten._to_copy.default(x, dtype=TORCH_DTYPE[dtype])
        case ir.Reduce(_, fold, dims, keepdim):
            return _reduce(x, t, fold, [d + lead for d in dims], keepdim)
        case ir.Reshape(_, shape):
            return aten.reshape.default(x, _sizes(ir.Type(t.space, shape, t.dtype), rows_of))
        case ir.Broadcast(_, shape):
            wide = _with_rank(x, t, len(shape))
            return aten.expand.default(wide, _sizes(ir.Type(t.space, shape, t.dtype), rows_of))
        case ir.Permute(_, perm):
            return aten.permute.default(x, [*range(lead), *(p + lead for p in perm)])
        case ir.Slice(_, dim, start, stop, step):
            return aten.slice.Tensor(x, dim + lead, start, stop, step)
        case ir.Pad(_, dim, before, after):
            # constant_pad_nd lists pairs from the last dim backwards
            return aten.constant_pad_nd.default(x, [0, 0] * (len(t.shape) - 1 - dim) + [before, after])
        case _:
            raise AssertionError(f"unknown node {node!r}")


def _index(index: object, t: ir.Type, wrap_at: object) -> object:
    if t.dtype is not DType.i64:
        index = aten._to_copy.default(index, dtype=torch.int64)
    if wrap_at is None:
        return index
    return aten.where.self(aten.lt.Scalar(index, 0), aten.add.Tensor(index, wrap_at), index)


def _pull(x: object, t: ir.Type, index: object, m: ir.MapType, rows_of: RowsOf) -> object:
    if m.cod == UNIT:
        return x if m.dom == UNIT else aten.expand.default(x, [rows_of(m.dom), *t.shape])
    if m.dom == UNIT:
        return aten.squeeze.dims(aten.index_select.default(x, 0, aten.unsqueeze.default(index, 0)), [0])
    return aten.index_select.default(x, 0, index)


def _push(node: ir.Push, x: object, t: ir.Type, index: object, m: ir.MapType, rows_of: RowsOf) -> object:
    if m.dom == m.cod == UNIT:
        return x
    if m.cod == UNIT and node.is_plain_sum:
        return aten.sum.dim_IntList(x, [0], False, dtype=TORCH_DTYPE[t.dtype])
    rows = _with_row(x, t)
    if m.cod == UNIT:
        # All rows are scattered to row 0, the only one: amax would fail if there were no rows.
        index = aten.new_zeros.default(x, [rows_of(m.dom)], dtype=torch.int64)
    elif m.dom == UNIT:
        index = aten.unsqueeze.default(index, 0)
    size = [1 if m.cod == UNIT else rows_of(m.cod), *t.shape]
    if isinstance(node.fold, OwnFold):
        reducer = OwnReducer(node.fold.combine, node.fold.identity, slope="")
        return torch.ops.graphweave.fold_rows.default(rows, index, size[0], reducer.text)
    base = aten.new_full.default(rows, size, typed(node.empty, t.dtype))
    if node.is_plain_sum:
        return aten.index_add.default(base, 0, index, rows)
    # With include_self=False, rows to which nothing is pushed keep the value of `base`.
    places = index
    for _ in t.shape:
        places = aten.unsqueeze.default(places, -1)
    places = aten.expand.default(places, [1 if m.dom == UNIT else rows_of(m.dom), *t.shape])
    out = aten.scatter_reduce.two(base, 0, places, rows, node.fold.facts.aten, include_self=False)
    return aten.squeeze.dims(out, [0]) if m.cod == UNIT else out


def _reduce(x: object, t: ir.Type, fold: Fold, dims: list[int], keepdim: bool) -> object:
    if not dims:  # torch would take no dims as all dims
        return x
    match fold:
        case Fold.sum:
            return aten.sum.dim_IntList(x, dims, keepdim, dtype=TORCH_DTYPE[t.dtype])
        case Fold.max:
            return aten.amax.default(x, dims, keepdim)
        case Fold.min:
            return aten.amin.default(x, dims, keepdim)
        case Fold.mul:
            for d in sorted(dims, reverse=True):
                x = aten.prod.dim_int(x, d, keepdim, dtype=TORCH_DTYPE[t.dtype])
            return x


def _concat(xs: list[object], ts: list[ir.Type], dim: int, rows_of: RowsOf) -> object:
    space = next((t.space for t in ts if t.space != UNIT), UNIT)
    wide = [
        x if t.space == space else aten.expand.default(x, [rows_of(space), *t.shape])
        for x, t in zip(xs, ts, strict=True)
    ]
    return aten.cat.default(wide, dim + _lead(space))


def _matmul(values: Values, types: Types, x: Ref, w: Ref, m: Ref | None, rows_of: RowsOf) -> Tensor:
    rows, t = values[x], _type(types, x)
    if m is not None:
        matrices = _pull(values[w], _type(types, w), values[m], _map(types, m), rows_of)
        return aten.sum.dim_IntList(aten.mul.Tensor(aten.unsqueeze.default(rows, -1), matrices), [-2])
    rows = _with_row(rows, t)
    if len(t.shape) == 1:
        out = aten.mm.default(rows, values[w])
    else:
        out = aten.permute.default(aten.bmm.default(aten.permute.default(rows, [1, 0, 2]), values[w]), [1, 0, 2])
    return aten.squeeze.dims(out, [0]) if t.space == UNIT else out


def _gram(values: Values, types: Types, x: Ref, y: Ref, m: Ref | None, rows_of: RowsOf) -> object:
    t, u = _type(types, x), _type(types, y)
    a, b = _with_row(values[x], t), _with_row(values[y], u)
    if m is not None:
        index = aten.unsqueeze.default(values[m], 0) if t.space == UNIT else values[m]
        zeros = aten.new_zeros.default(a, [rows_of(_map(types, m).cod), *t.shape, u.shape[-1]])
        outer = aten.mul.Tensor(aten.unsqueeze.default(a, -1), aten.unsqueeze.default(b, -2))
        return aten.index_add.default(zeros, 0, index, outer)
    if len(t.shape) == 1:
        return aten.mm.default(aten.permute.default(a, [1, 0]), b)
    return aten.bmm.default(aten.permute.default(a, [1, 2, 0]), aten.permute.default(b, [1, 0, 2]))


def _part(x: object, of: Sequence[Space], at: int, rows_of: RowsOf) -> object:
    start = sum(_rows_of_each(of[:at], rows_of))
    if of[at] == UNIT:
        return aten.select.int(x, 0, start)
    return aten.slice.Tensor(x, 0, start, start + rows_of(of[at]))


def _rows_of_each(of: Sequence[Space], rows_of: RowsOf) -> list[int]:
    return [1 if space == UNIT else rows_of(space) for space in of]


def _full(
    sizes: list[int], value: Number, dtype: DType, device: torch.device | str, call: Callable[..., object]
) -> object:
    of = TORCH_DTYPE[dtype]
    return call(aten.full.default, sizes, typed(value, dtype), dtype=of, device=torch.device(device))


def _random(seed: Tensor, t: ir.Type, rows_of: RowsOf, call: Callable[..., object]) -> Tensor:
    sizes = _sizes(t, rows_of)
    count = math.prod(sizes)
    position = aten.arange.default(count, dtype=torch.int64, device=seed.device)
    return aten.reshape.default(call(uniform, seed, position, TORCH_DTYPE[t.dtype]), sizes)


def _sizes(t: ir.Type, rows_of: RowsOf) -> list[int]:
    return [*t.shape] if t.space == UNIT else [rows_of(t.space), *t.shape]


def _lead(space: Space) -> int:
    """The number of tensor dims before the feature dims."""
    return 0 if space == UNIT else 1


def _with_row(x: object, t: ir.Type) -> object:
    return aten.unsqueeze.default(x, 0) if t.space == UNIT else x


def _with_rank(x: object, t: ir.Type, rank: int) -> object:
    """`x` with feature dims of size 1 added in front of the others, up to `rank`, so that tensors with rows broadcast
    as their features do."""
    for _ in range(rank - len(t.shape) if t.space != UNIT else 0):
        x = aten.unsqueeze.default(x, 1)
    return x


def _type(types: Types, ref: Ref) -> ir.Type:
    t = types[ref]
    assert isinstance(t, ir.Type), f"%{ref}: {t}"
    return t


def _map(types: Types, ref: Ref) -> ir.MapType:
    t = types[ref]
    assert isinstance(t, ir.MapType), f"%{ref}: {t}"
    return t


# ---------------------------------------------------------------- a program


def interp(
    program: Program,
    inputs: Mapping[str, object],
    rows: Mapping[Space, int] | None = None,
) -> list[Any]:
    """The outputs of `program` on `inputs` by name (tensors `[rows, *shape]`, None where the output is None).

    Row counts come from the inputs, from `program.spaces` and from `rows`, which must have the spaces that the others
    do not tell. Raises DataError for an input that is missing or does not fit its type, IndexRangeError for a map value
    out of range, IRError if a node's value is not of its type or a row count is unknown.
    """
    counts = RowCounts(program, inputs, rows or {})
    device = next((v.device for v in inputs.values() if isinstance(v, torch.Tensor)), torch.device("cpu"))
    values: list[Any] = []
    for ref, (node, t) in enumerate(zip(program.nodes, program.types, strict=True)):
        if isinstance(node, ir.Input):
            values.append(_given(node, inputs))
            continue
        if isinstance(node, ir.MapOf):
            _check_range(ref, node, values[node.index], counts(node.cod))
        value = apply(node, values, program.types, counts, device=device)
        if isinstance(t, ir.Type):
            if isinstance(node, ir.Opaque) and isinstance(value, torch.Tensor) and value.ndim:
                counts.learn(t.space, value.shape[0])
            _check_type(ref, node, value, _sizes(t, counts), t.dtype)
        elif isinstance(t, ir.DistinctType):
            counts.learn(t.space, value.columns[0].shape[0])
        values.append(value)
    return [None if ref is None else values[ref] for ref in program.outputs]


class RowCounts:
    """`counts(space)` is a row count: given, learnt from a tensor, or computed from the sizes in `Program.spaces`."""

    def __init__(self, program: Program, inputs: Mapping[str, object], rows: Mapping[Space, int]) -> None:
        self._sizes = dict(program.spaces)
        self._known: dict[Space, int] = {UNIT: 1}
        self._numbers: dict[Size, int] = {}
        for space, n in rows.items():
            self.learn(space, n)
        for node in program.nodes:
            value = inputs.get(node.name) if isinstance(node, ir.Input) else None
            match getattr(node, "type", None), value:
                case ir.Type(space, shape), torch.Tensor() if value.ndim == len(shape) + _lead(space) and space != UNIT:
                    self.learn(space, value.shape[0])
                case ir.AnyType(size=size), int() if size is not None:
                    self._numbers.setdefault(size, value)

    def __call__(self, space: Space) -> int:
        if space not in self._known:
            n = number(self._sizes.get(space), self._numbers)
            if n is None:
                raise IRError(f"rows of space {space} are unknown: no input lies on it. Give them as rows={{...}}.")
            self.learn(space, n)
        return self._known[space]

    def learn(self, space: Space, n: int) -> None:
        """Records that `space` has `n` rows; DataError if another number is known."""
        if space == UNIT:
            return
        known = self._known.setdefault(space, n)
        if known != n:
            raise DataError(f"space {space} has {known} rows by one tensor and {n} by another")
        size = self._sizes.get(space)
        if size is not None:
            self._numbers.setdefault(size, n)


def _given(node: ir.Input, inputs: Mapping[str, Any]) -> object:
    if node.name not in inputs:
        raise DataError(f"input {node.name!r} is missing (got {', '.join(inputs) or 'none'})")
    value, t = inputs[node.name], node.type
    if isinstance(t, ir.Type):
        lead = _lead(t.space)
        fits = isinstance(value, torch.Tensor) and value.dtype is TORCH_DTYPE[t.dtype]
        if not fits or value.ndim < lead or tuple(value.shape[lead:]) != t.shape:
            got = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            raise DataError(
                f"input {node.name!r} must be {t.dtype.value} of rows {list(t.shape)} on {t.space} (got {got})"
            )
    return value


def _check_range(ref: Ref, node: ir.MapOf, index: torch.Tensor, rows: int) -> None:
    first = -rows if node.wrap else 0
    at = position(index, rows, first)
    if at is not None:
        raise range_error(index, rows, first=first, at=at, what=f"map %{ref} to {node.cod}")


def _check_type(ref: Ref, node: ir.Node, value: object, sizes: list[int], dtype: DType) -> None:
    if not isinstance(value, torch.Tensor) or list(value.shape) != sizes or value.dtype is not TORCH_DTYPE[dtype]:
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise IRError(f"%{ref} {node!r}: its type says {TORCH_DTYPE[dtype]} {sizes}, its value is {got}")
