"""Maps whose index a formula gives: runs of equal length, one for each row, which kernels walk without a CSR."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.analysis.cones import Cones
from graphweave.analysis.facts import Facts
from graphweave.codegen.cpp.kernel import print_kernel
from graphweave.compiler.plan import PlanName, make_plan
from graphweave.core.options import Options, options_for
from graphweave.core.sizes import read
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.loop.parse import parse
from graphweave.ir.loop.show import show
from graphweave.ir.loop.verify import verify
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import EqualRuns, Input, MapOf, MatMul, Pointwise, Program, Pull, Push, Type
from tests.captures import capture, check
from tests.lower.test_lower import check_kernel
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

V, E = Space("V"), Space("E")
F = 4
SIZES = ((5, 3), (1, 2), (2, 1), (4, 0), (0, 3), (3, 5), (2, 2))
"""Numbers of nodes, and of neighbours of each."""

# ---------------------------------------------------------------- formulas


def summed(x: Tensor, runs: Tensor) -> Tensor:
    """The sum of a function of rows that `runs` picks, by the rows that it picks."""
    return torch.zeros_like(x).index_add(0, runs, torch.tanh(x[runs]))


FORMULAS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "repeated": (lambda x, t: torch.arange(len(x))[:, None].expand(-1, t.shape[1]).reshape(-1), True),
    "interleaved": (lambda x, t: torch.arange(len(x)).repeat_interleave(t.shape[1]), True),
    "of a zero": (lambda x, t: (torch.arange(len(x))[:, None] + 0 * torch.arange(t.shape[1])).flatten(), True),
    "divided": (lambda x, t: torch.arange(len(x) * t.shape[1]) // t.shape[1], True),
    "divided by another number": (lambda x, t: torch.arange(len(x) * 2) // 3, False),
    "of two dims": (lambda x, t: torch.arange(len(x)).view(-1, 1, 1).expand(-1, 2, t.shape[1]).reshape(-1), True),
    "of rows in turn": (lambda x, t: torch.arange(len(x)).repeat(t.shape[1]), False),
    "backwards": (lambda x, t: (len(x) - 1 - torch.arange(len(x)))[:, None].expand_as(t).reshape(-1), False),
    "every second": (lambda x, t: (torch.arange((len(x) + 1) // 2) * 2)[:, None].expand(-1, 3).reshape(-1), False),
    "of all but one": (lambda x, t: torch.arange(len(x) - 1)[:, None].expand(-1, t.shape[1]).reshape(-1), False),
    "each once": (lambda x, t: torch.arange(len(x)), False),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_of_equal_runs_is_known(name: str) -> None:
    formula, known = FORMULAS[name]

    def f(x: Tensor, table: Tensor) -> Tensor:
        return summed(x, formula(x, table))

    (captured,) = capture(f, torch.randn(5, F, dtype=torch.float64, requires_grad=True), torch.zeros(5, 3))
    check(captured)
    assert any(isinstance(n, EqualRuns) for n in captured.imported.program.nodes) == known


# ---------------------------------------------------------------- tables of neighbours


def near_sum(x: Tensor, table: Tensor) -> Tensor:
    return torch.tanh(x[table] - x[:, None]).sum(1)


def near_mean(x: Tensor, table: Tensor) -> Tensor:
    return (x[table] * x[:, None]).mean(1)


def near_max(x: Tensor, table: Tensor) -> Tensor:
    return torch.sin(x[table] - x[:, None]).amax(1)


def near_softmax(x: Tensor, table: Tensor) -> Tensor:
    score = torch.softmax((x[table] * x[:, None]).sum(-1), 1)
    return (score[..., None] * x[table]).sum(1)


def on_edges(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Results on the places of the table, and one number for all of them."""
    near = torch.tanh(x[table] * x[:, None])
    return near, near.sum()


def in_a_batch(x: Tensor, table: Tensor) -> Tensor:
    return torch.stack([near_sum(x, table), near_mean(x, table)])[:, table].sum(2)


TABLES: dict[str, Callable[[Tensor, Tensor], Tensor | tuple[Tensor, ...]]] = {
    f.__name__: f for f in (near_sum, near_mean, near_max, near_softmax, on_edges, in_a_batch)
}


def step(f: Callable[..., Tensor | tuple[Tensor, ...]], x: Tensor, table: Tensor) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    out = f(x, table)
    outs = [out] if isinstance(out, Tensor) else list(out)
    weights = [torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o) for o in outs]
    return [*outs, *torch.autograd.grad(sum((o * w).sum() for o, w in zip(outs, weights, strict=True)), [x])]


