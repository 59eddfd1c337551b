"""One node that no kernel computes -> C++: work on indices and sizes, and views.

A new call is a function and a row in `_CALLS`; what it needs of C++ goes to `native/values.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graphweave.core.errors import ExportError
from graphweave.core.types import UNIT, DType, Fold, Space
from graphweave.exporting.dtypes import DTYPE_CODE
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import DTYPE_OF
from graphweave.ir.message.nodes import AnyType, Operand, Program, Ref, Type


def is_number(program: Program, ref: Ref) -> bool:
    """Whether a value is a whole number, not a tensor."""
    t = program.types[ref]
    return isinstance(t, AnyType) and t.size is not None and t.dims is None


@dataclass(frozen=True, slots=True)
class Call:
    """A node of a program, the C++ name of each value and row count, and the user's words for an index."""

    program: Program
    ref: Ref
    name: Callable[[Ref], str]
    count: Callable[[Space], str]
    words: Callable[[Ref], str]

    @property
    def node(self) -> ir.Node:
        return self.program.nodes[self.ref]

    def refused(self) -> ExportError:
        """The error for a node that cannot leave Python."""
        node, line = self.node, self.program.locs[self.ref].shown
        what = node.target if isinstance(node, ir.Aten) else type(node).__name__
        return ExportError(f"{what} cannot be exported{f' ({line})' if line else ''}: only PyTorch computes it.")

    # -------------------------------------------------------- arguments

    def text(self, arg: Any) -> str:
        """A number or an operand as C++."""
        match arg:
            case Operand(ref):
                return self.name(ref)
            case bool():
                return "true" if arg else "false"
            case int():
                return f"int64_t({arg})"
            case float():
                return repr(arg)
            case _:
                raise self.refused()

    def is_value(self, arg: Any) -> bool:
        """Whether an argument is a tensor."""
        return isinstance(arg, Operand) and not is_number(self.program, arg.ref)

    def type_of(self, ref: Ref) -> Type | AnyType:
        t = self.program.types[ref]
        if not isinstance(t, Type | AnyType):
            raise self.refused()
        return t

    def dims(self, ref: Ref) -> int:
        """The number of dims of a tensor."""
        match self.type_of(ref):
            case Type(space, shape):
                return len(shape) + (space != UNIT)
            case AnyType(dims=dims) if dims is not None:
                return len(dims)
        raise self.refused()

    def dim(self, arg: Any, ref: Ref, more: int = 0) -> int:
        """A dim of a tensor, counted from the front."""
        if not isinstance(arg, int):
            raise self.refused()
        return arg + (self.dims(ref) + more if arg < 0 else 0)

    def dtype(self, ref: Ref | None = None) -> DType:
        found = self.type_of(self.ref if ref is None else ref).dtype
        if found is None:
            raise self.refused()
        return found

    @property
    def code(self) -> str:
        """The C interface's code of the result's element type."""
        return DTYPE_CODE[self.dtype()]

    def array(self, sizes: Any) -> str:
        """A list of sizes as an array's items."""
        return "{" + (", ".join(map(self.text, sizes)) or "0") + "}"


