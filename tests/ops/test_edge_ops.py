"""`spmm`, `sddmm` and `attend` against dense references, forward and every gradient, over the awkward graphs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave import ops
from graphweave.core.errors import DataError
from tests.ops.edge_op_cases import (
    HEADS,
    OWN,
    SCORES,
    F,
    data,
    dense_attend,
    dense_sddmm,
    dense_spmm,
    heads_of_source,
    packed,
)
from tests.programs.graphs import EdgeList, zoo
from tests.support import assert_matches, by_default

ZOO = {edges.name: edges for edges in zoo()}
FEW = [ZOO[name] for name in ("no_edges", "one_edge", "isolated", "hub_dst", "bipartite")]
REDUCERS = ("sum", "mean", "max", "min", "prod")

MEANING: dict[str, Any] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "dot": lambda x, y: (x * y).sum(-1, keepdim=True),
}  # fmt: skip
MESSAGES = {
    **{f"copy_{t}": (t, None, None) for t in "uve"},
    **{f"{a}_{op}_{b}": (a, op, b) for op in MEANING for a in "uve" for b in "uve" if a != b},
}


def meaning(name: str) -> Any:
    """The built-in of that name as a function of (src, dst, edge)."""
    a, op, b = MESSAGES[name]

    def function(src: Any, dst: Any, edge: Any) -> Tensor:
        of = {"u": src, "v": dst, "e": edge}
        return of[a] if op is None else MEANING[op](of[a], of[b])

    return function


def pair(edges: EdgeList, dtype: torch.dtype = torch.int64) -> tuple[Tensor, Tensor]:
    return edges.src.to(dtype), edges.dst.to(dtype)


def compare(
    edges: EdgeList, got: Any, want: Any, *leaves: Tensor, module: Any = None, dtype: Any = torch.int64
) -> None:
    """got(graph, *leaves) equals want(edges, *leaves), and every gradient; one that `want` lacks is 0."""

    def reference(*given: Tensor) -> Tensor:
        parameters = () if module is None else tuple(module.parameters())
        nothing: Any = sum(t.sum() for t in (*given, *parameters)) * 0
        out: Tensor = want(edges, *given) + nothing
        return out

    graph = pair(edges, dtype)
    assert_matches(lambda *given: got(graph, *given), reference, *leaves, module=module, label=edges.name)


def operands(edges: EdgeList, *width: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    rows = edges.num_src, edges.num_dst, edges.src.shape[0]
    u, v, e = (torch.randn(n, *width, generator=generator, dtype=torch.float64) for n in rows)
    return u, v, e + e.sign()  # divisors far from 0


@pytest.mark.parametrize("name", by_default(MESSAGES, "copy_u", "copy_e", "u_mul_e", "v_div_e", "u_dot_v"))
def test_built_in_messages(name: str) -> None:
    shape = (1,) if "dot" in name else (3,)
    for edges in FEW:
        leaves = operands(edges, 3)
        compare(
            edges, lambda g, u, v, e: ops.spmm(g, name, "sum", src=u, dst=v, edge=e),
            lambda g, u, v, e: dense_spmm(g, meaning(name), "sum", shape, u, v, e), *leaves,
        )  # fmt: skip
        got = ops.sddmm(pair(edges), name, src=leaves[0], dst=leaves[1], edge=leaves[2])
        torch.testing.assert_close(got, dense_sddmm(edges, meaning(name), shape, *leaves))


@pytest.mark.parametrize("reduce", by_default(REDUCERS, "max", "prod"))
@pytest.mark.parametrize("graphs", [pytest.param(FEW, id="few"), pytest.param(zoo(), id="all", marks=pytest.mark.slow)])
def test_reducers(reduce: str, graphs: list[EdgeList]) -> None:
    for edges in graphs:
        u, _, e = operands(edges, 3)
        count = edges.num_dst
        compare(
            edges, lambda g, u, e, n=count: ops.spmm(g, "u_mul_e", reduce, src=u, edge=e, num_dst=n),
            lambda g, u, e: dense_spmm(g, meaning("u_mul_e"), reduce, (3,), u, None, e), u, e,
        )  # fmt: skip


@pytest.mark.parametrize("width", by_default([(), (1,), (16,), (31,), (33,), (2, 3)], (), (33,)))
@pytest.mark.parametrize("dtype", by_default([torch.int32, torch.int64], torch.int32))
def test_widths(width: tuple[int, ...], dtype: torch.dtype) -> None:
    for edges in (ZOO["hub_src"], ZOO["isolated"]):
        compare(
            edges, lambda g, u, v: ops.spmm(g, "u_add_v", "mean", src=u, dst=v),
            lambda g, u, v: dense_spmm(g, meaning("u_add_v"), "mean", width, u, v), *operands(edges, *width)[:2],
            dtype=dtype,
        )  # fmt: skip


def test_features_broadcast_as_in_dgl() -> None:
    """Feature dims are aligned from the right, behind the rows: weights [E] beside rows of features."""
    edges = ZOO["hub_dst"]
    u, _, e = operands(edges, HEADS, 3)
    for weights in (e[:, 0, 0], e[:, :, :1]):
        wide = weights.reshape(weights.shape[0], -1, 1)
        got = ops.spmm(pair(edges), "u_mul_e", src=u, edge=weights)
        torch.testing.assert_close(got, dense_spmm(edges, meaning("u_mul_e"), "sum", (HEADS, 3), u, None, wide))


@pytest.mark.parametrize("name", by_default(OWN, "mlp", "gaussian", "tanh_of_difference", "log_sum_exp", "bilinear"))
def test_functions_of_ones_own(name: str) -> None:
    case = OWN[name]
    module = case.weights()
    function = case.make(module)

    def got(graph: Any, *leaves: Tensor) -> Tensor:
        if case.reduce is None:
            return ops.sddmm(graph, function, **packed(*leaves))
        return ops.spmm(graph, function, case.reduce, **packed(*leaves))

    def want(edges: EdgeList, *leaves: Tensor) -> Tensor:
        given = packed(*leaves)
        if case.reduce is None:
            return dense_sddmm(edges, function, case.shape, *given.values())
        return dense_spmm(edges, function, case.reduce, case.shape, *given.values())

    for edges in FEW:
        if name == "log_sum_exp" and edges.name != "hub_dst":  # eager mode makes NaN of the sum with -inf
            continue
        compare(edges, got, want, *data(edges), module=module)


@pytest.mark.parametrize("name", by_default(SCORES, "dot", "gatv2"))
def test_attention(name: str) -> None:
    make, weights = SCORES[name]
    module = weights()
    score = make(module)
    for edges in FEW:
        compare(
            edges, lambda g, *leaves: ops.attend(g, score, heads_of_source, **packed(*leaves)),
            lambda g, *leaves: dense_attend(g, score, heads_of_source, (HEADS, F // HEADS), *packed(*leaves).values()),
            *data(edges), module=module,
        )  # fmt: skip


def test_attention_by_names() -> None:
    """A score [E, 1], as `u_dot_v` gives it, weighs whole rows."""
    for edges in FEW:
        u, v, _ = operands(edges, 4)
        got = ops.attend(pair(edges), "u_dot_v", "copy_u", src=u, dst=v)
        want = dense_attend(edges, meaning("u_dot_v"), meaning("copy_u"), (4,), u, v, None)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("reduce", "built_in"),
    [((torch.add, 0), "sum"), ((torch.mul, 1), "prod"), ((torch.maximum, 0), "max"), ((torch.minimum, 0), "min")],
    ids=["sum", "prod", "max", "min"],
)
@pytest.mark.parametrize("graphs", [pytest.param(FEW, id="few"), pytest.param(zoo(), id="all", marks=pytest.mark.slow)])
def test_a_function_of_two_values_equals_the_built_in(reduce: Any, built_in: str, graphs: list[EdgeList]) -> None:
    for edges in graphs:
        u = operands(edges, 3)[0].requires_grad_()
        results = [ops.spmm(pair(edges), "copy_u", r, src=u, num_dst=edges.num_dst) for r in (reduce, built_in)]
        weights = torch.randn(results[0].shape, dtype=torch.float64)
        gradients = [torch.autograd.grad(out, u, weights)[0] for out in results]
        torch.testing.assert_close(results[0], results[1])
        torch.testing.assert_close(gradients[0], gradients[1])


def test_values_are_combined_in_the_order_of_edges() -> None:
    """The affine maps x -> a x + b compose associatively, but not commutatively: the order shows."""

    def compose(first: Tensor, then: Tensor) -> Tensor:
        return torch.stack([first[:, 0] * then[:, 0], first[:, 1] * then[:, 0] + then[:, 1]], 1)

    for edges in (ZOO["hub_dst"], ZOO["unsorted"], ZOO["duplicates"]):
        count = edges.num_dst
        compare(
            edges, lambda g, e, n=count: ops.spmm(g, "copy_e", (compose, 0.0), edge=e, num_dst=n),
            lambda g, e: dense_spmm(g, meaning("copy_e"), (compose, 0.0), (2,), None, None, e), operands(edges, 2)[2],
        )  # fmt: skip


def test_log_sum_exp_of_destinations_without_edges() -> None:
    got = ops.spmm(pair(ZOO["no_edges"]), "copy_u", (torch.logaddexp, -torch.inf), src=torch.randn(5, 2))
    assert torch.equal(got, torch.full((5, 2), -torch.inf))


def test_one_compilation_serves_graphs_of_all_sizes(fresh_compiler: None) -> None:
    def message(src: Tensor, dst: Tensor, edge: Any) -> Tensor:
        return torch.tanh(src - dst) * 0.5

    for edges in (ZOO["hub_dst"], ZOO["unsorted"], ZOO["bipartite"], ZOO["power_law"]):
        u, v, _ = operands(edges, 7)
        ops.spmm(pair(edges), message, src=u, dst=v)
    assert graphweave.counters()["compilations"] == 1
    assert graphweave.counters()["eager_fallbacks"] == graphweave.counters()["graph_breaks"] == 0


def test_no_message_is_stored(fresh_compiler: None) -> None:
    """The traversal and the function are one kernel."""
    edges = ZOO["unsorted"]
    u, v, _ = operands(edges, 7)
    ops.spmm(pair(edges), lambda src, dst, edge: torch.tanh(src - dst).exp(), src=u, dst=v)
    assert graphweave.counters()["kernel_launches"] == 1
    assert graphweave.counters()["fallback_calls"] == 0


def test_inside_a_compiled_function(fresh_compiler: None) -> None:
    """The operator is traced with what surrounds it: one graph, nothing left to PyTorch."""

    def model(x: Tensor, graph: Any) -> Tensor:
        h = torch.relu(x)
        return ops.spmm(graph, lambda src, dst, edge: torch.tanh(src - dst), "sum", src=h, dst=h).sin()

    edges = ZOO["hub_dst"]
    u, _, _ = operands(edges, 5)
    for graph in (pair(edges), torch.stack(pair(edges)), graphweave.graph(pair(edges), edges.num_dst)):
        assert_matches(graphweave.compile(model), model, u, graph)
    assert graphweave.counters()["graph_breaks"] == 0
    assert graphweave.counters()["fallback_calls"] == 0


def test_the_text_is_one_attribute_away() -> None:
    edges = ZOO["hub_dst"]
    u, v, _ = operands(edges, 5)
    text = ops.spmm.text(pair(edges), lambda src, dst, edge: torch.tanh(src - dst), src=u, dst=v)
    assert "gw_tanh" in text and "launches           a call: 1 kernel" in text
    assert repr(ops.spmm) == "graphweave.ops.spmm"


def test_an_operator_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(ops.attend)) is ops.attend


@pytest.mark.filterwarnings("ignore:graphweave. .* runs eagerly inside of a transform")
def test_inside_a_transform_of_torch_func() -> None:
    """It runs as plain PyTorch there, and says so."""
    edges = ZOO["hub_dst"]
    u, v, _ = operands(edges, 3)

    def total(u: Tensor) -> Tensor:
        return ops.spmm(pair(edges), lambda src, dst, edge: torch.tanh(src - dst), src=u, dst=v).sum()

    leaf = u.clone().requires_grad_()
    (want,) = torch.autograd.grad(total(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(total)(u), want)


def test_integers() -> None:
    """Sums and extremes of integers, and of functions of two integers."""
    edges = ZOO["hub_src"]
    x = torch.randint(-5, 5, (edges.num_src, 2), generator=torch.Generator().manual_seed(1))
    for reduce in ("sum", "max", "min"):
        want = dense_spmm(edges, meaning("copy_u"), reduce, (2,), x.double())
        assert torch.equal(ops.spmm(pair(edges), "copy_u", reduce, src=x), want.long())
    total = ops.spmm(pair(edges), "copy_u", (torch.add, 0), src=x)
    assert torch.equal(total, ops.spmm(pair(edges), "copy_u", src=x))
    with pytest.raises(DataError, match=r"identity of messages of torch.int64 must be one of their numbers \(got -inf"):
        ops.spmm(pair(edges), "copy_u", (torch.maximum, -torch.inf), src=x)
