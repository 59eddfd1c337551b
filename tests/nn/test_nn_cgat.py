"""C-GAT: its margins equal loops over pairs of edges, with gradients; its tables hold the pairs they should."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from tests.programs.graphs import EdgeList, zoo
from tests.support import assert_matches, by_default, features

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo looks for gradients of what it traces, and hides this warning in a way that errors do not respect
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

W, OUT, HEADS = 5, 4, 2
SQUARE = [edges for edges in zoo() if edges.square]
MANY = [edges for edges in SQUARE if edges.name in ("hub_dst", "duplicates", "power_law", "self_loops")]


def graph_of(edges: EdgeList) -> Any:
    return gw.graph((edges.src, edges.dst), num_nodes=edges.num_src)


def labels_of(edges: EdgeList) -> Tensor:
    """Two labels, and nodes without one."""
    labels = torch.randint(0, 2, (edges.num_src,), generator=torch.Generator().manual_seed(3))
    return torch.where(torch.arange(edges.num_src) % 6 == 4, -1, labels)


def all_pairs(edges: EdgeList, labels: Tensor) -> set[tuple[int, int]]:
    """All pairs (edge k -> i, edge j -> i) with y_j = y_i and y_k != y_i, where all three labels are known."""
    y, ends = labels.tolist(), list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
    return {
        (a, b)
        for (a, (k, i)), (b, (j, at)) in product(enumerate(ends), repeat=2)
        if i == at and min(y[i], y[j], y[k]) >= 0 and y[j] == y[i] and y[k] != y[i]
    }


def layer_of() -> Any:
    torch.manual_seed(0)
    return gnn.CGATConv(W, OUT, HEADS, class_margin=0.3, graph_margin=0.2).double()


def halves(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    z = layer.fc(x).view(-1, HEADS, OUT)
    return (z * layer.attn_l).sum(-1), (z * layer.attn_r).sum(-1)


def scores(layer: Any, x: Tensor, edges: EdgeList) -> Tensor:
    left, right = halves(layer, x)
    return functional.leaky_relu(left[edges.src] + right[edges.dst], 0.2)


def boundary(layer: Any, x: Tensor, edges: EdgeList, labels: Tensor) -> Tensor:
    s, total = scores(layer, x, edges), x.new_zeros(())
    for k, j in sorted(all_pairs(edges, labels)):
        total = total + (s[k] + layer.class_margin - s[j]).relu().sum()
    return total / HEADS


def weighted_boundary(layer: Any, x: Tensor, edges: EdgeList, pairs: Any) -> Tensor:
    s, (k, j) = scores(layer, x, edges), pairs.edges()
    return ((s[k] + layer.class_margin - s[j]).relu() * pairs.edata["weight"][:, None]).sum() / HEADS


def hardest(layer: Any, x: Tensor, edges: EdgeList, labels: Tensor) -> Tensor:
    s, total = scores(layer, x, edges), x.new_zeros(())
    rivals: dict[int, list[int]] = {}
    for k, j in sorted(all_pairs(edges, labels)):
        rivals.setdefault(j, []).append(k)
    for j, ks in rivals.items():
        total = total + (s[ks].amax(0) + layer.class_margin - s[j]).relu().sum()
    return total / HEADS


def structure(layer: Any, x: Tensor, edges: EdgeList, far: Any) -> Tensor:
    s, (left, right) = scores(layer, x, edges), halves(layer, x)
    k, e = far.edges()
    distant = functional.leaky_relu(left[k] + right[edges.dst[e]], 0.2)
    return (distant + layer.graph_margin - s[e]).relu().sum() / HEADS


Losses = tuple[Callable[..., Any], Callable[..., Any]]


def forms(layer: Any, runner: Callable[..., Any], edges: EdgeList) -> dict[str, Losses]:
    """Name -> (ours, reference): the loss as a function of x."""
    graph, labels = graph_of(edges), labels_of(edges)
    pairs, far = gnn.edge_pairs(graph, labels), gnn.far_nodes(graph, 2, labels)
    few = gnn.edge_pairs(graph, labels, max_pairs_per_edge=1)
    mask = torch.arange(edges.num_src) % 4 != 1
    masked = torch.where(mask, labels, -1)
    return {
        "pairs": (lambda x: runner(graph, x, pairs=pairs)[1], lambda x: boundary(layer, x, edges, labels)),
        "sampled": (
            lambda x: runner(graph, x, pairs=few)[1],
            lambda x: weighted_boundary(layer, x, edges, few),
        ),
        "far": (lambda x: runner(graph, x, far=far)[1], lambda x: structure(layer, x, edges, far)),
        "both": (
            lambda x: runner(graph, x, pairs=pairs, far=far)[1],
            lambda x: boundary(layer, x, edges, labels) + structure(layer, x, edges, far),
        ),
        "labels": (
            lambda x: runner(graph, x, labels=labels, mask=mask)[1],
            lambda x: hardest(layer, x, edges, masked),
        ),
    }


def check(layer: Any, runner: Callable[..., Any], edges: EdgeList, form: str) -> None:
    ours, theirs = forms(layer, runner, edges)[form]
    x = features(edges.num_src, W, torch.float64)
    assert_matches(ours, theirs, x, module=layer, label=f"{form} on {edges.name}")


@pytest.mark.parametrize("form", ["pairs", "sampled", "far", "both", "labels"])
def test_margins_equal_loops(form: str) -> None:
    layer = layer_of()
    with override(eager_kernels=False):
        for edges in SQUARE:
            check(layer, layer, edges, form)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["both", "labels"])
def test_margins_with_eager_kernels(form: str) -> None:
    layer = layer_of()
    for edges in MANY:
        check(layer, layer, edges, form)
    counts = gw.counters()
    assert counts["kernel_launches"] > 0 and counts["bucketed_reductions"] == counts["eager_fallbacks"] == 0


@pytest.mark.parametrize("form", by_default(("both", "labels", "sampled"), "both"))
def test_margins_compiled(form: str) -> None:
    layer = layer_of()
    compiled = gw.compile(layer)
    for edges in MANY:
        check(layer, compiled, edges, form)
    counts = gw.counters()
    assert counts["graph_breaks"] == counts["bucketed_reductions"] == counts["eager_fallbacks"] == 0
    assert counts["compilations"] == 1


def test_pairs_are_all_of_them() -> None:
    for edges in SQUARE:
        rival, same = gnn.edge_pairs(graph_of(edges), labels_of(edges)).edges()
        found = list(zip(rival.tolist(), same.tolist(), strict=True))
        assert len(found) == len(set(found)) and set(found) == all_pairs(edges, labels_of(edges)), edges.name


def test_sampled_pairs() -> None:
    """Each edge has at most the requested number of pairs, all different and valid, weighted to the full number."""
    for edges in SQUARE:
        labels = labels_of(edges)
        pairs = gnn.edge_pairs(graph_of(edges), labels, max_pairs_per_edge=2, seed=4)
        rival, same = pairs.edges()
        found, full = list(zip(rival.tolist(), same.tolist(), strict=True)), all_pairs(edges, labels)
        assert len(found) == len(set(found)) and set(found) <= full
        want = torch.zeros(edges.src.shape[0])
        for _, j in full:
            want[j] += 1
        assert torch.equal(pairs.in_degrees(), want.clamp(max=2).long())
        weights = torch.zeros(edges.src.shape[0]).index_add(0, same, pairs.edata["weight"])
        torch.testing.assert_close(weights, want)


def test_sampled_pairs_average_to_the_full_sum() -> None:
    edges = next(edges for edges in SQUARE if edges.name == "hub_dst")
    labels = torch.arange(edges.num_src) % 2  # node 5 receives half of all edges
    share = torch.zeros(edges.src.shape[0], edges.src.shape[0])
    for seed in range(600):
        pairs = gnn.edge_pairs(graph_of(edges), labels, max_pairs_per_edge=1, seed=seed)
        share[pairs.edges()] += pairs.edata["weight"] / 600
    want = torch.zeros_like(share)
    for pair in all_pairs(edges, labels):
        want[pair] = 1
    assert want.sum() > 30
    assert (share - want).abs().max() < 0.7  # 600 draws out of up to 12 equal pairs: 5 standard deviations of 0.14
    same, again = (gnn.edge_pairs(graph_of(edges), labels, max_pairs_per_edge=1, seed=s) for s in (5, 5))
    assert torch.equal(same.edges()[0], again.edges()[0])


def test_the_cases_bite() -> None:
    """The test data has pairs, hinges open and closed, and weights above 1."""
    layer, weights, hinges = layer_of(), [], []
    for edges in MANY:
        few = gnn.edge_pairs(graph_of(edges), labels_of(edges), max_pairs_per_edge=1)
        weights.append(few.edata["weight"])
        k, j = few.edges()
        s = scores(layer, features(edges.num_src, W, torch.float64), edges)
        hinges.append(s[k] + layer.class_margin - s[j])
    assert torch.cat(weights).numel() > 20 and torch.cat(weights).max() > 1
    assert 0.2 < (torch.cat(hinges) > 0).double().mean() < 0.9


def test_far_nodes_are_no_neighbours() -> None:
    for edges in SQUARE:
        graph, labels = graph_of(edges), labels_of(edges)
        known = set(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
        far = gnn.far_nodes(graph, 3, seed=1)
        for k, e in zip(*(index.tolist() for index in far.edges()), strict=True):
            i = int(edges.dst[e])
            assert k != i and (k, i) not in known
        y = labels.tolist()
        at_src, at_dst = ([y[v] for v in end.tolist()] for end in (edges.src, edges.dst))
        other = [a != b and min(a, b) >= 0 for a, b in zip(at_src, at_dst, strict=True)]
        for e in gnn.far_nodes(graph, 3, labels).edges()[1].tolist():
            assert not other[e]
    sparse = next(edges for edges in SQUARE if edges.name == "power_law")
    assert gnn.far_nodes(graph_of(sparse), 3).num_edges() == 3 * sparse.src.shape[0]


def test_results_stand_in_order() -> None:
    edges, layer = MANY[0], layer_of()
    graph, x = graph_of(edges), features(edges.num_src, W, torch.float64)
    with override(eager_kernels=False):
        out = layer(graph, x)
        first, attention, loss = layer(graph, x, get_attention=True, labels=labels_of(edges))
    assert torch.equal(first, out)
    assert attention.shape == (edges.src.shape[0], HEADS, 1) and loss.shape == ()


def test_wrong_use() -> None:
    edges, layer = MANY[0], layer_of()
    graph, labels = graph_of(edges), labels_of(edges)
    with pytest.raises(DataError, match="two forms of one constraint"):
        layer(graph, features(edges.num_src, W, torch.float64), pairs=gnn.edge_pairs(graph, labels), labels=labels)
    with pytest.raises(DataError, match=r"one for each of 6 nodes \(got torch.int64, shape \(3,\)\)"):
        gnn.edge_pairs(graph, labels[:3])
    with pytest.raises(DataError, match="integers"):
        gnn.far_nodes(graph, 1, labels.double())
    with pytest.raises(DataError, match=r"at least 1, or None for all \(got 0\)"):
        gnn.edge_pairs(graph, labels, max_pairs_per_edge=0)