def quoted(text: str) -> str:
    """A text in C++."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def call_lines(call: Call) -> Iterator[str]:
    """The lines that compute a node. Raises ExportError for one that only PyTorch computes."""
    node, name = call.node, call.name(call.ref)
    match node:
        case ir.Aten(target, args, kwargs):
            make = _CALLS.get(target)
            if make is None:
                raise call.refused()
            kind = "int64_t" if is_number(call.program, call.ref) else "Value"
            if call.program.types[call.ref] == ir.NOTHING:
                yield f"{make(call, args, dict(kwargs))};"
            else:
                yield f"{kind} {name} = {make(call, args, dict(kwargs))};"
        case ir.AssertIndex(index, size):
            yield f'check_range(run, {call.name(index)}, {size}, "{call.words(index)}");'
        case ir.JoinIndices():
            yield from _join_indices(call, node)
        case ir.RowsOfSegments(of, at):
            sizes = ", ".join(map(call.count, of))
            yield f"Value {name} = rows_of_segments(run, {{{sizes}}}, {{{', '.join(map(str, at))}}});"
        case ir.NumbersOfSegments(of, numbers):
            sizes = ", ".join(map(call.count, of))
            yield f"Value {name} = numbers_of_segments(run, {{{sizes}}}, {{{', '.join(map(str, numbers))}}});"
        case ir.After(x) | ir.LaidOut(x) | ir.Own(x) | ir.Kept(x):
            yield f"Value {name} = {call.name(x)};"
        case _:
            yield f"Value {name} = {_of_algebra(call, node)};"


def _of_algebra(call: Call, node: ir.Node) -> str:
    """A node of the algebra that is a view, or work on indices."""
    own = call.type_of(call.ref)
    assert isinstance(own, Type)
    sizes = [*([] if own.space == UNIT else [call.count(own.space)]), *map(str, own.shape)]
    lead = len(sizes) - len(own.shape)
    array = "{" + (", ".join(sizes) or "0") + "}"
    match node:
        case ir.Const(value):
            number = "true" if value is True else "false" if value is False else repr(value)
            return f"filled_with(run, {DTYPE_CODE[own.dtype]}, {number}, {array}, {len(sizes)})"
        case ir.MapOf(index, cod, wrap):
            return f"map_of(run, {call.name(index)}, {call.count(cod)}, {'true' if wrap else 'false'})"
        case ir.Cast(x):
            return f"converted(run, {call.name(x)}, {DTYPE_CODE[own.dtype]})"
        case ir.Reshape(x):
            return f"reshaped_to(run, {call.name(x)}, {array}, {len(sizes)})"
        case ir.Broadcast(x) if call.dims(x) == len(sizes):
            return f"expanded_to({call.name(x)}, {array}, {len(sizes)})"
        case ir.Permute(x, perm):
            order = ", ".join(map(str, [*range(lead), *(p + lead for p in perm)]))
            return f"permuted_by({call.name(x)}, {{{order}}})"
        case ir.Slice(x, dim, start, stop, step):
            return f"sliced({call.name(x)}, {dim + lead}, {start}, {stop}, {step})"
        case ir.Join(xs) if all(call.dims(x) == len(sizes) for x in xs):
            return f"joined_of(run, {{{', '.join(map(call.name, xs))}}}, 0)"
        case ir.Concat(xs, dim) if all(call.dims(x) == len(sizes) for x in xs):
            return f"joined_of(run, {{{', '.join(map(call.name, xs))}}}, {dim + lead})"
        case ir.Part(x, of, at):
            start = " + ".join(["int64_t(0)", *map(call.count, of[:at])])
            if of[at] == UNIT:
                return f"selected(run, {call.name(x)}, 0, {start})"
            return f"sliced({call.name(x)}, 0, {start}, {start} + {call.count(of[at])}, 1)"
        case ir.Reduce(x, fold, dims):
            kept = "true" if node.keepdim else "false"
            start, body = _FOLDS[fold]
            listed = ", ".join(str(d + lead) for d in dims)
            return (
                f"folded(run, {call.name(x)}, {{{listed}}}, {kept}, {start}, [](auto a, auto b) {{ return {body}; }})"
            )
        case ir.Push(x, m, fold, empty) if isinstance(call.program.nodes[m], ir.ToUnit):
            start, body = _FOLDS[fold]
            none = str(empty).lower() if isinstance(empty, bool) else repr(empty)
            return f"total(run, {call.name(x)}, {start}, {none}, [](auto a, auto b) {{ return {body}; }})"
        case ir.Pull(x, m) if isinstance(call.program.nodes[m], ir.MapOf):
            return f'rows_at(run, {call.name(x)}, {call.name(m)}, false, "{call.words(m)}")'
        case _:
            raise call.refused()


_FOLDS: dict[Fold, tuple[str, str]] = {
    Fold.sum: ("0", "a + b"),
    Fold.mul: ("1", "a * b"),
    Fold.max: ("kNothing", "a != a || a > b ? a : b"),
    Fold.min: ("kNothing", "a != a || a < b ? a : b"),
}
"""What a fold begins with, and how it takes another element; a largest one begins with the first."""


def _join_indices(call: Call, node: ir.JoinIndices) -> Iterator[str]:
    parts, counts = [], [call.count(s) for s in node.of]
    for index, at, wrap in zip(node.indices, node.at, node.wraps, strict=True):
        start = " + ".join(["int64_t(0)", *counts[:at]])
        words = call.words(index)
        parts.append(
            f'shifted_index(run, {call.name(index)}, {counts[at]}, {"true" if wrap else "false"}, {start}, "{words}")'
        )
    yield f"Value {call.name(call.ref)} = joined_of(run, {{{', '.join(parts)}}}, 0);"


# ---------------------------------------------------------------- calls of PyTorch

_Args = tuple[Any, ...]
_Kwargs = Mapping[str, Any]
_Make = Callable[[Call, _Args, _Kwargs], str]


def _ref(call: Call, arg: Any) -> Ref:
    if not isinstance(arg, Operand):
        raise call.refused()
    return arg.ref


def _size(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    ref = _ref(call, args[0])
    return f"{call.name(ref)}.sizes[{call.dim(args[1], ref)}]"


def _same(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    return call.text(args[0])


def _select(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    ref = _ref(call, args[0])
    return f"selected(run, {call.name(ref)}, {call.dim(args[1], ref)}, {call.text(args[2])})"


def _slice(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    ref = _ref(call, args[0])
    dim, start, stop, step = (*args[1:], *(None,) * 4)[:4]
    dim = call.dim(dim or 0, ref)
    bounds = ["int64_t(0)" if start is None else call.text(start), "INT64_MAX" if stop is None else call.text(stop)]
    return f"sliced({call.name(ref)}, {dim}, {', '.join(bounds)}, {1 if step is None else step})"


def _unsqueeze(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    ref = _ref(call, args[0])
    return f"unsqueezed({call.name(ref)}, {call.dim(args[1], ref, 1)})"


def _squeeze(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    """The dims of size 1 among those named are gone, which the result's type says."""
    ref = _ref(call, args[0])
    dims = [args[1]] if isinstance(args[1], int) else list(args[1])
    if call.dims(ref) - len(dims) != call.dims(call.ref):
        raise call.refused()
    text = call.name(ref)
    for dim in sorted((call.dim(d, ref) for d in dims), reverse=True):
        text = f"without_dim({text}, {dim})"
    return text


