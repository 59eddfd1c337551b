"""Online softmax: a maximum and the sums relative to it in one pass over a row's edges."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.utils import softmax

import graphweave
from graphweave.analysis.facts import Facts
from graphweave.compiler.plan import Plan, PlanName, make_plan
from graphweave.core.options import Options
from graphweave.execute.executable import Executable
from graphweave.frontends.dynamo import graph_compilation
from graphweave.ir.loop.nodes import Edges as EdgeLoop
from graphweave.ir.loop.nodes import Raise, Stmt, Tiles
from graphweave.ir.loop.show import show
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.parse import parse
from tests.lower.test_lower import TINY, check_kernel
from tests.program_support import ZOO, assert_computes, compiled, in_order, large
from tests.programs.graphs import EdgeList
from tests.programs.random_programs import inputs
from tests.support import AWKWARD, Graph, assert_matches, by_default, features, several_or_all

FORCED = Options(online="always", online_tile=3)
"""Options with tiles so small that most rows of the zoo have several."""

HEAD = """
space V = s0
space W = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> W = map %1 to W
"""


def attention(heads: int, width: int, dtype: str = "f32", returns: str = "%11") -> Program:
    """A small GATv2: score = sum over channels of tanh(z[src] + y[v]), out = softmax(score) z[src]."""
    hc = f"{heads}, {width}"
    return parse(f"""{HEAD}
%4: V[{hc}] {dtype} = input z
%5: W[{hc}] {dtype} = input y
%6: E[{hc}] {dtype} = pull %4, %2
%7: E[{hc}] {dtype} = pull %5, %3
%8: E[{hc}] {dtype} = add %6, %7
%9: E[{hc}] {dtype} = tanh %8
%10: E[{heads}] {dtype} = reduce.sum %9 [1]
%11: W[{heads}] {dtype} = push.max %10, %3
%12: E[{heads}] {dtype} = pull %11, %3
%13: E[{heads}] {dtype} = sub %10, %12
%14: E[{heads}] {dtype} = exp %13
%15: W[{heads}] {dtype} = push.sum %14, %3
%16: E[{heads}, 1] {dtype} = reshape %14 [{heads}, 1]
%17: E[{hc}] {dtype} = mul %16, %6
%18: W[{hc}] {dtype} = push.sum %17, %3
%19: W[{heads}, 1] {dtype} = reshape %15 [{heads}, 1]
%20: W[{hc}] {dtype} = div %18, %19
return %20, {returns}, %15
""")


def statements(plan: Plan) -> list[Stmt]:
    """Every statement of the plan's kernels, outer statements before inner ones."""
    found: list[Stmt] = []
    todo = [s for k in plan.kernels.values() for s in k.lowered.kernel.body]
    while todo:
        stmt = todo.pop(0)
        found.append(stmt)
        todo = [*getattr(stmt, "body", ()), *todo]
    return found


def walks(plan: Plan) -> tuple[int, int]:
    """The numbers of passes over a row's edges (a pass over tiles is one pass) and of sums that are rescaled."""
    tiled = [s for s in statements(plan) if isinstance(s, Tiles)]
    loops = [s for s in statements(plan) if isinstance(s, EdgeLoop) and s.tile is None]
    raised = [s for s in statements(plan) if isinstance(s, Raise)]
    return len(tiled) + len(loops), sum(len(s.sums) for s in raised)


# ---------------------------------------------------------------- which programs get an online softmax


def test_text(golden: Callable[[str, str], None]) -> None:
    (kernel,) = make_plan(PlanName("test"), Facts(attention(2, 8)), Options(), {}).kernels.values()
    golden("online_softmax.txt", show(kernel.lowered.kernel))


def test_one_comparison_a_tile() -> None:
    (kernel,) = make_plan(PlanName("test"), Facts(attention(2, 8)), Options(), {}).kernels.values()
    assert re.search(r"if \(tile_begin > csr_begin\) \{\n\s+bool push_11_reference_raised = false;", kernel.text)


def test_the_options_choose() -> None:
    assert walks(make_plan(PlanName("test"), Facts(attention(2, 8)), Options(), {})) == (1, 2)
    assert walks(make_plan(PlanName("test"), Facts(attention(2, 8)), Options(online="never"), {})) == (2, 0)


MESSAGE = (
    HEAD
    + """
%4: V[4] f32 = input x
%5: W[4] f32 = input y
%6: E[4] f32 = input w
%7: E[4] f32 = pull %4, %2
%8: E[4] f32 = pull %5, %3
%9: E[4] f32 = mul %7, %8
%10: W[4] f32 = push.max %9, %3
%11: E[4] f32 = pull %10, %3
%12: E[4] f32 = sub %9, %11
%13: E[4] f32 = exp %12
"""
)

