"""The message interpreter against dense 0/1 matrices, node by node, and calls of ATen operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from graphweave.core.errors import DataError, IndexRangeError, IRError
from graphweave.core.sizes import read
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.aten import materialise, resolve, target_name, to_arg
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.interp import apply, interp
from graphweave.ir.message.nodes import (
    AddMatMul,
    Arg,
    Aten,
    Atom,
    Broadcast,
    Cast,
    Concat,
    Const,
    Gram,
    Input,
    MapOf,
    MatMul,
    Node,
    Operand,
    Pad,
    Permute,
    Pointwise,
    Program,
    Pull,
    Push,
    Reduce,
    Reshape,
    Slice,
    ToUnit,
    Type,
)
from graphweave.ir.message.parse import any_type, parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from tests.programs.compare import assert_close
from tests.programs.examples import SPACES, E, V, W, gat, moving, one_node
from tests.programs.graphs import EdgeList, zoo
from tests.programs.random_programs import inputs

ZOO = zoo(0)
f32, f64, i64, i32, boolean = DType.f32, DType.f64, DType.i64, DType.i32, DType.bool


def run_one(node: Node, given: list[tuple[Type, Tensor]], rows: dict[Space, int] | None = None) -> Any:
    program = one_node(node, *(t for t, _ in given))
    verify(program)
    return interp(program, {f"in{i}": x for i, (_, x) in enumerate(given)}, rows)[0]


def dense_map(index: Tensor, rows: int) -> Tensor:
    """0/1 matrix M [len(index), rows] with M[e, index[e]] = 1: pull is M x, push of sums is M^T x."""
    return (index[:, None] == torch.arange(rows)[None, :]).double()


def dense_fold(x: Tensor, index: Tensor, rows: int, fold: Fold, empty: float) -> Tensor:
    """A fold computed row by row, by torch's reductions over the rows that the mask picks."""
    folds: dict[Fold, Callable[[Tensor], Tensor]] = {
        Fold.sum: lambda t: t.sum(0), Fold.mul: lambda t: t.prod(0), Fold.max: lambda t: t.amax(0),
        Fold.min: lambda t: t.amin(0),
    }  # fmt: skip
    picked = [x[index == v] for v in range(rows)]
    parts = [folds[fold](p) if len(p) else torch.full(x.shape[1:], empty, dtype=x.dtype) for p in picked]
    return torch.stack(parts) if parts else x.new_zeros(0, *x.shape[1:])