def _view(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    sizes = args[1]
    return f"reshaped_to(run, {call.text(args[0])}, {call.array(sizes)}, {len(sizes)})"


def _expand(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    return f"expanded_to({call.text(args[0])}, {call.array(args[1])}, {len(args[1])})"


def _repeat(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    return f"repeated(run, {call.text(args[0])}, {call.array(args[1])}, {len(args[1])})"


def _permute(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    ref = _ref(call, args[0])
    return f"permuted_by({call.name(ref)}, {{{', '.join(str(call.dim(d, ref)) for d in args[1])}}})"


def _transpose(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    ref = _ref(call, args[0])
    order = list(range(call.dims(ref)))
    a, b = (call.dim(d, ref) for d in args[1:3]) if len(args) > 1 else (0, len(order) - 1)
    order[a], order[b] = order[b], order[a]
    return f"permuted_by({call.name(ref)}, {{{', '.join(map(str, order))}}})"


def _convert(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    return f"converted(run, {call.text(args[0])}, {call.code})"


def _cat(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    dim = call.dim(args[1] if len(args) > 1 else 0, _ref(call, args[0][0]))
    return f"joined_of(run, {{{', '.join(map(call.text, args[0]))}}}, {dim})"


def _arange(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    return f"counting(run, {call.code}, {call.text(start)}, {call.text(stop)}, {call.text(step)})"


def _filled(call: Call, sizes: Any, number: Any) -> str:
    return f"filled_with(run, {call.code}, {call.text(number)}, {call.array(sizes)}, {len(sizes)})"


def _full_like(number: Any) -> _Make:
    def make(call: Call, args: _Args, kwargs: _Kwargs) -> str:
        value = args[1] if number is None else number
        return f"filled_like(run, {call.code}, {call.text(value)}, {call.text(args[0])})"

    return make


def _combine(op: str, *, scaled: bool = False) -> _Make:
    """op(x, y) for each element; with `scaled`, y is multiplied by the keyword `alpha`."""

    def make(call: Call, args: _Args, kwargs: _Kwargs) -> str:
        if scaled and kwargs.get("alpha", 1) != 1:
            raise call.refused()
        if not any(map(call.is_value, args[:2])):
            raise call.refused()
        known = [call.dtype(_ref(call, a)) for a in args[:2] if call.is_value(a)]
        dtype = _promoted(known, args[:2]) if op in _COMPARISONS else call.dtype()
        parts = []
        for arg in args[:2]:
            if call.is_value(arg):
                parts.append(f"converted(run, {call.text(arg)}, {DTYPE_CODE[dtype]})")
            else:
                parts.append(f"filled_with(run, {DTYPE_CODE[dtype]}, {call.text(arg)}, {{0}}, 0)")
        body = f"[](auto a, auto b) {{ return {op.format('a', 'b')}; }}"
        return f"combined(run, {', '.join(parts)}, {call.code}, {body})"

    return make


_COMPARISONS = frozenset({"{} == {}", "{} != {}", "{} < {}", "{} <= {}", "{} > {}", "{} >= {}"})


def _promoted(known: list[DType], args: _Args) -> DType:
    if len(set(known)) == 1:
        return known[0]
    return DTYPE_OF[torch.promote_types(*(torch_dtype_of(d) for d in known))]


def torch_dtype_of(dtype: DType) -> torch.dtype:
    return next(t for t, d in DTYPE_OF.items() if d is dtype)


def _rows_by_index(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    """x[index] or x[mask]; an index may stand behind dims that are taken whole."""
    listed = args[1]
    ref = _ref(call, args[0])
    if not isinstance(listed, tuple) or sum(a is not None for a in listed) != 1:
        raise call.refused()
    dim = next(i for i, a in enumerate(listed) if a is not None)
    return _taken(call, ref, dim, _ref(call, listed[dim]), wraps=True)


def _index_select(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    ref = _ref(call, args[0])
    return _taken(call, ref, call.dim(args[1], ref), _ref(call, args[2]), wraps=False)


def _taken(call: Call, ref: Ref, dim: int, index: Ref, *, wraps: bool) -> str:
    by_mask = call.dtype(index) is DType.bool
    if by_mask and call.dims(index) != 1:
        raise call.refused()
    text = f"places_of(run, {call.name(index)})" if by_mask else call.name(index)
    base = call.name(ref)
    if dim == 0:
        return f'rows_at(run, {base}, {text}, {"true" if wraps else "false"}, "{call.words(index)}")'
    if call.dims(index) != 1:
        raise call.refused()
    order = [dim, *(d for d in range(call.dims(ref)) if d != dim)]
    back = [order.index(d) for d in range(len(order))]
    rows = f"permuted_by({base}, {{{', '.join(map(str, order))}}})"
    found = f'rows_at(run, {rows}, {text}, {"true" if wraps else "false"}, "{call.words(index)}")'
    return f"permuted_by({found}, {{{', '.join(map(str, back))}}})"


def _where(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    code = DTYPE_CODE[call.dtype()]
    parts = []
    for arg in args[1:]:
        value = call.is_value(arg)
        text = (
            f"converted(run, {call.text(arg)}, {code})"
            if value
            else f"filled_with(run, {code}, {call.text(arg)}, {{0}}, 0)"
        )
        parts.append(text)
    return f"chosen(run, {call.text(args[0])}, {', '.join(parts)})"


def _reduce(body: str, *, may_be_empty: bool) -> _Make:
    """A reduction of all elements to one."""

    def make(call: Call, args: _Args, kwargs: _Kwargs) -> str:
        if call.dims(call.ref) != 0:
            raise call.refused()
        x = call.text(args[0])
        x = x if call.dtype(_ref(call, args[0])) is call.dtype() else f"converted(run, {x}, {call.code})"
        empty = "true" if may_be_empty else "false"
        return f"reduced(run, {x}, {empty}, [](auto a, auto b) {{ return {body}; }})"

    return make


def _item(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    return f"number_in({call.text(args[0])})"


def _arithmetic(text: str) -> _Make:
    def make(call: Call, args: _Args, kwargs: _Kwargs) -> str:
        if not is_number(call.program, call.ref) and call.program.types[call.ref] != ir.NOTHING:
            raise call.refused()
        return text.format(*map(call.text, args))

    return make


def _require(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    line = call.program.locs[call.ref].shown
    return f"require(run, {call.text(args[0])}, {quoted(line or 'the model')})"


def _nothing(call: Call, args: _Args, kwargs: _Kwargs) -> str:
    return "(void)0"


_VIEWS: dict[str, _Make] = {
    "aten.select.int": _select,
    "aten.slice.Tensor": _slice,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    **dict.fromkeys(("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"), _view),
    "aten.expand.default": _expand,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _transpose,
    **dict.fromkeys(
        ("aten.alias.default", "aten.detach.default", "aten.clone.default", "aten.lift_fresh_copy.default"), _same
    ),
}
_MADE: dict[str, _Make] = {
    "aten._to_copy.default": _convert,
    "aten.cat.default": _cat,
    "aten.repeat.default": _repeat,
    **dict.fromkeys(("aten.arange.default", "aten.arange.start", "aten.arange.start_step"), _arange),
    "aten.full.default": lambda call, args, kwargs: _filled(call, args[0], args[1]),
    "aten.scalar_tensor.default": lambda call, args, kwargs: _filled(call, (), args[0]),
    "aten.zeros.default": lambda call, args, kwargs: _filled(call, args[0], 0),
    "aten.ones.default": lambda call, args, kwargs: _filled(call, args[0], 1),
    "aten.new_zeros.default": lambda call, args, kwargs: _filled(call, args[1], 0),
    "aten.new_ones.default": lambda call, args, kwargs: _filled(call, args[1], 1),
    "aten.new_full.default": lambda call, args, kwargs: _filled(call, args[1], args[2]),
    "aten.zeros_like.default": _full_like(0),
    "aten.ones_like.default": _full_like(1),
    "aten.full_like.default": _full_like(None),
    "aten.where.self": _where,
    "aten.mm.default": lambda call, args, kwargs: f"product(run, {call.text(args[0])}, {call.text(args[1])})",
    "aten.index.Tensor": _rows_by_index,
    "aten.index_select.default": _index_select,
    "aten.nonzero.default": lambda call, args, kwargs: f"unsqueezed(places_of(run, {call.text(args[0])}), 1)",
}
_ELEMENTS: dict[str, _Make] = {
    f"aten.{name}.{kind}": _combine(op, scaled=name in ("add", "sub"))
    for name, op in {
        "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}",
        "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}", "logical_and": "{} && {}", "logical_or": "{} || {}",
        "bitwise_and": "{} & {}", "bitwise_or": "{} | {}",
    }.items()
    for kind in ("Tensor", "Scalar", "default")
}  # fmt: skip
_NUMBERS: dict[str, _Make] = {
    "aten.sym_size.int": _size,
    "aten._local_scalar_dense.default": _item,
    "aten.max.default": _reduce("a < b ? b : a", may_be_empty=False),
    "aten.amax.default": _reduce("a < b ? b : a", may_be_empty=False),
    "aten.min.default": _reduce("b < a ? b : a", may_be_empty=False),
    "aten.sum.default": _reduce("a + b", may_be_empty=True),
    **{
        f"builtin.{name}": _arithmetic(text)
        for name, text in {
            "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "floordiv": "floor_div({}, {})",
            "mod": "modulo({}, {})", "max": "largest({}, {})", "min": "smallest({}, {})", "neg": "(-{})",
            "sym_max": "largest({}, {})", "sym_min": "smallest({}, {})", "eq": "({} == {})", "ne": "({} != {})",
            "lt": "({} < {})", "le": "({} <= {})", "gt": "({} > {})", "ge": "({} >= {})", "and_": "({} & {})",
            "or_": "({} | {})", "not_": "(!{})", "sym_not": "(!{})",
        }.items()
    },
    **dict.fromkeys(
        ("aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default"), _nothing,
    ),
    "aten._assert_scalar.default": _require,
}  # fmt: skip
_CALLS: dict[str, _Make] = {**_VIEWS, **_MADE, **_ELEMENTS, **_NUMBERS}