RELATIVE = {
    "product": "%14: E[4] f32 = mul %13, %6\n%15: W[4] f32 = push.sum %14, %3",
    "negated": "%14: E[4] f32 = neg %13\n%15: W[4] f32 = push.sum %14, %3",
    "divided": "%14: E[4] f32 = div %13, %6\n%15: W[4] f32 = push.sum %14, %3",
    "broadcast": (
        "%14: E[4, 1] f32 = reshape %13 [4, 1]\n%15: E[3] f32 = input u\n%16: E[4, 3] f32 = mul %14, %15\n"
        "%17: W[4, 3] f32 = push.sum %16, %3"
    ),
    "last": (
        "%14: E[3, 1] f32 = input u\n%15: E[3, 4] f32 = mul %14, %13\n%16: E[12] f32 = reshape %15 [12]\n"
        "%17: W[12] f32 = push.sum %16, %3"
    ),
    "permuted": (
        "%14: E[2, 2] f32 = reshape %13 [2, 2]\n%15: E[2, 2] f32 = permute %14 [1, 0]\n%16: E[2, 2] f32 = input u\n"
        "%17: E[2, 2] f32 = mul %16, %15\n%18: W[2, 2] f32 = push.sum %17, %3"
    ),
    "sliced": "%14: E[2] f32 = slice %13 dim=0 1:3:1\n%15: W[2] f32 = push.sum %14, %3",
}
"""Ends of programs whose last node is a sum relative to the maximum %10."""

OTHER = {
    "squared": "%14: E[4] f32 = mul %13, %13\n%15: W[4] f32 = push.sum %14, %3",
    "divisor": "%14: E[4] f32 = div %6, %13\n%15: W[4] f32 = push.sum %14, %3",
    "added": "%14: E[4] f32 = add %13, %6\n%15: W[4] f32 = push.sum %14, %3",
    "below-tanh": "%14: E[4] f32 = tanh %13\n%15: W[4] f32 = push.sum %14, %3",
    "other-score": ("%14: E[4] f32 = sub %6, %11\n%15: E[4] f32 = exp %14\n%16: W[4] f32 = push.sum %15, %3"),
    "maximum-too": "%14: E[4] f32 = mul %13, %11\n%15: W[4] f32 = push.sum %14, %3",
    "folded": "%14: E[] f32 = reduce.sum %13 [0]\n%15: W[] f32 = push.sum %14, %3",
    "largest": "%14: W[4] f32 = push.max %13, %3",
    "not-empty": "%14: W[4] f32 = push.sum %13, %3 empty=1",
    "total": "%14: E -> unit = tounit E\n%15: unit[4] f32 = push.sum %13, %14",
    "other-element": (
        "%14: E[2, 2] f32 = reshape %9 [2, 2]\n%15: E[2, 2] f32 = permute %14 [1, 0]\n%16: E[4] f32 = reshape %15 [4]\n"
        "%17: E[4] f32 = sub %16, %11\n%18: E[4] f32 = exp %17\n%19: W[4] f32 = push.sum %18, %3"
    ),
}
"""Ends of programs whose last node is not such a sum."""


def with_end(end: str) -> Program:
    last = re.findall(r"%(\d+): ", end)[-1]
    return parse(f"{MESSAGE}{end}\nreturn %{last}\n")


@pytest.mark.parametrize("name", RELATIVE)
def test_sums_relative_to_a_maximum_share_its_pass(name: str) -> None:
    program = with_end(RELATIVE[name])
    made = compiled(program, FORCED)
    assert walks(made.plan) == (1, 1)
    assert_computes(made, program, (*ZOO, large()))


@pytest.mark.parametrize("name", OTHER)
def test_whatever_else_needs_the_maximum_comes_after_it(name: str) -> None:
    program = with_end(OTHER[name])
    made = compiled(program, FORCED)
    assert walks(made.plan)[1] == 0
    assert_computes(made, program)


def test_no_pass_is_saved_by_some_of_the_sums() -> None:
    """If another member has to wait for the maximum anyway, all sums use the second pass."""
    end = "%14: W[4] f32 = push.sum %13, %3\n%15: E[4] f32 = tanh %13\n%16: W[4] f32 = push.sum %15, %3\n"
    program = parse(f"{MESSAGE}{end}return %14, %16\n")
    made = compiled(program, FORCED)
    assert walks(made.plan) == (2, 0)
    assert_computes(made, program)


def test_a_later_pass_sees_the_maximum_of_all_edges() -> None:
    """The weights are needed again after their sum: they are computed anew, not kept from the first pass."""
    end = """%14: W[4] f32 = push.sum %13, %3
%15: E[4] f32 = pull %14, %3
%16: E[4] f32 = div %13, %15
%17: E[4] f32 = tanh %16
%18: W[4] f32 = push.sum %17, %3
"""
    program = parse(f"{MESSAGE}{end}return %14, %18\n")
    made = compiled(program, FORCED)
    assert walks(made.plan) == (2, 1)
    assert_computes(made, program, (*ZOO, large()))


