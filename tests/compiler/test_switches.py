"""The switches of `docs/switches.md`: each alone and all together change no value, and each turns off what it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave
from tests.support import SEVERAL, assert_matches, features

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATConv, RGCNConv

ALONE: dict[str, dict[str, Any]] = {
    "rewrite": {"rewrite": False},
    "fuse": {"fuse": False},
    "merge": {"merge": False},
    "recompute": {"recompute": "never"},
    "compact": {"compact": False},
    "reorder": {"reorder": False},
    "relabel": {"relabel": "locality"},
    "order": {"schedule": graphweave.Schedule(row_order="degree")},
}
TOGETHER = {name: value for options in ALONE.values() for name, value in options.items() if name != "schedule"}


class Attention(nn.Module):
    """Two layers with a softmax over edges, a residual and dense work between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = GATConv(8, 4, heads=2), GATConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.two(F.elu(self.one(x, edge_index)) + x, edge_index)
        return out


class Relations(nn.Module):
    """A typed layer whose relation of an edge depends on its number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = RGCNConv(8, 5, num_relations=3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv(x, edge_index, torch.arange(edge_index.shape[1]) % 3)
        return out


class Heterogeneous(nn.Module):
    """A product and a sum of neighbours for each of five relations, whose edges masks pick."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([features(8, 5, seed=k) for k in range(5)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        relation = torch.arange(edge_index.shape[1]) % 5
        out = x[:, :5]
        for k, weight in enumerate(self.weights):
            src, dst = edge_index[:, relation == k]
            out = out + (torch.zeros_like(x).index_add(0, dst, x[src]) @ weight).relu()
        return out


DEFAULT = ((Relations, "fuse"), (Relations, "together"), (Heterogeneous, "merge"))
"""The quickest; `tests/lower/test_lower.py` runs random programs without fusion."""
CASES = [
    pytest.param(make, options, id=f"{make.__name__}-{name}", marks=() if (make, name) in DEFAULT else pytest.mark.slow)
    for make in (Attention, Relations, Heterogeneous)
    for name, options in {**ALONE, "together": TOGETHER}.items()
    if not (make is Relations and name == "order")  # its kernels multiply, in the order that products need
]


@pytest.mark.parametrize(("make", "options"), CASES)
def test_a_switch_changes_no_value(make: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = make()
    compiled = graphweave.compile(model, options=options)
    for graph in SEVERAL:
        x = features(graph.num_nodes, 8)
        assert_matches(compiled, model, x, graph.edge_index, module=model, label=graph.name)


def explained(options: dict[str, Any], model: nn.Module) -> graphweave.Explanation:
    edge_index = torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(1))
    return graphweave.explain(graphweave.compile(model, options=options), features(50, 8), edge_index)


def kernels(told: graphweave.Explanation) -> int:
    return sum(len(graph.kernels) for graph in told.graphs)


def chain(x: Tensor, edge_index: Tensor) -> Tensor:
    src, dst = edge_index
    return torch.zeros_like(x).index_add(0, dst, torch.tanh(2 * x[src] + x[dst])).relu() * x


def test_without_fusion_each_operation_has_a_kernel() -> None:
    edge_index = torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(1))
    compiled = (graphweave.compile(chain, options=options) for options in ({}, {"fuse": False}))
    fused, apart = (graphweave.explain(c, features(50, 32), edge_index) for c in compiled)
    assert kernels(fused) == 1 and kernels(apart) > 3
    assert "bytes moved" in str(fused) and "bytes moved" not in str(apart)  # the cost model counts fused kernels


def test_without_merging_each_relation_has_operations_of_its_own() -> None:
    merged, apart = (explained(options, Heterogeneous()) for options in ({}, {"merge": False}))
    assert kernels(merged) < kernels(apart)


def test_without_rewriting_no_choice_is_made() -> None:
    free, none = (explained(options, Relations()).rewrites for options in ({}, {"rewrite": False}))
    assert any(report.steps for report in free) and not any(report.steps for report in none)
