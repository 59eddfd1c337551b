"""Graph-only work: what is kept from call to call, and that it is done once per graph and never for another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor

import graphweave
from graphweave.analysis.facts import Facts
from graphweave.ir.message.nodes import Pointwise, Type
from graphweave.ir.message.parse import parse
from tests.support import assert_matches, features, random_graph

MEAN = """\
space V = s0
space E = s1
%0: V[64] f32 = input x
%1: E[] i64 = input src
%2: E[] i64 = input dst
%3: E -> V = map %1 to V
%4: E -> V = map %2 to V
%5: E[] f32 = const 1.0
%6: V[] f32 = push.sum %5, %4
%7: unit[] f32 = const 1.0
%8: V[] f32 = maximum %6, %7
%9: V[1] f32 = reshape %8 [1]
%10: V[64] f32 = broadcast %9 [64]
%11: V[64] f32 = div %7, %10
%12: E[64] f32 = pull %0, %3
%13: V[64] f32 = push.sum %12, %4
%14: V[64] f32 = mul %13, %11
%15: V[64] f32 = div %13, %10
return %14, %15
"""


def test_of_what_only_widens_the_value_beneath_is_kept() -> None:
    program = parse(MEAN)
    kept = [program.nodes[r] for r in Facts(program).hoist.values]
    assert [n for n in kept if isinstance(n, Pointwise)] == [program.nodes[8]]
    assert all(isinstance(t := program.types[r], Type) and t.shape == () for r in Facts(program).hoist.values)


def test_an_output_is_kept_as_it_is() -> None:
    program = parse(MEAN.replace("return %14, %15", "return %11"))
    assert 11 in Facts(program).hoist.values


SIZE = """\
space E = s0
space K = u0
%0: E[] i64 = input kind
%1: any "i64[u0, 1]" = call aten.nonzero.default(%0)
%2: any "Sym(u0)" = call aten.sym_size.int(%1, 0)
%3: E[4] f32 = input x
%4: K[4] f32 = call aten.slice.Tensor(%3, 0, 0, %2)
return %4
"""


def test_of_a_call_that_is_only_asked_for_its_size_the_size_is_kept() -> None:
    assert Facts(parse(SIZE)).hoist.values == (2,)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_number_that_the_graph_decides_is_kept_until_the_graph_is_edited() -> None:
    def f(x: Tensor, edges: Tensor) -> tuple[Tensor, int]:
        count = edges[:, edges[0] != edges[1]].shape[1]
        return (x * count).sum(0), count

    compiled, x = graphweave.compile(f), features(4, 3).requires_grad_()
    edges = torch.tensor([[0, 1, 2, 3], [1, 1, 3, 3]])
    for call, (wanted, builds) in enumerate(((2, 1), (2, 1), (3, 2), (3, 2))):
        if call == 2:
            edges[1, 3] = 0
        out, count = compiled(x, edges)
        assert count == wanted
        torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], torch.full_like(x, wanted))
        assert graphweave.counters()["hoist_builds"] == builds


CHOSEN_ROWS = """\
space E = s0
space K = u0
%0: E[] {dtype} = input x
%1: any "i64[u0, 1]" = call aten.nonzero.default(%0)
%2: any "Sym(u0)" = call aten.sym_size.int(%1, 0)
%3: K[] i64 = const 1
%4: K[] i64 = call aten.cumsum.default(%3, 0)
return %4
"""


def test_rows_that_features_choose_are_not_counted_once_for_a_graph() -> None:
    assert Facts(parse(CHOSEN_ROWS.format(dtype="f32"))).hoist.values == ()
    assert 4 in Facts(parse(CHOSEN_ROWS.format(dtype="i64"))).hoist.values


def numbered_choice(x: Tensor, bias: Tensor) -> Tensor:
    """Rows of x that their values choose, divided by numbers that depend on their count alone."""
    kept = torch.relu(x * 2 + bias).sum(1).gt(0).nonzero().view(-1)
    down = torch.ones_like(kept).cumsum(0)
    return torch.relu(x * 2 + bias)[kept] / down.unsqueeze(1)


@pytest.mark.usefixtures("fresh_compiler")
def test_no_call_repeats_the_kernel_that_chooses_rows() -> None:
    x, bias = features(30, 20), features(1, 20)
    compiled = graphweave.compile(numbered_choice)
    torch.testing.assert_close(compiled(x, bias), numbered_choice(x, bias))
    before = graphweave.counters()["fallback_calls"]
    compiled(x, bias)
    assert graphweave.counters()["fallback_calls"] - before <= 3  # nonzero, ones and cumsum


@pytest.mark.usefixtures("fresh_compiler")
def test_degrees_of_a_mean_are_one_number_a_node() -> None:
    layer = pyg.SAGEConv(16, 8)
    told = graphweave.explain(layer, features(20, 16).requires_grad_(), random_graph(20, 20, 90))
    saved = [value.split(": ")[1] for value in told.graphs[0].saved]
    assert saved.count("V0[] f32") == 1  # the degrees
    assert saved.count("V0[16] f32") <= 2  # x and the aggregate


# ---------------------------------------------------------------- once per graph, and never for another

N, W = 30, 5


def _summed(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def degrees(x: Tensor, edge_index: Tensor, kind: Tensor) -> Tensor:
    counts = torch.zeros(x.size(0)).index_add(0, edge_index[1], torch.ones(edge_index.size(1))).clamp(min=1)
    return _summed(x / counts.sqrt()[:, None], edge_index)


def looped(x: Tensor, edge_index: Tensor, kind: Tensor) -> Tensor:
    loops = torch.arange(x.size(0)).expand(2, -1)
    return _summed(x, torch.cat([edge_index, loops], 1))


def by_target(x: Tensor, edge_index: Tensor, kind: Tensor) -> Tensor:
    return _summed(x, edge_index[:, edge_index[1].argsort(stable=True)])


def by_relation(x: Tensor, edge_index: Tensor, kind: Tensor) -> Tensor:
    return sum((r + 1) * _summed(x, edge_index[:, kind == r]) for r in range(3))  # type: ignore[return-value]


def positions(x: Tensor, edge_index: Tensor, kind: Tensor) -> Tensor:
    place = torch.arange(x.size(0)) / x.size(0)
    which = F.one_hot(kind, 3).to(x.dtype) @ torch.tensor([[0.5], [1.0], [-1.0]])
    message = x[edge_index[0]] * place[edge_index[0]][:, None] * which
    return torch.zeros_like(x).index_add(0, edge_index[1], message)


ONCE: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in (degrees, looped, by_target, by_relation, positions)}


def _work(f: Callable[..., Tensor], *args: Tensor) -> tuple[int, int]:
    """Preludes run and calls left to PyTorch of one training step."""
    x, *rest = args
    graphweave.reset_counters()
    f(x.clone().requires_grad_(), *rest).square().sum().backward()
    counters = graphweave.counters()
    return counters["hoist_builds"], counters["fallback_calls"]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ONCE)
def test_once_per_graph(name: str) -> None:
    f = ONCE[name]
    compiled = graphweave.compile(f)
    x, edges = features(N, W), random_graph(N, N, 90)
    kind = torch.randint(3, (90,), generator=torch.Generator().manual_seed(4))
    assert_matches(compiled, f, x, edges, kind)
    _work(compiled, x, edges, kind)
    assert _work(compiled, x, edges, kind)[0] == 0
    assert _work(compiled, features(N, W, seed=9), edges, kind)[0] == 0  # other features, same graph
    edges[0, ::2] = edges[0, ::2].flip(0)
    kind[::3] = 1
    assert _work(compiled, x, edges, kind)[0] > 0
    assert_matches(compiled, f, x, edges, kind, label="edited")
    edges.t()[:5].fill_(3)  # through a view of it
    assert_matches(compiled, f, x, edges, kind, label="edited through a view")


@pytest.mark.usefixtures("fresh_compiler")
def test_nothing_is_left_to_do_for_a_graph_seen_before() -> None:
    x, edges = features(N, W), random_graph(N, N, 90)
    kind = torch.randint(3, (90,), generator=torch.Generator().manual_seed(4))
    for name in ("degrees", "looped", "by_target", "by_relation"):
        compiled = graphweave.compile(ONCE[name])
        _work(compiled, x, edges, kind)
        assert _work(compiled, x, edges, kind) == (0, 0), name


@pytest.mark.usefixtures("fresh_compiler")
def test_gcn_costs_what_a_cached_one_costs() -> None:
    torch.manual_seed(0)
    x, edges = features(N, W), random_graph(N, N, 90)
    launches = []
    for cached in (False, True):
        compiled = graphweave.compile(pyg.GCNConv(W, W, cached=cached))
        for _ in range(2):  # with cached=True it is compiled again once it has cached
            _work(compiled, x, edges)
        assert _work(compiled, x, edges) == (0, 0)
        launches.append(graphweave.counters()["kernel_launches"])
    assert launches[0] == launches[1] + 1  # uncached, a kernel scales the product by the degrees


@pytest.mark.usefixtures("fresh_compiler")
def test_an_address_used_again_is_another_graph() -> None:
    """Index tensors that die give their memory to the next ones."""
    layer = pyg.GCNConv(W, W)
    compiled = graphweave.compile(layer)
    x = features(N, W)
    for seed in range(12):
        edges = random_graph(N, N, 90, seed=seed)
        torch.testing.assert_close(compiled(x, edges), layer(x, edges))
        del edges


PULLED_COUNTS = """
space V = s0
space E = s1
%0: V[2] f32 = input x
%1: E[] i64 = input src
%2: E[] i64 = input dst
%3: E[] i64 = add %1, %2
%4: E -> V = map %3 to V
%5: E[] f32 = const 1.0
%6: E -> V = map %2 to V
%7: V[] f32 = push.sum %5, %6
%8: E[] f32 = pull %7, %4
%9: E[1] f32 = reshape %8 [1]
%10: E[2] f32 = pull %0, %6
%11: E[2] f32 = mul %10, %9
%12: V[2] f32 = push.sum %11, %6
return %12
"""


def test_the_index_along_which_kernels_pull_what_is_hoisted_is_hoisted_too() -> None:
    assert {3, 7} <= set(Facts(parse(PULLED_COUNTS)).hoist.values)
