"""One node that no kernel computes -> C++: work on indices and sizes, and views. Calls of PyTorch have a file of their
own (`aten_calls.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from graphweave.analysis.cones import map_type
from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.exporting.aten_calls import CALLS
from graphweave.exporting.dtypes import DTYPE_CODE
from graphweave.exporting.folds import FOLDS
from graphweave.exporting.named_node import NamedNode, is_number, number_text
from graphweave.ir.message import nodes as ir


def call_lines(call: NamedNode) -> Iterator[str]:
    """The lines that compute a node. Raises ExportError for one that only PyTorch computes."""
    node, name = call.node, call.name(call.ref)
    match node:
        case ir.Aten(target, args, kwargs):
            make = CALLS.get(target)
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
        case ir.EqualRuns(of, space):
            yield f"Value {name} = equal_runs(run, {call.count(of)}, {call.count(space)});"
        case ir.Rounds(of, space):
            yield f"Value {name} = rounds(run, {call.count(of)}, {call.count(space)});"
        case ir.EachItem(m, _, space):
            nodes = call.count(map_type(call.program, m).cod)
            yield f'Value {name} = each_item(run, {call.name(m)}, {nodes}, {call.count(space)}, "{call.words(m)}");'
        case ir.Order(keys, descending):
            falls = ", ".join(str(d).lower() for d in descending)
            yield f"Value {name} = order_of(run, {{{', '.join(map(call.name, keys))}}}, {{{falls}}});"
        case ir.Distinct(keys):
            yield f"Value {name} = distinct_of(run, {{{', '.join(map(call.name, keys))}}});"
        case ir.DistinctRow(of):
            yield f"Value {name} = row_of_distinct({call.name(of)}, {_num_keys(call, of)});"
        case ir.DistinctKey(of, key):
            yield f"Value {name} = key_of_distinct({call.name(of)}, {_num_keys(call, of)}, {key});"
        case ir.RunningSum(x, reverse) if call.dtype(x) in (DType.f32, DType.f64, DType.i64):
            yield f"Value {name} = running_sum(run, {call.name(x)}, {str(reverse).lower()});"
        case ir.Chosen(mask):
            yield f"Value {name} = {call.places(mask)};"
        case ir.RowsOfSegments(of, at):
            sizes = ", ".join(map(call.count, of))
            yield f"Value {name} = rows_of_segments(run, {{{sizes}}}, {{{', '.join(map(str, at))}}});"
        case ir.NumbersOfSegments(of, numbers):
            sizes = ", ".join(map(call.count, of))
            yield f"Value {name} = numbers_of_segments(run, {{{sizes}}}, {{{', '.join(map(str, numbers))}}});"
        case ir.MapOf(index, cod, wrap):
            counted = "true" if wrap else "false"
            yield f"Value {name} = map_of(run, {call.name(index)}, {call.count(cod)}, {counted});"
        case ir.After(x) | ir.LaidOut(x) | ir.Own(x) | ir.Kept(x):
            yield f"Value {name} = {call.name(x)};"
        case _:
            yield f"Value {name} = {_of_algebra(call, node)};"


def _of_algebra(call: NamedNode, node: ir.Node) -> str:
    """A node of the algebra that is a view, or work on indices."""
    own = call.type_of(call.ref)
    assert isinstance(own, ir.Type)
    sizes = [*([] if own.space == UNIT else [call.count(own.space)]), *map(str, own.shape)]
    lead = len(sizes) - len(own.shape)
    array = "{" + (", ".join(sizes) or "0") + "}"
    match node:
        case ir.Const(value):
            return f"filled_with(run, {DTYPE_CODE[own.dtype]}, {number_text(value)}, {array}, {len(sizes)})"
        case ir.Pointwise():
            return _pointwise(call, node, len(sizes) - lead)
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
        case ir.Join(xs):
            parts = (call.name(x) if call.dims(x) == len(sizes) else f"unsqueezed({call.name(x)}, 0)" for x in xs)
            return f"joined_of(run, {{{', '.join(parts)}}}, 0)"
        case ir.Concat(xs, dim) if all(call.dims(x) == len(sizes) for x in xs):
            return f"joined_of(run, {{{', '.join(map(call.name, xs))}}}, {dim + lead})"
        case ir.Part(x, of, at):
            begin = " + ".join(["int64_t(0)", *map(call.count, of[:at])])
            if of[at] == UNIT:
                return f"selected(run, {call.name(x)}, 0, {begin})"
            return f"sliced({call.name(x)}, 0, {begin}, {begin} + {call.count(of[at])}, 1)"
        case ir.Reduce(x, fold, dims):
            kept = "true" if node.keepdim else "false"
            first, body = FOLDS[fold]
            listed = ", ".join(str(d + lead) for d in dims)
            return (
                f"folded(run, {call.name(x)}, {{{listed}}}, {kept}, {first}, [](auto a, auto b) {{ return {body}; }})"
            )
        case ir.MatMul(x, w, None):
            return _product(call, x, w, own)
        case ir.AddMatMul(a, x, w, None):
            sum_of = "[](auto a, auto b) { return a + b; }"
            return f"combined(run, {call.name(a)}, {_product(call, x, w, own)}, {call.code}, {sum_of})"
        case ir.Push(x, m, Fold() as fold, empty) if isinstance(call.program.nodes[m], ir.ToUnit):
            first, body = FOLDS[fold]
            none = number_text(empty)
            return f"total(run, {call.name(x)}, {first}, {none}, [](auto a, auto b) {{ return {body}; }})"
        case ir.Push(x, m, Fold() as fold, empty) if isinstance(found := call.program.nodes[m], ir.MapOf):
            first, body = FOLDS[fold]
            none = number_text(empty)
            rows, words = call.count(found.cod), call.words(m)
            op = f"[](auto a, auto b) {{ return {body}; }}"
            return f'pushed(run, {call.name(x)}, {call.name(m)}, {rows}, {first}, {none}, {op}, "{words}")'
        case ir.Pull(x, m) if isinstance(call.program.nodes[m], ir.MapOf):
            return f'rows_at(run, {call.name(x)}, {call.name(m)}, false, "{call.words(m)}")'
        case _:
            raise call.refused()


def _num_keys(call: NamedNode, ref: ir.Ref) -> int:
    node = call.program.nodes[ref]
    assert isinstance(node, ir.Distinct)
    return len(node.keys)


def _product(call: NamedNode, x: ir.Ref, w: ir.Ref, own: ir.Type) -> str:
    """Rows times a matrix, or times one for each block of their features; shared data is a single row."""
    rows = f"unsqueezed({call.name(x)}, 0)" if own.space == UNIT else call.name(x)
    if len(own.shape) == 1:
        made = f"product(run, {rows}, {call.name(w)})"
    else:  # blocks in front
        made = f"permuted_by(product(run, permuted_by({rows}, {{1, 0, 2}}), {call.name(w)}), {{1, 0, 2}})"
    return f"selected(run, {made}, 0, 0)" if own.space == UNIT else made


_OPERATORS: dict[Op, str] = {
    Op.add: "a + b", Op.sub: "a - b", Op.mul: "a * b", Op.div: "a / b", Op.eq: "a == b", Op.ne: "a != b",
    Op.lt: "a < b", Op.le: "a <= b", Op.gt: "a > b", Op.ge: "a >= b", Op.logical_and: "a && b",
    Op.logical_or: "a || b", Op.maximum: "a != a || a > b ? a : b", Op.minimum: "a != a || a < b ? a : b",
    Op.neg: "-a", Op.logical_not: "!a", Op.relu: "a < 0 ? a - a : a", Op.abs: "a < 0 ? -a : a",
}  # fmt: skip
"""Operators on a few numbers, such as the ends of a single edge; kernels compute all others, and many numbers."""


def _pointwise(call: NamedNode, node: ir.Pointwise, rank: int) -> str:
    """An operator on each element. Values with rows have dims of size 1 in front of their features up to `rank`."""
    operands = [_with_rank(call, x, rank) for x in node.args]
    if node.op is Op.where:
        return f"chosen(run, {', '.join(operands)})"
    if node.op not in _OPERATORS:
        raise call.refused()
    both = operands * 2 if len(operands) == 1 else operands  # an operator of one operand does not look at the other
    body = f"[](auto a, [[maybe_unused]] auto b) {{ return {_OPERATORS[node.op]}; }}"
    return f"combined(run, {', '.join(both)}, {call.code}, {body})"


def _with_rank(call: NamedNode, ref: ir.Ref, rank: int) -> str:
    t, text = call.type_of(ref), call.name(ref)
    if not isinstance(t, ir.Type):
        raise call.refused()
    for _ in range(rank - len(t.shape) if t.space != UNIT else 0):
        text = f"unsqueezed({text}, 1)"
    return text


def _join_indices(call: NamedNode, node: ir.JoinIndices) -> Iterator[str]:
    parts, counts = [], [call.count(s) for s in node.of]
    for index, at, wrap in zip(node.indices, node.at, node.wraps, strict=True):
        start = " + ".join(["int64_t(0)", *counts[:at]])
        words = call.words(index)
        parts.append(
            f'shifted_index(run, {call.name(index)}, {counts[at]}, {"true" if wrap else "false"}, {start}, "{words}")'
        )
    yield f"Value {call.name(call.ref)} = joined_of(run, {{{', '.join(parts)}}}, 0);"