# ---------------------------------------------------------------- what they compute


@pytest.mark.parametrize(
    ("heads", "width", "dtype"),
    [
        *((1, 1, "f32"), (4, 16, "f32"), (3, 31, "f64"), (1, 33, "f32")),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 1, "f64"), (4, 16, "f64"))),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((3, 31, "f32"), (1, 33, "f64"))),
    ],
)
@pytest.mark.parametrize("options", [Options(), FORCED, Options(online="always", online_tile=1)], ids=["32", "3", "1"])
def test_attention(heads: int, width: int, dtype: str, options: Options) -> None:
    program = attention(heads, width, dtype)
    made = compiled(program, options)
    assert walks(made.plan)[1] == (2 if width > 1 or options.online == "always" else 0)
    assert_computes(made, program, (*ZOO, large()))


def test_interpreted_kernels() -> None:
    program = attention(2, 3, "f64")
    plan = make_plan(PlanName("test"), Facts(program), Options(online="always", online_tile=2), {})
    for graph in (*TINY, ZOO[9]):
        given = inputs(program, graph, 3)
        for kernel in plan.kernels.values():
            check_kernel(program, kernel.lowered, given, graph.name)


GIVEN = (
    HEAD
    + """
%4: E[2] f32 = input s
%5: E[3] f32 = input u
%6: W[2] f32 = push.max %4, %3
%7: E[2] f32 = pull %6, %3
%8: E[2] f32 = sub %4, %7
%9: E[2] f32 = exp %8
%10: W[2] f32 = push.sum %9, %3
%11: E[2, 1] f32 = reshape %9 [2, 1]
%12: E[2, 3] f32 = mul %11, %5
%13: W[2, 3] f32 = push.sum %12, %3
%14: W[] f32 = input x
return %6, %10, %13, %14
"""
)
"""A program whose scores and messages are inputs."""

INF, NAN = math.inf, math.nan
SCORES = {
    "all -inf": [-INF] * 5,
    "-inf first": [-INF, -INF, -INF, 1.0, 0.5],
    "-inf between": [0.5, -INF, 2.0, -INF, -INF],
    "-inf last": [1.0, 3.0, -INF, -INF, -INF],
    "one -inf": [-INF],
    "inf first": [INF, 1.0, 2.0, -1.0],
    "inf last": [1.0, 2.0, -1.0, INF],
    "inf twice": [INF, 0.0, INF],
    "inf after -inf": [-INF, -INF, INF, -INF],
    "nan first": [NAN, 1.0, 2.0],
    "nan between": [1.0, -2.0, NAN, 3.0, 5.0, 4.0],
    "nan last": [1.0, 2.0, 3.0, NAN],
    "nan after -inf": [-INF, -INF, NAN, 0.0],
    "rising": [float(i) for i in range(12)],
    "rising far": [100.0 * i for i in range(9)],
    "falling": [-float(i) for i in range(12)],
    "large": [1e38, -1e38, 3e38, 1.0],
    "equal": [2.0] * 7,
    "none": [],
}
"""Scores of a row's edges, in the order of the edges."""


@pytest.mark.parametrize("tile", [1, 2, 3, 32])
def test_special_scores(tile: int) -> None:
    made = compiled(parse(GIVEN), Options(online="always", online_tile=tile))
    assert walks(made.plan) == (1, 2)
    for name, scores in SCORES.items():
        check_scores(made, name, scores)


def check_scores(made: Executable, name: str, scores: list[float]) -> None:
    """One head has these scores, the other heads finite ones; messages are finite."""
    program, generator = made.plan.program, torch.Generator().manual_seed(1)
    graph = EdgeList(name, torch.zeros(len(scores), dtype=torch.int64), torch.full((len(scores),), 1), 2, 3)
    given = inputs(program, graph, 2)
    given["s"] = torch.stack([torch.tensor(scores), torch.randn(len(scores), generator=generator)], 1)
    got, want = made(in_order(program, given)), interp(program, given)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=3e-6, atol=1e-6, equal_nan=True, msg=lambda m: f"{name}: {m}")


