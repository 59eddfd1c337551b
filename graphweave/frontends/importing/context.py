"""The class that handlers of ATen calls use to build nodes: operands, constants, casts, alignment, moves along maps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from sympy import Expr
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import statically_known_true

from graphweave.analysis.nonnegative import nonnegative
from graphweave.core.calls import named
from graphweave.core.errors import IRError
from graphweave.core.lines import NOWHERE
from graphweave.core.numbers import Number, alike, converted, typed
from graphweave.core.types import UNIT, AnyFold, DType, Fold, Op, Space
from graphweave.frontends.calls.captured_sizes import (
    Size,
    expression,
    fixed,
    hint,
    is_tensor,
    of_sympy,
    rank,
    shape,
    val,
)
from graphweave.frontends.calls.number_formulas import NumberFormulas
from graphweave.frontends.calls.row_rules import pulled
from graphweave.frontends.importing.spaces import Spaces
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import DTYPE_OF, TORCH_DTYPE
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel

_LONGEST_RUN = 1024
"""Longer runs are not told from other edges: several threads share a long row, for which they need its CSR."""

Handler: TypeAlias = "Callable[[Context, fx.Node], ir.Ref | None]"
"""Translates one call. It returns None, or raises IRError with the reason, if the call has to stay an ATen call."""


class Context:
    """The program under construction. `refs[node]` is the translation of an FX node, `loc` the user's line of the
    current node.

    `attributes` are inputs whose value is part of the program, `effects` are calls that must run although nothing reads
    their results, and `seeded` names the calls whose random numbers became functions of a seed.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.builder = Builder()
        self.spaces = spaces
        self.refs: dict[fx.Node, ir.Ref] = {}
        self.sizes: dict[Any, ir.Ref] = {}
        self.attributes: dict[ir.Ref, Any] = {}
        self.arranged: dict[ir.Ref, range] = {}
        """Attributes that are numbers at equal distances."""
        self.effects: list[ir.Ref] = []
        self.formulas = NumberFormulas()
        self.columns: set[ir.Ref] = set()
        """Values that name a column of the row that they were found in."""
        self.seeded: set[str] = set()
        self.loc = NOWHERE
        self.serial = 0
        """The number of the last call that draws or writes. It tells equal calls apart."""

    # ------------------------------------------------------------ values

    def emit(self, node: ir.Node) -> ir.Ref:
        return self.builder.add(node, self.loc)

    def type(self, ref: ir.Ref) -> ir.Type:
        t = self.builder.types[ref]
        if not isinstance(t, ir.Type):
            raise IRError("operand is ", t, ", not a value on a space")
        return t

    def value(self, arg: Any) -> ir.Ref:
        """The translation of a tensor operand; IRError if it is outside the algebra."""
        if not is_tensor(arg):
            raise IRError(f"operand {arg!r} is no tensor")
        ref = self.refs[self.spaces.rep(arg)]
        self.type(ref)
        return ref

    def wanted(self, node: fx.Node) -> ir.Type | ir.AnyType:
        """The type that the translation of `node` must have."""
        value = val(node)
        if not isinstance(value, torch.Tensor):
            return _described(value)
        space, dtype = self.spaces.space_of(node), DTYPE_OF.get(value.dtype)
        sizes = [fixed(n) for n in (value.shape if space == UNIT else value.shape[1:])]
        features = tuple(n for n in sizes if n is not None)
        if dtype is None or len(features) < len(sizes) or value.layout is not torch.strided:
            return _described(value)
        return ir.Type(space, features, dtype)

    def result(self, node: fx.Node) -> ir.Type:
        t = self.wanted(node)
        if not isinstance(t, ir.Type):
            raise IRError(f"the result {t} is no value on a space")
        return t

    # ------------------------------------------------------------ constants and casts

    def const(self, value: Number, dtype: DType, space: Space = UNIT, features: tuple[int, ...] = ()) -> ir.Ref:
        """`value` everywhere. IRError if it is no number of `dtype`: then PyTorch says what it means."""
        return self.emit(ir.Const(typed(value, dtype), ir.Type(space, features, dtype)))

    def number_of(self, ref: ir.Ref) -> Number | None:
        """The number that all elements of a value are; None unless they are known to be one number."""
        node = self.builder.nodes[ref]
        match node:
            case ir.Const(value):
                return value
            case ir.Broadcast(x) | ir.Reshape(x) | ir.Permute(x) | ir.Pull(x):
                return self.number_of(x)
            case ir.Cast(x, dtype):
                number = self.number_of(x)
                return None if number is None else converted(number, self.type(x).dtype, dtype)
            case ir.Pointwise(op, args) if op in _WHOLE and not self.type(ref).dtype.is_float:
                numbers = [self.number_of(a) for a in args]
                return None if None in numbers else _WHOLE[op](*numbers)
            case ir.Input() if numel(self.type(ref).shape) == 1:
                return self.counted(ref, 0)
            case _:
                return None

    def counted(self, ref: ir.Ref, position: int) -> int | None:
        """The number at `position` of shared numbers that `arange` made; None for any other value."""
        node = self.builder.nodes[ref]
        if isinstance(node, ir.Reshape):
            return self.counted(node.x, position)
        counted = self.arranged.get(ref)
        return None if counted is None else counted[position]

    def cast(self, ref: ir.Ref, dtype: DType) -> ir.Ref:
        t = self.type(ref)
        if t.dtype is dtype:
            return ref
        node = self.builder.nodes[ref]
        number = converted(node.value, t.dtype, dtype) if isinstance(node, ir.Const) else None
        return self.emit(ir.Cast(ref, dtype)) if number is None else self.const(number, dtype, t.space, t.shape)

    def scalar(self, arg: Any, dtype: DType) -> ir.Ref:
        """A Python number, or a number that is only known during a call, as a unit value."""
        if isinstance(arg, bool | int | float):
            return self.const(arg, dtype)
        known = fixed(val(arg)) if isinstance(val(arg), torch.SymInt | int) else None
        if known is not None:
            return self.const(known, dtype)
        if not isinstance(val(arg), torch.SymInt | torch.SymFloat):
            raise IRError(f"{arg!r} is no number")
        return self.measured(self.refs[self.spaces.rep(arg)], dtype)

    def arange(self, start: int, stop: int, step: int, dtype: DType) -> ir.Ref:
        """start, start + step, ... before stop, as shared data."""
        with unset_fake_temporarily():
            value = torch.arange(start, stop, step, dtype=TORCH_DTYPE[dtype])
        name = f"arange_{start}_{stop}_{step}_{dtype.value}".replace("-", "minus")
        ref = self.emit(ir.Input(name, ir.Type(UNIT, tuple(value.shape), dtype)))
        self.attributes.setdefault(ref, value)
        self.arranged[ref] = range(start, stop, step)
        return ref

    def assert_index(self, index: ir.Ref, size: int) -> None:
        """Add a check that runs before everything else: IndexRangeError unless `index` lies in 0..size-1."""
        ref = self.emit(ir.AssertIndex(index, size))
        if ref not in self.effects:
            self.effects.append(ref)

    def assert_rows(self, node: fx.Node, what: str, whole: bool) -> None:
        """Add a check that `node` has rows, unless that is known: an IndexError says otherwise that `what` has none, or
        a RuntimeError if it reduces the `whole` tensor."""
        rows = shape(node)[0]
        if statically_known_true(rows > 0):
            return
        known, found = fixed(rows), None if isinstance(rows, int) else self.size(rows)
        counted = known if known is not None else ir.Operand(self.size_of(node, 0) if found is None else found)
        ref = self.emit(ir.Aten("builtin._assert_rows", (counted, what, whole), (), ir.NOTHING))
        if ref not in self.effects:
            self.effects.append(ref)

    def measured(self, size: ir.Ref, dtype: DType) -> ir.Ref:
        """A unit value from a symbolic number."""
        kwargs: tuple[tuple[str, ir.Arg], ...] = (("dtype", ir.Atom(str(TORCH_DTYPE[dtype]))),)
        return self.emit(ir.Aten(named.TENSOR_OF_SIZE, (ir.Operand(size),), kwargs, ir.Type(UNIT, (), dtype)))

    def rows(self, node: fx.Node, dtype: DType) -> ir.Ref:
        """The number of rows of `node` as a unit value."""
        size = shape(node)[0]
        known = fixed(size)
        if known is not None:
            return self.const(known, dtype)
        assert isinstance(size, torch.SymInt)
        found = self.size(size)
        return self.measured(found if found is not None else self.size_of(node, 0), dtype)

    def size(self, size: torch.SymInt) -> ir.Ref | None:
        """A symbolic size, computed from sizes that the program has, so that no tensor is needed only for its size.

        None if these sizes do not suffice.
        """
        return self._computed(size.node.expr)

    def size_of(self, node: fx.Node, dim: int, ref: ir.Ref | None = None) -> ir.Ref:
        """The size of a dim of a value, which is `ref` if `node` has no translation yet."""
        ref = self.refs[self.spaces.rep(node)] if ref is None else ref
        described = ir.AnyType(size=expression(shape(node)[dim]))
        return self.emit(ir.Aten(named.SIZE, (ir.Operand(ref), dim), (), described))

    def _computed(self, expr: Expr) -> ir.Ref | None:
        if expr in self.sizes:
            return self.sizes[expr]
        name = _OF_SIZES.get(type(expr).__name__)
        if name is None:
            return None
        terms: list[tuple[ir.Arg, Any]] = []
        for term in expr.args:
            ref = None if term.is_Integer else self._computed(term)
            if ref is None and not term.is_Integer:
                return None
            terms.append((int(term) if ref is None else ir.Operand(ref), term))
        if name not in _ORDERED:
            terms.sort(key=lambda t: isinstance(t[0], int))
        total = terms[0][0]
        for n, (term, _) in enumerate(terms[1:], start=2):
            described = ir.AnyType(size=of_sympy(expr.func(*(said for _, said in terms[:n]))))
            total = ir.Operand(self.emit(ir.Aten(f"builtin.{name}", (total, term), (), described)))
        assert isinstance(total, ir.Operand)
        self.sizes[expr] = total.ref
        return total.ref

    # ------------------------------------------------------------ row by row

    def aligned(self, arg: Any, node: fx.Node, dtype: DType | None) -> ir.Ref:
        """Operand `arg` of a broadcasting call `node`, for use row by row; it is cast to `dtype` unless that is None.

        Broadcasting aligns dims from the right, so a value on the space of the result must have all dims of the
        result. A unit value that has all of them must have one row, and that row is used.
        """
        if not is_tensor(arg):
            if dtype is None:
                raise IRError(f"operand {arg!r} is no tensor")
            return self.scalar(arg, dtype)
        ref, space = self.value(arg), self.result(node).space
        t = self.type(ref)
        if t.space == UNIT and space != UNIT and len(t.shape) == rank(node):
            if t.shape[0] != 1:
                raise IRError(f"shared data of {t.shape[0]} rows against ", space)
            ref = self.emit(ir.Reshape(ref, t.shape[1:]))
        elif t.space != UNIT and (t.space != space or rank(arg) != rank(node)):
            raise IRError("a value on ", t.space, " against ", space)
        return ref if dtype is None else self.cast(ref, dtype)

    def map(self, op: Op, *args: ir.Ref) -> ir.Ref:
        """op(args), row by row. Shared data that was spread over rows is used without the spreading."""
        types = [self.type(a) for a in args]
        space = next((t.space for t in types if t.space != UNIT), UNIT)
        before = [self._before_spread(a) for a in args]
        if space != UNIT and all(b is not None for b in before):
            if not any(
                isinstance(self.builder.nodes[a], ir.Pull) for a, t in zip(args, types, strict=True) if t.space != UNIT
            ):
                return self.emit(ir.Pointwise(op, args))
            return self.spread(self.emit(ir.Pointwise(op, tuple(b for b in before if b is not None))), space)
        return self.emit(ir.Pointwise(op, tuple(a if b is None else b for a, b in zip(args, before, strict=True))))

    def _before_spread(self, ref: ir.Ref) -> ir.Ref | None:
        """The unit value that `ref` repeats for each row; `ref` itself if it is a unit value; None if its rows may
        differ."""
        t, node = self.type(ref), self.builder.nodes[ref]
        if t.space == UNIT:
            return ref
        if isinstance(node, ir.Const):
            return self.const(node.value, t.dtype, UNIT, t.shape)
        if isinstance(node, ir.Pull) and isinstance(self.builder.nodes[node.map], ir.ToUnit):
            return node.x
        return None

    def spread(self, ref: ir.Ref, space: Space) -> ir.Ref:
        """A unit value repeated for every row of `space`."""
        t, node = self.type(ref), self.builder.nodes[ref]
        if space == UNIT or t.space == space:
            return ref
        if isinstance(node, ir.Const):
            return self.const(node.value, t.dtype, space, t.shape)
        return self.emit(ir.Pull(ref, self.emit(ir.ToUnit(space))))

    def reshape(self, ref: ir.Ref, features: tuple[int, ...]) -> ir.Ref:
        t, node = self.type(ref), self.builder.nodes[ref]
        if t.shape == features:
            return ref
        if numel(t.shape) != numel(features):
            raise IRError(f"features {t.shape} as {features}")
        if isinstance(node, ir.Const):
            return self.const(node.value, t.dtype, t.space, features)
        if isinstance(node, ir.Reshape):
            return self.reshape(node.x, features)
        return self.emit(ir.Reshape(ref, features))

    def permute(self, ref: ir.Ref, perm: tuple[int, ...]) -> ir.Ref:
        t, node = self.type(ref), self.builder.nodes[ref]
        if isinstance(node, ir.Permute):
            return self.permute(node.x, tuple(node.perm[p] for p in perm))
        if perm == tuple(range(len(perm))):
            return ref
        shape = tuple(t.shape[p] for p in perm)
        if isinstance(node, ir.Const):
            return self.const(node.value, t.dtype, t.space, shape)
        if [p for p in perm if t.shape[p] != 1] == [p for p in range(len(perm)) if t.shape[p] != 1]:
            return self.reshape(ref, shape)  # only dims of size 1 change places
        return self.emit(ir.Permute(ref, perm))

    def broadcast(self, ref: ir.Ref, features: tuple[int, ...]) -> ir.Ref:
        t, node = self.type(ref), self.builder.nodes[ref]
        if t.shape == features:
            return ref
        if isinstance(node, ir.Const):
            return self.const(node.value, t.dtype, t.space, features)
        return self.emit(ir.Broadcast(ref, features))

    def reduce(self, ref: ir.Ref, fold: Fold, dims: tuple[int, ...], keepdim: bool) -> ir.Ref:
        return self.emit(ir.Reduce(ref, fold, dims, keepdim)) if dims else ref

    # ------------------------------------------------------------ along maps

    def map_of(self, index: fx.Node, x: fx.Node, wrap: bool) -> ir.Ref:
        """The map r -> index[r] into the rows of `x`; `index` holds one number a row."""
        ref = self.value(index)
        features = self.type(ref).shape
        if numel(features) != 1:
            raise IRError(f"an index of features {features}")
        cod = self.spaces.space_of(x)
        if self.type(ref).space == UNIT or cod == UNIT:
            raise IRError("an index whose rows, or what it counts, is shared data")
        if self._counts_runs(index, x):
            return self.emit(ir.MapOf(self.emit(ir.EqualRuns(cod, self.type(ref).space)), cod))
        if self.formulas.repeats(index, shape(x)[0]):
            return self.emit(ir.MapOf(self.emit(ir.Rounds(cod, self.type(ref).space)), cod))
        item = self._item_map(index, x)
        if item is not None:
            return self.emit(ir.MapOf(self.emit(ir.EachItem(item, cod, self.type(ref).space)), cod))
        index_of_rows = self.reshape(ref, ())
        wraps = wrap and self.spaces.wraps(index, x) and not nonnegative(self.builder.nodes, index_of_rows)
        return self.emit(ir.MapOf(index_of_rows, cod, wraps))

    def _item_map(self, index: fx.Node, x: fx.Node) -> ir.Ref | None:
        """The map by which `index` picks rows in each item of a batch, if it picks them so from `x`."""
        gather = self.formulas.of_each_item(index, shape(x)[0])
        found = None if gather is None else pulled(gather)
        if found is None or UNIT in map(self.spaces.space_of, found[:2]):
            return None
        return self.map_of(*found)

    def _counts_runs(self, index: fx.Node, x: fx.Node) -> bool:
        """Whether a formula says that rows of `index` are short runs of equal length, one for each row of `x`."""
        count, runs = hint(shape(index)[0]), hint(shape(x)[0])
        short = count is not None and runs is not None and count <= _LONGEST_RUN * runs
        return short and self.formulas.counts_runs(index, shape(x)[0])

    def positions(self, node: fx.Node, start: Size = 0, step: int = 1) -> ir.Ref:
        """start, start + step, ... for the rows of `node` in order, as an i64 value on their space."""
        space, rows = self.spaces.space_of(node), shape(node)[0]
        if space == UNIT:
            raise IRError("numbers the rows of shared data")
        if isinstance(rows, torch.SymInt):
            found = self.size(rows)
            self.sizes.setdefault(rows.node.expr, self.size_of(node, 0) if found is None else found)
        kwargs: tuple[tuple[str, ir.Arg], ...] = (
            ("device", ir.Atom(f"device({val(node).device})")),
            ("pin_memory", False),
        )
        t = ir.Type(space, (), DType.i64)
        if step == 1 and isinstance(start, int) and start == 0:
            return self.emit(ir.Aten(named.ARANGE, (self._count(rows),), kwargs, t))
        ends = (self._count(start), self._count(start + rows * step), step)
        return self.emit(ir.Aten(named.ARANGE_OF_STEPS, ends, kwargs, t))

    def count(self, size: Size, dtype: DType) -> ir.Ref:
        """A size as a unit value."""
        counted = self._count(size)
        return self.measured(counted.ref, dtype) if isinstance(counted, ir.Operand) else self.const(counted, dtype)

    def _count(self, size: Size) -> ir.Operand | int:
        known = fixed(size)
        if known is not None:
            return known
        assert isinstance(size, torch.SymInt)
        found = self.size(size)
        if found is None:
            raise IRError(f"a size {size} that the program does not have")
        return ir.Operand(found)

    def push(self, x: ir.Ref, map_: ir.Ref, fold: AnyFold, empty: Number = 0) -> ir.Ref:
        number = typed(empty, self.type(x).dtype)
        return self.emit(ir.Push(x, map_, fold, 0 if alike(number, 0, self.type(x).dtype) else number))


