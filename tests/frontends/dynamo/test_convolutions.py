"""Convolutions that no rule names: compiled equals eager in float64, all gradients, and nothing is left to PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from tests.support import assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

N, W = 30, 6
EDGES = random_graph(N, N, 110)
DEGREES = torch.bincount(torch.bincount(EDGES[1], minlength=N))
TYPES = torch.randint(3, (EDGES.shape[1],), generator=torch.Generator().manual_seed(2))
AGGREGATORS = ["mean", "max", "min", "std"]


def wide(width: int = W) -> Tensor:
    """An attribute of every edge."""
    return features(EDGES.shape[1], width, torch.float64, seed=3)


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(W, W), nn.ReLU(), nn.Linear(W, W))


class Normed(nn.Module):
    """Norms of every kind between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = pyg.SAGEConv(W, W), pyg.SAGEConv(W, 3)
        self.norms = nn.ModuleList([nn.BatchNorm1d(W), nn.LayerNorm(W), pyg.GraphNorm(W), nn.BatchNorm1d(W).eval()])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index)
        for norm in self.norms:
            h = norm(h).relu() + h
        return torch.softmax(self.last(h, edge_index), -1)


CONVS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "pna": (lambda: pyg.PNAConv(W, W, AGGREGATORS, ["identity", "amplification", "attenuation"], DEGREES), ()),
    "gatv2": (lambda: pyg.GATv2Conv(W, 4, heads=2), ()),
    "transformer": (lambda: pyg.TransformerConv(W, 4, heads=2), ()),
    "transformer-edge": (lambda: pyg.TransformerConv(W, 4, heads=2, edge_dim=W, beta=True), (wide(),)),
    "gine": (lambda: pyg.GINEConv(_mlp(), train_eps=True, edge_dim=W), (wide(),)),
    "resgated": (lambda: pyg.ResGatedGraphConv(W, W), ()),
    "edgeconv-linear": (lambda: pyg.EdgeConv(nn.Linear(2 * W, W)), ()),
    "gmm": (lambda: pyg.GMMConv(W, W, dim=2, kernel_size=3), (wide(2),)),
    "gmm-separate": (lambda: pyg.GMMConv(W, W, dim=2, kernel_size=3, separate_gaussians=True), (wide(2),)),
    "supergat": (lambda: pyg.SuperGATConv(W, 4, heads=2, attention_type="SD").eval(), ()),
    "cg": (lambda: pyg.CGConv(W, dim=W, batch_norm=True), (wide(),)),
    "nnconv": (lambda: pyg.NNConv(W, W, nn.Linear(W, W * W)), (wide(),)),
    "typed": (lambda: pyg.FastRGCNConv(W, W, 3), (TYPES,)),
    "feast": (lambda: pyg.FeaStConv(W, W, heads=2), ()),
    "gated": (lambda: pyg.GatedGraphConv(W, 2), ()),
    "cheb": (lambda: pyg.ChebConv(W, W, K=3), ()),
    "tag": (lambda: pyg.TAGConv(W, W, K=2), ()),
    "agnn": (lambda: pyg.AGNNConv(), ()),
    "hypergraph": (lambda: pyg.HypergraphConv(W, W), ()),
    "gen": (lambda: pyg.GENConv(W, W, aggr="softmax", learn_t=True), ()),
    "le": (lambda: pyg.LEConv(W, W), ()),
    "normed": (Normed, ()),
}


def _nothing_left(compiled: nn.Module, *args: Tensor) -> None:
    """No call of PyTorch works at a step on a graph that was seen before: what depends on the graph alone is done."""
    args = tuple(a.clone().requires_grad_() if a.is_floating_point() else a for a in args)
    compiled(*args).sum().backward()
    graphweave.reset_counters()
    compiled(*args).sum().backward()
    assert graphweave.counters()["fallback_calls"] == 0


USUAL = ("pna", "transformer-edge", "resgated", "supergat", "typed", "normed")


@pytest.mark.parametrize("name", by_default(CONVS, *USUAL))
def test_compiled_equals_eager(name: str) -> None:
    torch.manual_seed(0)
    make, more = CONVS[name]
    conv = make().double()
    x = features(N, W, torch.float64).requires_grad_()  # the backward keeps a copy of data that may be overwritten
    compiled = graphweave.compile(conv)
    assert_matches(compiled, conv, x, EDGES, *more, module=conv)
    _nothing_left(compiled, x, EDGES, *more)


SAVING = ("pna", "gatv2", "transformer", "resgated", "edgeconv-linear", "supergat")


@pytest.mark.parametrize("name", by_default(SAVING, "pna", "transformer"))
def test_nothing_of_edges_and_features_is_kept(name: str) -> None:
    """The forward saves at most one number for each head on edges."""
    torch.manual_seed(0)
    told = graphweave.explain(CONVS[name][0](), features(N, W).requires_grad_(), EDGES)
    saved = [re.search(r": E\d+\[([\d, ]*)\] f", value) for graph in told.graphs for value in graph.saved]
    assert all(prod(int(n) for n in found[1].split(",") if n.strip()) <= 2 for found in saved if found)
    assert told.graphs[0].saved


def test_faconv() -> None:
    """The layer's second argument holds features as well."""
    torch.manual_seed(0)
    conv = pyg.FAConv(W).double()
    first = features(N, W, torch.float64, seed=8)
    x, compiled = features(N, W, torch.float64), graphweave.compile(conv)
    assert_matches(compiled, conv, x, first, EDGES, module=conv)
    _nothing_left(compiled, x, first, EDGES)


def test_running_statistics_of_a_batch_norm() -> None:
    """Running statistics are updated as in eager mode."""
    torch.manual_seed(0)
    ours, theirs = Normed().double(), Normed().double()
    theirs.load_state_dict(ours.state_dict())
    compiled = graphweave.compile(ours)
    for seed in range(3):
        x = features(N, W, torch.float64, seed)
        compiled(x, EDGES)
        theirs(x, EDGES)
    for got, want in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(got, want)
