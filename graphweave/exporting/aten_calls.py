"""Calls of PyTorch that an exported model makes itself, as C++.

A new call is a function and a row in a table at the end; what it needs of C++ goes to `native/values.cpp`. Calls that
compute each element by itself stand in `aten_elements.py`.
"""

from __future__ import annotations

from graphweave.core.types import DType, Fold
from graphweave.exporting.aten_elements import ELEMENTS, Args, Kwargs, Make, template
from graphweave.exporting.folds import FOLDS
from graphweave.exporting.named_node import NamedNode, is_number, quoted
from graphweave.exporting.seeds import is_seed
from graphweave.ir.message import nodes as ir


def _size(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    return f"{call.name(ref)}.sizes[{call.dim(args[1], ref)}]"


def _select(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    return f"selected(run, {call.name(ref)}, {call.dim(args[1], ref)}, {call.text(args[2])})"


def _slice(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    return f"sliced({call.name(ref)}, {_bounds(call, ref, args[1:])})"


def _slice_scatter(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref, part = call.operand(args[0]), call.operand(args[1])
    if call.dtype(part) is not call.dtype(ref):
        raise call.refused()
    return f"with_slice(run, {call.name(ref)}, {call.name(part)}, {_bounds(call, ref, args[2:])})"


def _bounds(call: NamedNode, ref: ir.Ref, given: Args) -> str:
    """The dim, first, last and step of a slice."""
    dim, start, stop, step = (*given, *(None,) * 4)[:4]
    first = "int64_t(0)" if start is None else call.text(start)
    last = "INT64_MAX" if stop is None else call.text(stop)
    return f"{call.dim(dim or 0, ref)}, {first}, {last}, {1 if step is None else step}"


def _index_put(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    """Rows are written at one index of rows, or at a mask of rows."""
    ref, listed, rows = call.operand(args[0]), args[1], call.operand(args[2])
    adds = len(args) > 3 and args[3]
    if adds or not isinstance(listed, tuple) or len(listed) != 1 or call.dtype(rows) is not call.dtype(ref):
        raise call.refused()
    index = call.operand(listed[0])
    if (
        call.dims(index) != 1
        or call.dims(rows) not in (0, call.dims(ref))
        or (call.dims(ref) > 1 and not call.dims(rows))
    ):
        raise call.refused()
    return f'with_rows(run, {call.name(ref)}, {_index(call, index)}, {call.name(rows)}, true, "{call.words(index)}")'


def _scatter(body: str) -> Make:
    """Numbers are put at an index along one dim by op(old, new); a single one has the sizes of the index."""

    def make(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
        ref, index, given = call.operand(args[0]), call.operand(args[2]), args[3]
        if call.dims(index) != call.dims(ref) or call.dims(ref) == 0:
            raise call.refused()
        if call.is_value(given):
            numbers_of = call.operand(given)
            if call.dtype(numbers_of) is not call.dtype(ref) or call.dims(numbers_of) != call.dims(ref):
                raise call.refused()
            numbers = call.text(given)
        else:
            numbers = f"filled_like(run, {call.code}, {call.text(given)}, {call.name(index)})"
        place = f"{call.name(ref)}, {call.dim(args[1], ref)}, {call.name(index)}, {numbers}"
        return (
            f'scattered(run, {place}, "{call.words(index)}", []([[maybe_unused]] auto a, auto b) {{ return {body}; }})'
        )

    return make


def _unsqueeze(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    return f"unsqueezed({call.name(ref)}, {call.dim(args[1], ref, 1)})"


def _squeeze(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    """The dims of size 1 among those named are gone, which the result's type says."""
    ref = call.operand(args[0])
    dims = [args[1]] if isinstance(args[1], int) else list(args[1])
    if call.dims(ref) - len(dims) != call.dims(call.ref):
        raise call.refused()
    text = call.name(ref)
    for dim in sorted((call.dim(d, ref) for d in dims), reverse=True):
        text = f"without_dim({text}, {dim})"
    return text


def _permute(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    return f"permuted_by({call.name(ref)}, {{{', '.join(str(call.dim(d, ref)) for d in args[1])}}})"


def _flip(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    return f"flipped({call.name(ref)}, {{{', '.join(str(call.dim(d, ref)) for d in args[1])}}})"


def _transpose(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    order = list(range(call.dims(ref)))
    a, b = (call.dim(d, ref) for d in args[1:3]) if len(args) > 1 else (0, len(order) - 1)
    order[a], order[b] = order[b], order[a]
    return f"permuted_by({call.name(ref)}, {{{', '.join(map(str, order))}}})"


def _cat(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    dim = call.dim(args[1] if len(args) > 1 else 0, call.operand(args[0][0]))
    return f"joined_of(run, {{{', '.join(map(call.text, args[0]))}}}, {dim})"


def _arange(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    return f"counting(run, {call.code}, {call.text(start)}, {call.text(stop)}, {call.text(step)})"


def _rows_by_index(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    """x[index] or x[mask]; an index may stand behind dims that are taken whole."""
    listed = args[1]
    ref = call.operand(args[0])
    if not isinstance(listed, tuple) or sum(a is not None for a in listed) != 1:
        raise call.refused()
    dim = next(i for i, a in enumerate(listed) if a is not None)
    return _taken(call, ref, dim, call.operand(listed[dim]), wraps=True)


def _index_select(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    return _taken(call, ref, call.dim(args[1], ref), call.operand(args[2]), wraps=False)


def _index(call: NamedNode, index: ir.Ref) -> str:
    """An index of rows, or the places that a mask of rows chooses."""
    if call.dtype(index) is not DType.bool:
        return call.name(index)
    if call.dims(index) != 1:
        raise call.refused()
    return call.places(index)


def _taken(call: NamedNode, ref: ir.Ref, dim: int, index: ir.Ref, *, wraps: bool) -> str:
    text = _index(call, index)
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


def _reduce(body: str, *, may_be_empty: bool) -> Make:
    """A reduction of all elements to one."""

    def make(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
        if call.dims(call.ref) != 0:
            raise call.refused()
        x = call.text(args[0])
        x = x if call.dtype(call.operand(args[0])) is call.dtype() else f"converted(run, {x}, {call.code})"
        empty = "true" if may_be_empty else "false"
        return f"reduced(run, {x}, {empty}, [](auto a, auto b) {{ return {body}; }})"

    return make


def _sum_of_dims(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    dims = args[1] if len(args) > 1 and args[1] else range(call.dims(ref))
    listed = ", ".join(str(call.dim(d, ref)) for d in dims)
    kept = "true" if len(args) > 2 and args[2] else "false"
    x = call.name(ref) if call.dtype(ref) is call.dtype() else f"converted(run, {call.name(ref)}, {call.code})"
    start, body = FOLDS[Fold.sum]
    return f"folded(run, {x}, {{{listed}}}, {kept}, {start}, [](auto a, auto b) {{ return {body}; }})"


def _mean_of_dims(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    dims = args[1] if len(args) > 1 and args[1] else range(call.dims(ref))
    count = " * ".join(f"{call.name(ref)}.sizes[{call.dim(d, ref)}]" for d in dims) or "1"
    number = f"filled_with(run, {call.code}, {count}, {{0}}, 0)"
    total = _sum_of_dims(call, args, kwargs)
    return f"combined(run, {total}, {number}, {call.code}, [](auto a, auto b) {{ return a / b; }})"


def _stack(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    dim = call.dim(args[1] if len(args) > 1 else 0, call.operand(args[0][0]), 1)
    parts = ", ".join(f"unsqueezed({call.text(x)}, {dim})" for x in args[0])
    return f"joined_of(run, {{{parts}}}, {dim})"


def _sum_of_numbers(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    return "(" + " + ".join(map(call.text, args[0])) + ")"


def _addmm(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    if kwargs.get("beta", 1) != 1 or kwargs.get("alpha", 1) != 1:
        raise call.refused()
    bias, x, y = map(call.text, args)
    return f"combined(run, product(run, {x}, {y}), {bias}, {call.code}, [](auto a, auto b) {{ return a + b; }})"


def _copy(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    """The second operand in the sizes and the dtype of the first one."""
    ref = call.operand(args[0])
    sizes = ", ".join(f"{call.name(ref)}.sizes[{d}]" for d in range(call.dims(ref)))
    return f"expanded_to(converted(run, {call.text(args[1])}, {call.code}), {{{sizes or 0}}}, {call.dims(ref)})"


def _arithmetic(text: str) -> Make:
    def make(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
        if not is_number(call.program, call.ref) and call.program.types[call.ref] != ir.NOTHING:
            raise call.refused()
        return text.format(*map(call.text, args))

    return make


def _require(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    line = call.program.locs[call.ref].shown
    return f"require(run, {call.text(args[0])}, {quoted(line or 'the model')})"


def _all(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    ref = call.operand(args[0])
    if call.dtype(ref) is not DType.bool or call.dims(ref) == 0:
        raise call.refused()
    dims = ", ".join(map(str, range(call.dims(ref))))
    return f"folded(run, {call.name(ref)}, {{{dims}}}, false, 1, [](auto a, auto b) {{ return a && b; }})"


def _assert_async(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    said = args[1] if len(args) > 1 and isinstance(args[1], str) else "the inputs do not fit the model"
    return f'if (number_in({call.text(args[0])}) == 0) run.fail(GW_WRONG_ARGUMENT, -1, "%s", {quoted(said)})'


def _attention(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    """The first result of the call; `_result_of_attention` refuses the others."""
    named = dict(zip(("dropout_p", "is_causal"), args[3:], strict=False)) | dict(kwargs)
    q, mask, scale = call.operand(args[0]), named.get("attn_mask"), named.get("scale")
    if named.get("dropout_p", 0.0) or named.get("is_causal", False) or not call.dtype(q).is_float:
        raise call.refused()
    if mask is not None and call.dtype(call.operand(mask)) is not call.dtype(q):
        raise call.refused()
    usual = f"1 / std::sqrt(static_cast<double>({call.name(q)}.sizes[3]))"
    factor = usual if scale is None else call.text(scale)
    added = "Value()" if mask is None else call.text(mask)
    return f"attended(run, {', '.join(map(call.text, args[:3]))}, {added}, {factor})"


def _result_of_attention(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    of = call.program.nodes[call.operand(args[0])]
    if not isinstance(of, ir.Aten) or of.target != _ATTENTION or args[1] != 0:
        raise call.refused()
    return call.text(args[0])


def _seed(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    """The seed of a call that draws; numbers that are drawn for something else cannot leave."""
    if not is_seed(call.program, call.ref):
        raise call.refused()
    assert isinstance(call.node, ir.Aten)
    return f"seed_of(run, {call.node.serial})"


_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"

_VIEWS: dict[str, Make] = {
    "aten.select.int": _select,
    "aten.slice.Tensor": _slice,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    **dict.fromkeys(
        ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"),
        template("reshaped_to(run, {0}, {1.array}, {1.count})"),
    ),
    "aten.expand.default": template("expanded_to({0}, {1.array}, {1.count})"),
    "aten.permute.default": _permute,
    "aten.flip.default": _flip,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.index_put.default": _index_put,
    **dict.fromkeys(("aten.scatter.src", "aten.scatter.value"), _scatter("b")),
    "aten.scatter_add.default": _scatter("a + b"),
    "aten.transpose.int": _transpose,
    "aten.t.default": _transpose,
    **dict.fromkeys(
        ("aten.alias.default", "aten.detach.default", "aten.clone.default", "aten.lift_fresh_copy.default"),
        template("{0}"),
    ),
}
_MADE: dict[str, Make] = {
    "aten._to_copy.default": template("converted(run, {0}, {call.code})"),
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.repeat.default": template("repeated(run, {0}, {1.array}, {1.count})"),
    "aten.randint.default": _seed,
    **dict.fromkeys(("aten.arange.default", "aten.arange.start", "aten.arange.start_step"), _arange),
    "aten.full.default": template("filled_with(run, {call.code}, {1}, {0.array}, {0.count})"),
    "aten.scalar_tensor.default": template("filled_with(run, {call.code}, {0}, {{0}}, 0)"),
    "aten.zeros.default": template("filled_with(run, {call.code}, int64_t(0), {0.array}, {0.count})"),
    "aten.ones.default": template("filled_with(run, {call.code}, int64_t(1), {0.array}, {0.count})"),
    "aten.new_zeros.default": template("filled_with(run, {call.code}, int64_t(0), {1.array}, {1.count})"),
    "aten.new_ones.default": template("filled_with(run, {call.code}, int64_t(1), {1.array}, {1.count})"),
    "aten.new_full.default": template("filled_with(run, {call.code}, {2}, {1.array}, {1.count})"),
    "aten.zeros_like.default": template("filled_like(run, {call.code}, int64_t(0), {0})"),
    "aten.ones_like.default": template("filled_like(run, {call.code}, int64_t(1), {0})"),
    "aten.full_like.default": template("filled_like(run, {call.code}, {1}, {0})"),
    "aten.addmm.default": _addmm,
    **dict.fromkeys(("aten.mm.default", "aten.bmm.default"), template("product(run, {0}, {1})")),
    "aten.mv.default": template("without_dim(product(run, {0}, unsqueezed({1}, 1)), 1)"),
    "aten.copy.default": _copy,
    _ATTENTION: _attention,
    "builtin.getitem": _result_of_attention,
    "aten.index.Tensor": _rows_by_index,
    "aten.index_select.default": _index_select,
    "aten.nonzero.default": template("unsqueezed(places_of(run, {0}), 1)"),
}
_NUMBERS: dict[str, Make] = {
    "aten.sym_size.int": _size,
    "aten._local_scalar_dense.default": template("number_in({0})"),
    "aten.max.default": _reduce("a < b ? b : a", may_be_empty=False),
    "aten.amax.default": _reduce("a < b ? b : a", may_be_empty=False),
    "aten.min.default": _reduce("b < a ? b : a", may_be_empty=False),
    "builtin.sym_sum": _sum_of_numbers,
    "builtin._assert_rows": template("require(run, {0} != 0, {1.quoted})"),
    "aten.sum.dim_IntList": _sum_of_dims,
    "aten.sum.default": _reduce("a + b", may_be_empty=True),
    **dict.fromkeys(("aten.mean.default", "aten.mean.dim"), _mean_of_dims),
    "aten.all.default": _all,
    "aten._assert_async.msg": _assert_async,
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
        ("aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default"), template("(void)0"),
    ),
    "aten._assert_scalar.default": _require,
}  # fmt: skip
CALLS: dict[str, Make] = {**_VIEWS, **_MADE, **ELEMENTS, **_NUMBERS}