_WHOLE: Mapping[Op, Callable[..., int]] = {Op.add: operator.add, Op.sub: operator.sub, Op.mul: operator.mul}
"""Operators on whole numbers that the importer computes where it knows the numbers."""

_OF_SIZES = {
    "Add": "add", "Mul": "mul", "Max": "sym_max", "Min": "sym_min", "FloorDiv": "floordiv", "CleanDiv": "floordiv",
    "Mod": "mod", "PythonMod": "mod", "PowByNatural": "pow",
}  # fmt: skip
"""Functions in the expressions of sizes and strides -> their names in programs."""

_ORDERED = frozenset({"floordiv", "mod", "pow"})
"""Functions of sizes whose operands may not be exchanged."""


def _described(value: object) -> ir.AnyType:
    if isinstance(value, torch.Tensor):
        dims = tuple(map(expression, value.shape))
        dtype = DTYPE_OF.get(value.dtype)
        if dtype is not None and value.layout is torch.strided:
            return ir.AnyType(dtype, dims)
        layout = "" if value.layout is torch.strided else f"{value.layout} "
        name = str(value.dtype) if dtype is None else dtype.value
        return ir.AnyType(dims=dims, other=f"{layout}{name}".replace("torch.", ""))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return ir.AnyType(size=expression(value))
    if isinstance(value, list | tuple):
        return ir.AnyType(items=tuple(map(_described, value)))
    return ir.NOTHING if value is None else ir.AnyType(other=type(value).__name__)


Table: TypeAlias = Mapping[Any, Handler]
