"""Scores of edges from both ends' rows next to each other are computed at nodes, where their parts come from there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave
from tests.support import SEVERAL, assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

HEADS, WIDTH = 2, 16
DOORS: dict[str, Callable[[nn.Module], Callable[..., Tensor]]] = {
    "compile": graphweave.compile,
    "backend": lambda model: torch.compile(model, backend="graphweave"),
}


class Attention(nn.Module):
    """GAT as its paper writes it, with features of edges if `edges`."""

    def __init__(self, edges: bool) -> None:
        super().__init__()
        self.edges = edges
        self.lin = nn.Linear(5, HEADS * WIDTH, bias=False)
        self.att = nn.Parameter(torch.randn(HEADS, (2 + edges) * WIDTH))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        src, dst = edge_index
        z = self.lin(x).view(-1, HEADS, WIDTH)
        parts = [z[src], z[dst], *([edge_attr] if self.edges else [])]
        score = F.leaky_relu((torch.cat(parts, -1) * self.att).sum(-1), 0.2).tanh().exp()
        total = torch.zeros(x.shape[0], HEADS, dtype=x.dtype).index_add(0, dst, score)
        out = torch.zeros_like(z).index_add(0, dst, z[src] * score[..., None])
        return out / (total[..., None] + 1)


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_values_and_gradients_are_those_of_eager_mode(door: str, edges: bool) -> None:
    torch.manual_seed(0)
    model = Attention(edges).double()
    compiled = DOORS[door](model)
    for graph in SEVERAL:
        x = features(graph.num_nodes, 5, torch.float64)
        attr = features(graph.edge_index.shape[1], HEADS * WIDTH, torch.float64).view(-1, HEADS, WIDTH)
        assert_matches(compiled, model, x, graph.edge_index, attr, module=model, label=graph.name)


def test_a_score_and_its_gradients_are_computed_at_nodes() -> None:
    x, index = torch.randn(50, 5, requires_grad=True), random_graph(50, 50, 4_000)
    told = graphweave.explain(Attention(edges=False), x, index, torch.zeros(0))
    (note,) = told.rewrites
    assert any({"split-products", "row-totals"} <= set(s.rules) for s in note.steps if s.taken)
    assert "concat" in note.before
    assert all("E0" not in line.split("=")[0] for line in note.after.splitlines() if " = concat" in line)