@pytest.mark.parametrize("graph", ZOO, ids=lambda g: g.name)
@pytest.mark.parametrize("fold", list(Fold))
@pytest.mark.parametrize(("shape", "index_dtype"), [((), i64), ((1,), i32), ((31,), i64), ((3, 11), i32)])
def test_moving_is_multiplying_by_the_map(
    graph: EdgeList, fold: Fold, shape: tuple[int, ...], index_dtype: DType
) -> None:
    empty = -1.5
    x = torch.randn(graph.num_src, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    program = moving(shape, index_dtype, fold, empty)
    verify(program)
    src, dst = (i.int() if index_dtype is i32 else i for i in (graph.src, graph.dst))
    pulled, pushed, total = interp(program, {"x": x, "src": src, "dst": dst}, {W: graph.num_dst})
    flat = x.reshape(graph.num_src, math.prod(shape))
    message = (dense_map(graph.src, graph.num_src) @ flat).reshape(-1, *shape)
    assert_close(pulled, message)
    assert_close(pushed, dense_fold(message, graph.dst, graph.num_dst, fold, empty), reduction_length=48)
    zeros = torch.zeros_like(graph.dst)
    assert_close(total, dense_fold(message, zeros, 1, fold, empty)[0], reduction_length=64)


@pytest.mark.parametrize("graph", ZOO, ids=lambda g: g.name)
def test_push_sum_is_the_transposed_map(graph: EdgeList) -> None:
    x = torch.randn(graph.num_src, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    program = moving((33,), i64, Fold.sum, 0.0)
    _, pushed, total = interp(program, {"x": x, "src": graph.src, "dst": graph.dst}, {W: graph.num_dst})
    message = dense_map(graph.src, graph.num_src) @ x
    assert_close(pushed, dense_map(graph.dst, graph.num_dst).T @ message, reduction_length=48)
    assert_close(total, message.sum(0), reduction_length=64)


def test_gat_layer_is_pygs() -> None:
    graph = ZOO[[g.name for g in ZOO].index("hub_dst")]
    generator = torch.Generator().manual_seed(3)
    z, score = torch.randn(12, 4, 8, generator=generator), torch.randn(48, 4, generator=generator)
    out, nothing, alpha = interp(gat(), {"z": z, "score": score, "src": graph.src, "dst": graph.dst})
    assert nothing is None
    reach = dense_map(graph.dst, 12).T.bool()  # [12, 48]
    logits = torch.where(reach[..., None], score.double(), -math.inf)  # [12, 48, 4]
    weights = torch.where(reach.any(1)[:, None, None], logits, 0.0).softmax(1) * reach[..., None]
    assert_close(alpha, weights.sum(0).float(), reduction_length=48)
    assert_close(out, torch.einsum("veh,ehc->vhc", weights, z[graph.src].double()).float(), reduction_length=48)


@pytest.mark.parametrize("fold", list(Fold))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_wins_and_stays_in_its_row(fold: Fold, place: int) -> None:
    x = torch.tensor([1.0, -2.0, 3.0, 4.0])
    x[place] = math.nan
    program = moving((), i64, fold, 0.0)
    index = torch.arange(4)
    _, pushed, total = interp(program, {"x": x.double(), "src": index, "dst": torch.tensor([0, 0, 0, 2])}, {W: 3})
    assert pushed.isnan().tolist() == [True, False, False]
    assert total.isnan()


def test_integers_and_bools_move_too() -> None:
    index = (Type(E, (), i64), torch.tensor([2, 0, 2]))
    b = Builder()
    x, m = b.add(Input("x", Type(E, (), i32))), b.add(MapOf(b.add(Input("i", Type(E, (), i64))), V))
    yes = b.add(Pointwise(Op.gt, (x, b.add(Const(0, Type(UNIT, (), i32))))))
    nodes = [*(Push(x, m, fold) for fold in Fold), Push(yes, m, Fold.max), Push(yes, m, Fold.min, True)]
    program = b.program([b.add(n) for n in nodes], SPACES)
    verify(program)
    sums, products, most, least, any_yes, all_yes = interp(
        program, {"x": torch.tensor([5, -1, 7], dtype=torch.int32), "i": index[1]}, {V: 3}
    )
    assert (sums.tolist(), products.tolist()) == ([-1, 0, 12], [-1, 0, 35])
    assert (most.tolist(), least.tolist()) == ([-1, 0, 7], [-1, 0, 5])
    assert (any_yes.tolist(), all_yes.tolist()) == ([False, False, True], [False, True, True])
    assert sums.dtype == torch.int32 and any_yes.dtype == torch.bool


@pytest.mark.parametrize("wrap", [False, True])
def test_map_out_of_range_is_refused(wrap: bool) -> None:
    b = Builder()
    x = b.add(Input("x", Type(V, (), f32)))
    m = b.add(MapOf(b.add(Input("i", Type(E, (), i64))), V, wrap))
    program = b.program([b.add(Pull(x, m))], SPACES)
    given = torch.tensor([1.0, 2.0, 3.0])
    for value in (3, 2**40, -4, *([] if wrap else [-1])):
        with pytest.raises(IndexRangeError, match=rf"V: index {value} at .* expected {-3 if wrap else 0} <= index < 3"):
            interp(program, {"x": given, "i": torch.tensor([0, value])})
    if wrap:
        assert interp(program, {"x": given, "i": torch.tensor([-1, 0, -3])})[0].tolist() == [3.0, 1.0, 1.0]


def test_unit_and_row_operands_align_by_features() -> None:
    rows, wide = torch.randn(5, 3), torch.randn(2, 3)
    given = [(Type(V, (3,), f32), rows), (Type(UNIT, (2, 3), f32), wide)]
    assert_close(run_one(Pointwise(Op.mul, (0, 1)), given), rows[:, None, :] * wide)
    column = (Type(V, (2, 1), f32), torch.randn(5, 2, 1))
    assert_close(run_one(Pointwise(Op.sub, (0, 1)), [given[0], column]), rows[:, None, :] - column[1])


ROWS = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(4))
ROW_NODES: list[tuple[Node, Callable[[Tensor], Tensor]]] = [
    (Reshape(0, (2, 6)), lambda r: r.reshape(2, 6)),
    (Permute(0, (1, 0)), lambda r: r.T),
    (Broadcast(0, (2, 3, 4)), lambda r: r.expand(2, 3, 4)),
    (Slice(0, 1, 1, 4, 2), lambda r: r[:, 1:4:2]),
    (Pad(0, 0, 1, 2), lambda r: torch.cat([torch.zeros(1, 4), r, torch.zeros(2, 4)])),
    (Concat((0, 0), 1), lambda r: torch.cat([r, r], 1)),
    (Reduce(0, Fold.sum, (0, 1), False), lambda r: r.sum()),
    (Reduce(0, Fold.mul, (0, 1), True), lambda r: r.prod().reshape(1, 1)),
    (Reduce(0, Fold.max, (1,), True), lambda r: r.amax(1, keepdim=True)),
    (Reduce(0, Fold.min, (0,), False), lambda r: r.amin(0)),
    (Reduce(0, Fold.sum, (), False), lambda r: r),
    (Cast(0, f64), lambda r: r.double()),
    (Pointwise(Op.pow, (0, 0)), lambda r: r**r),
]


@pytest.mark.parametrize(("node", "row"), ROW_NODES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("space", [V, UNIT])
def test_row_operations_are_done_row_by_row(node: Node, row: Callable[[Tensor], Tensor], space: Space) -> None:
    x = ROWS if space == V else ROWS[0]
    want = torch.stack([row(r) for r in ROWS]) if space == V else row(x)
    assert_close(run_one(node, [(Type(space, (3, 4), f32), x)]), want, reduction_length=12)
    if space == V:
        none = run_one(node, [(Type(V, (3, 4), f32), x[:0])])
        assert none.shape == (0, *want.shape[1:]) and none.dtype == want.dtype


def test_matmul_and_gram() -> None:
    x, y, w = ROWS[:, 0], ROWS[:, 1, :2], ROWS[0].T  # [5, 4], [5, 2], [4, 3]
    tx, ty, tw = Type(V, (4,), f32), Type(V, (2,), f32), Type(UNIT, (4, 3), f32)
    assert_close(run_one(MatMul(0, 1), [(tx, x), (tw, w)]), x @ w, reduction_length=4)
    assert_close(run_one(Gram(0, 1), [(tx, x), (ty, y)]), x.T @ y, reduction_length=5)
    unit = Type(UNIT, (4,), f32)
    assert_close(run_one(MatMul(0, 1), [(unit, x[0]), (tw, w)]), x[0] @ w, reduction_length=4)
    assert_close(run_one(Gram(0, 1), [(unit, x[0]), (unit, x[1])]), torch.outer(x[0], x[1]))
    assert run_one(Gram(0, 1), [(tx, x[:0]), (ty, y[:0])]).tolist() == [[0.0, 0.0]] * 4


@pytest.mark.parametrize("blocks", [(), (3,)], ids=["one block", "three blocks"])
@pytest.mark.parametrize("space", [V, UNIT])
def test_products_with_the_matrix_that_a_map_names(space: Space, blocks: tuple[int, ...]) -> None:
    """One node, whether each row has a type or all rows share their weights: beside the sum that its docstring says."""
    types = torch.tensor([2, 0, 0, 2, 2])  # no row has type 1
    g = torch.Generator().manual_seed(5)
    x, y, a = (torch.randn(5, *blocks, n, generator=g, dtype=torch.float64) for n in (4, 2, 2))
    w = torch.randn(3, *blocks, 4, 2, generator=g, dtype=torch.float64)
    if space == UNIT:
        types, x, y, a = types[0], x[0], y[0], a[0]
    b = Builder()
    at = b.add(MapOf(b.add(Input("t", Type(space, (), i64))), W))
    tx, ty = Type(space, (*blocks, 4), f64), Type(space, (*blocks, 2), f64)
    rx, ry, ra = b.add(Input("x", tx)), b.add(Input("y", ty)), b.add(Input("a", ty))
    rw, shared = b.add(Input("w", Type(W, (*blocks, 4, 2), f64))), b.add(Input("s", Type(UNIT, (*blocks, 4, 2), f64)))
    nodes: list[Node] = [MatMul(rx, rw, at), AddMatMul(ra, rx, rw, at), Gram(rx, ry, at)]
    nodes += [MatMul(rx, shared), AddMatMul(ra, rx, shared), Gram(rx, ry)]
    program = b.program([b.add(n) for n in nodes], SPACES)
    verify(program)
    assert parse(show(program)) == program
    got = interp(program, {"t": types, "x": x, "y": y, "a": a, "w": w, "s": w[1]}, {V: 5, W: 3})
    each = torch.einsum("...k,...kj->...j", x, w[types])
    outer = torch.einsum("...k,...j->...kj", x, y)
    sums = torch.zeros_like(w).index_add(0, types.reshape(-1), outer.reshape(-1, *w.shape[1:]))
    want = [each, a + each, sums, x2 := torch.einsum("...k,...kj->...j", x, w[1]), a + x2]
    want.append(outer if space == UNIT else outer.sum(0))
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, reduction_length=5)


def test_maps_from_and_to_the_unit_space() -> None:
    b = Builder()
    x, w = b.add(Input("x", Type(V, (3,), f32))), b.add(Input("w", Type(UNIT, (3,), f32)))
    one = b.add(MapOf(b.add(Input("at", Type(UNIT, (), i64))), V))
    outs: list[Node] = [Pull(x, one), Push(w, one, Fold.sum), Push(w, one, Fold.max, -1.0), Pull(w, b.add(ToUnit(V)))]
    program = b.program([b.add(n) for n in outs], SPACES)
    verify(program)
    given, shared = ROWS[:, 0, :3], ROWS[0, 1, :3]
    row, placed, kept, spread = interp(program, {"x": given, "w": shared, "at": torch.tensor(2)})
    assert torch.equal(row, given[2])
    assert torch.equal(placed[2], shared) and placed.count_nonzero() == shared.count_nonzero()
    assert torch.equal(kept[2], shared) and (kept[[0, 1, 3, 4]] == -1).all()
    assert torch.equal(spread, shared.expand(5, 3))


def test_row_counts_come_from_symbols_and_calls() -> None:
    loops, t = Space("loops"), Type(Space("loops"), (), f32)
    join = Aten("aten.cat.default", ((Operand(0), Operand(1)), 0), (), t)
    b = Builder()
    b.add(Input("a", Type(V, (), f32)))
    b.add(Input("b", Type(E, (), f32)))
    ones = b.add(Const(1.0, t))
    program = b.program(
        [b.add(Pointwise(Op.add, (b.add(join), ones)))],
        [(V, read("s0")), (E, read("s1")), (loops, read("s0 + 2*s1 - 3"))],
    )
    verify(program)
    assert interp(program, {"a": torch.ones(2), "b": torch.zeros(3)})[0].tolist() == [2.0, 2.0, 1.0, 1.0, 1.0]
    with pytest.raises(DataError, match="loops has 9 rows by one tensor and 5 by another"):
        interp(program, {"a": torch.ones(2), "b": torch.zeros(3)}, {loops: 9})
    unknown = replace(program, spaces=((V, read("s0")), (E, read("s1")), (loops, read("u7"))))
    with pytest.raises(IRError, match="rows of space loops are unknown"):
        interp(unknown, {"a": torch.ones(2), "b": torch.zeros(3)})


def test_row_counts_come_from_numbers_that_are_given() -> None:
    b = Builder()
    b.add(Input("n", any_type("Sym(s0)")))
    program = b.program([b.add(Const(1.0, Type(E, (), f32)))], [(E, read("Max(0, 2*s0 - 3)"))])
    verify(program)
    assert interp(program, {"n": 4})[0].tolist() == [1.0] * 5
    assert interp(program, {"n": 1})[0].tolist() == []


def test_interp_refuses_inputs_that_do_not_fit() -> None:
    program = one_node(Pointwise(Op.neg, (0,)), Type(V, (2,), f32))
    for bad in (torch.zeros(3, 3), torch.zeros(2), torch.zeros(3, 2, dtype=torch.float64), 7):
        with pytest.raises(DataError, match="input 'in0' must be f32"):
            interp(program, {"in0": bad})
    with pytest.raises(DataError, match="'in0' is missing"):
        interp(program, {})


def test_interp_refuses_a_call_of_another_type() -> None:
    call = Aten("aten.neg.default", (Operand(0),), (), Type(V, (), f64))
    with pytest.raises(IRError, match="its type says"):
        run_one(call, [(Type(V, (), f32), torch.ones(3))])


# ---------------------------------------------------------------- calls of ATen operators


def test_calls_take_nested_arguments_and_builtins() -> None:
    b = Builder()
    x = b.add(Input("x", Type(V, (3,), f32)))
    pair = b.add(Aten("aten.sort.stable", (Operand(x),), (("stable", True), ("dim", 1)), any_type("pair")))
    ordered = b.add(Aten("builtin.getitem", (Operand(pair), 0), (), Type(V, (3,), f32)))
    both = b.add(Aten("aten.cat.default", ((Operand(x), Operand(ordered)), 1), (), Type(V, (6,), f32)))
    wide = b.add(
        Aten("aten._to_copy.default", (Operand(both),), (("dtype", Atom("torch.float64")),), Type(V, (6,), f64))
    )
    program = b.program([wide], SPACES)
    verify(program)
    given = torch.tensor([[3.0, -1.0, 2.0]])
    assert interp(program, {"x": given})[0].tolist() == [[3.0, -1.0, 2.0, -1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    "op",
    [torch.ops.aten.add.Tensor, torch.ops.prims.convert_element_type.default, torch.sym_max, math.floor, torch.sym_int],
)
def test_operators_are_found_by_their_names(op: Callable[..., Any]) -> None:
    assert resolve(target_name(op)) is op


def test_unknown_operators_and_arguments_are_refused() -> None:
    for target in ("aten.no_such_op.default", "aten.add.NoSuch", "builtin.exec", "nowhere.f.g"):
        with pytest.raises(IRError):
            resolve(target)
    with pytest.raises(IRError, match="expected an operator overload"):
        target_name(print)
    with pytest.raises(IRError, match="got slice"):
        to_arg(slice(0, 1), lambda node: 0)
    with pytest.raises(IRError, match="expected a torch dtype"):
        materialise(Atom("torch.load"), [])


def test_arguments_survive_the_round_trip() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    given = [x, [1, (x, None)], "s", 2.5, True, torch.bfloat16, torch.device("cuda:1"), torch.strided,
             torch.channels_last, complex(1, -2), torch.ops.aten.add.Tensor, torch.Size([2, 3])]  # fmt: skip
    arg = to_arg(given, lambda node: 7)
    want: Arg = (
        Operand(7), (1, (Operand(7), None)), "s", 2.5, True, Atom("torch.bfloat16"), Atom("device(cuda:1)"),
        Atom("torch.strided"), Atom("torch.channels_last"), Atom("complex(1.0,-2.0)"),
        Atom("operator(aten.add.Tensor)"), (2, 3),
    )  # fmt: skip
    assert arg == want
    back = materialise(arg, {7: "value of x"})
    assert back == ["value of x", [1, ["value of x", None]], *given[2:11], [2, 3]]


def traced(program: Program) -> fx.GraphModule:
    """The program as ATen calls on proxies; takes the inputs and then the row count of each space."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    names = [n.name for n in program.nodes if isinstance(n, Input)]
    places = {name: fx.Proxy(graph.placeholder(name), tracer) for name in names}
    rows = {space: fx.Proxy(graph.placeholder(f"rows_{space}"), tracer) for space, _ in program.spaces}
    values: list[Any] = []
    for node in program.nodes:
        match node:
            case Input(name):
                values.append(places[name])
            case Const(value, Type(space, shape)) if space == UNIT:
                made = graph.call_function(torch.ops.aten.full.default, (list(shape), value))
                values.append(fx.Proxy(made, tracer))
            case _:
                values.append(apply(node, values, program.types, rows.__getitem__))
    graph.output([None if r is None else values[r].node for r in program.outputs])
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("program", [gat(), moving((3,), i32, Fold.max, -1.0)], ids=["gat", "moving"])
def test_nodes_become_aten_calls_on_proxies(program: Program) -> None:
    """One trace with symbolic row counts serves every graph: nothing in `apply` looks at values or sizes."""
    module = traced(program)
    assert all(isinstance(n.target, torch._ops.OpOverload) for n in module.graph.nodes if n.op == "call_function")
    for edges in (g for g in ZOO if g.square):
        sizes = {V: edges.num_src, W: edges.num_dst, E: len(edges.src)}
        given = inputs(program, edges, seed=5)
        got = module(*given.values(), *(sizes[s] for s, _ in program.spaces))
        for a, b in zip(got, interp(program, given, sizes), strict=True):
            assert (a is b is None) or torch.equal(a, b)