def random_softmax(number: int) -> tuple[Program, int]:
    """A softmax over scores of random form, and some sums of random products relative to its maximum."""
    rng = random.Random(number)
    dtype = rng.choice(["f32", "f64"])
    heads, width = rng.choice([1, 2, 5]), rng.choice([1, 3, 31])
    lines = [
        f"V[{heads}, {width}] {dtype} = input z", f"W[{heads}, {width}] {dtype} = input y",
        f"E[{heads}, 1] {dtype} = input w", f"E[{heads}, {width}] {dtype} = pull %4, %2",
        f"E[{heads}, {width}] {dtype} = pull %5, %3", f"E[{heads}, {width}] {dtype} = mul %7, %8",
    ]  # fmt: skip
    if rng.random() < 0.6:
        lines += [f"E[{heads}] {dtype} = reduce.sum %9 [1]", f"E[{heads}, 1] {dtype} = reshape %10 [{heads}, 1]"]
        one = True
    else:
        lines += [f"E[{heads}, {width}] {dtype} = tanh %9", f"E[{heads}, {width}] {dtype} = add %10, %7"]
        one = width == 1
    shape = f"{heads}, {1 if one else width}"
    lines += [
        f"W[{shape}] {dtype} = push.max %11, %3 empty={rng.choice(['0', '-inf', '2.5'])}",
        f"E[{shape}] {dtype} = pull %12, %3", f"E[{shape}] {dtype} = sub %11, %13", f"E[{shape}] {dtype} = exp %14",
        f"W[{shape}] {dtype} = push.sum %15, %3",
    ]  # fmt: skip
    sums = [12, 16]
    for factor in rng.sample([6, 7, 8, 9], rng.randint(1, 3)):
        op, at = rng.choice(["mul", "mul", "div"]), len(lines) + 4
        own = f"{heads}, {1 if factor == 6 else width}"
        both = f"{heads}, {1 if factor == 6 and one else width}"
        lines += [f"E[{own}] {dtype} = exp %{factor}", f"E[{both}] {dtype} = {op} %15, %{at}"]
        lines += [f"W[{both}] {dtype} = push.sum %{at + 1}, %3"]
        sums.append(at + 2)
    body = "\n".join(f"%{i + 4}: {line}" for i, line in enumerate(lines))
    return parse(f"{HEAD}{body}\nreturn {', '.join(f'%{s}' for s in sums)}\n"), len(sums) - 1


def check_random(number: int) -> None:
    program, sums = random_softmax(number)
    tile = random.Random(number).choice([1, 2, 5, 32])
    made = compiled(program, Options(online="always", online_tile=tile, stash_width=number % 2 * 32))
    assert walks(made.plan) == (1, sums)
    assert_computes(made, program, (*ZOO, large()))


@pytest.mark.parametrize("number", range(8))
def test_random_softmax(number: int) -> None:
    check_random(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8, 120))
def test_more_random_softmaxes(number: int) -> None:
    check_random(number)


# ---------------------------------------------------------------- layers


class Scored(pyg.MessagePassing):
    """Softmax over scores that a network gives, behind matrix products on edges."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="sum")
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int | None) -> Tensor:
        return softmax(self.score(x_i * x_j), index, num_nodes=size_i) * x_j


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "gat": lambda width: pyg.GATConv(width, 16, heads=2),
    "gatv2": lambda width: pyg.GATv2Conv(width, 16, heads=2),
    "transformer": lambda width: pyg.TransformerConv(width, 9, heads=3),
    "channels": lambda width: pyg.SimpleConv(aggr="softmax"),
    "scored": Scored,
}


def executables(monkeypatch: pytest.MonkeyPatch, options: Options) -> list[Plan]:
    """Plans that are made from now on use `options`."""
    plans: list[Plan] = []
    monkeypatch.setattr(graph_compilation, "options_of", lambda *_: options)
    made = Executable.__init__

    def init(self: Executable, plan: Plan, *args: object, **kwargs: object) -> None:
        plans.append(plan)
        made(self, plan, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Executable, "__init__", init)
    return plans


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", by_default(LAYERS, "scored"))
@several_or_all
def test_layers(name: str, graphs: tuple[Graph, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, in float64, all softmaxes online."""
    plans = executables(monkeypatch, Options(online="always", online_tile=3, tile=3))
    torch.manual_seed(0)
    layer = LAYERS[name](31).double()
    fast = graphweave.compile(layer)
    for graph in graphs:
        x = features(graph.num_nodes, 31, torch.float64)
        assert_matches(fast, layer, x, graph.edge_index, module=layer, label=graph.name)
    assert graphweave.counters()["eager_fallbacks"] == 0
    assert any(walks(plan)[1] for plan in plans)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("name", "online"), [("gat", False), ("gatv2", True), ("transformer", False)])
def test_default_choice(name: str, online: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default one pass is chosen where a second would gather the same wide rows again."""
    plans = executables(monkeypatch, Options())
    layer = LAYERS[name](31)
    graph = AWKWARD[-1]
    graphweave.compile(layer)(features(graph.num_nodes, 31), graph.edge_index)
    assert any(walks(plan)[1] for plan in plans) == online
