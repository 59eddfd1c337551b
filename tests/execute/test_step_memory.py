"""The bytes that a step is predicted to hold, kernel by kernel, and what it does hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.execute import step_memory
from graphweave.runtime.peak_memory import peak_extra_bytes
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def _layers(kind: str, width: int) -> Iterator[nn.Module]:
    for _ in range(2):
        match kind:
            case "gcn":
                yield pyg.GCNConv(width, width)
            case "gat":
                yield pyg.GATConv(width, width // 4, heads=4)
            case "sage":
                yield pyg.SAGEConv(width, width)
            case _:
                mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
                yield pyg.GINConv(mlp)


class Layers(nn.Module):
    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = _layers(kind, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index).square().mean()


def _explained(options: dict[str, Any], kind: str = "gcn", width: int = 16) -> Any:
    compiled = graphweave.compile(Layers(kind, width), options=options)
    return graphweave.explain(compiled, features(300, width), random_graph(300, 300, 1200))


def test_kernels_that_run_one_by_one_free_values_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    together = [note for graph in _explained({}).graphs for note in graph.memory]
    monkeypatch.setattr(step_memory, "MAX_BYTES", 0)
    alone = [note for graph in _explained({}).graphs for note in graph.memory]
    assert any(", " in note.step for note in together) and not any(", " in note.step for note in alone)
    assert [n.after for n in alone if n.step == "end"] == [n.after for n in together if n.step == "end"]
    assert max(n.during for n in alone) < max(n.during for n in together)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"recompute": "always"}, {"chunks": True}], ids=str)
@pytest.mark.parametrize("kind", ["gcn", "gat", "sage", "gin"])
def test_a_step_takes_what_is_predicted(kind: str, options: dict[str, Any]) -> None:
    """Within a quarter, on a graph that is new in the measured step. Allocators keep some memory of earlier tests and
    calls, which counts for more here than on the larger graphs of docs/switches.md."""
    nodes, edges, width = 60_000, 400_000, 64
    model, x = Layers(kind, width), features(nodes, width)
    graphs = [random_graph(nodes, nodes, edges, seed=i) for i in (0, 1)]
    limited = graphweave.compile(model, options={**options, "memory": "100G"})
    (budget,) = graphweave.explain(limited, x, graphs[0]).budgets
    compiled = graphweave.compile(model, options=options)

    def step(edge_index: Tensor) -> None:
        compiled(x, edge_index).backward()

    step(graphs[0])
    taken = peak_extra_bytes(lambda: step(graphs[1]))
    if taken is None:
        pytest.skip("this system does not tell the memory of a process")
    assert 0.75 * taken < budget.peak < 1.25 * taken