@pytest.mark.parametrize("name", by_default(TABLES, "near_mean", "near_softmax", "on_edges"))
def test_one_compilation_serves_tables_of_all_sizes(name: str) -> None:
    f, random = TABLES[name], torch.Generator().manual_seed(3)
    compiled = torch.compile(f, backend="graphweave", dynamic=True)
    graphweave.reset_counters()
    for nodes, near in SIZES:
        x = torch.randn(nodes, F, dtype=torch.float64, generator=random)
        table = torch.randint(max(nodes, 1), (nodes, near), generator=random)
        if name in ("near_max", "near_softmax") and not near:
            continue  # a maximum over nothing
        torch.testing.assert_close(step(compiled, x, table), step(f, x, table), equal_nan=True)
    assert graphweave.counters()["eager_fallbacks"] == 0


# ---------------------------------------------------------------- kernels


def neighbours() -> Program:
    """For each node a softmax over the neighbours in a table, the messages themselves, and their maximum."""
    b = Builder()
    x, table = b.add(Input("x", Type(V, (F,), DType.f64))), b.add(Input("table", Type(E, (), DType.i64)))
    own, near = b.add(MapOf(b.add(EqualRuns(V, E)), V)), b.add(MapOf(table, V))
    message = b.add(Pointwise(Op.mul, (b.add(Pull(x, own)), b.add(Pull(x, near)))))
    top = b.add(Push(message, own, Fold.max))
    weight = b.add(Pointwise(Op.exp, (b.add(Pointwise(Op.sub, (message, b.add(Pull(top, own))))),)))
    total = b.add(Push(weight, own, Fold.sum))
    return b.program([message, top, total], [(V, read("s0")), (E, read("s0 * s1"))])


@pytest.mark.parametrize(("nodes", "near"), [(3, 4), (2, 1), (3, 0)])
def test_a_kernel_walks_runs_without_a_csr(nodes: int, near: int) -> None:
    program = neighbours()
    plan = make_plan(PlanName("test"), Facts(program), Options(), {})
    given = {
        "x": torch.randn(nodes, F, dtype=torch.float64),
        "table": torch.randint(nodes, (nodes * near,)),
    }
    walking = [k.lowered for k in plan.kernels.values() if k.lowered.kernel.csrs]
    for lowered in walking:
        assert lowered.map is None and [csr.positions for csr in lowered.kernel.csrs] == ["num_E"]
        verify(lowered.kernel)
        assert parse(show(lowered.kernel)) == lowered.kernel
        assert "perm" not in show(lowered.kernel) and "indptr" not in print_kernel(lowered.kernel)
        check_kernel(program, lowered, given, "neighbours")
    assert walking


def test_on_a_gpu_the_runs_have_a_csr() -> None:
    plan = make_plan(PlanName("test"), Facts(neighbours()), options_for("triton", "cuda"), {})
    csrs = [csr for k in plan.kernels.values() for csr in k.lowered.kernel.csrs]
    assert csrs and all(csr.positions is None for csr in csrs)


def test_long_runs_have_a_csr_since_several_threads_share_a_row() -> None:
    def f(x: Tensor, table: Tensor) -> Tensor:
        return near_sum(x, table)

    for length, known in ((1024, True), (1025, False)):
        (captured,) = capture(f, torch.randn(2, F, dtype=torch.float64), torch.zeros(2, length, dtype=torch.int64))
        assert any(isinstance(n, EqualRuns) for n in captured.imported.program.nodes) == known


@pytest.mark.parametrize("multiplied", [False, True])
def test_edges_in_runs_are_grouped_by_these_or_computed_with_their_products(multiplied: bool) -> None:
    b, wide = Builder(), Type(V, (8,), DType.f64)
    x, table = b.add(Input("x", wide)), b.add(Input("table", Type(E, (), DType.i64)))
    own, near = b.add(MapOf(b.add(EqualRuns(V, E)), V)), b.add(MapOf(table, V))
    message = b.add(Pointwise(Op.mul, (b.add(Pull(x, own)), b.add(Pull(x, near)))))
    out = message
    if multiplied:
        product = b.add(MatMul(message, b.add(Input("w", Type(UNIT, (8, 8), DType.f64)))))
        out = b.add(Pointwise(Op.tanh, (product,)))
    program = b.program([message, out], [(V, read("s0")), (E, read("s0 * s1"))])
    cones = Cones(program, Facts(program).flow, frozenset())
    assert cones.walks_along(message) == (None if multiplied else own)


@pytest.mark.parametrize("how", ["verified", "in 64 bits", "by a schedule"])
def test_other_ways_to_run_such_kernels(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, object] = {"verify": True} if how == "verified" else {}
    if how == "by a schedule":
        options["schedule"] = graphweave.Schedule(unroll=2, walk="divided", chunks=3)
    if how == "in 64 bits":
        monkeypatch.setattr("graphweave.execute.region_step.INT32_MAX", 8)
    x, table = torch.randn(6, F, dtype=torch.float64), torch.randint(6, (6, 4))
    compiled = torch.compile(near_sum, backend="graphweave", options=options, dynamic=True)
    torch.testing.assert_close(step(compiled, x, table), step(near_sum, x, table))
