"""PyG's `Batch` passed through stacks of layers that write into it, as frameworks for graph transformers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, global_mean_pool

import graphweave
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def batch(more: int) -> Any:
    generator = torch.Generator().manual_seed(more)
    graphs = []
    for nodes in (4 + more, 6, 5 + more):
        edges = torch.randint(nodes, (2, 3 * nodes), generator=generator)
        x, e = (torch.randn(n, 8, generator=generator, dtype=torch.float64) for n in (nodes, 3 * nodes))
        graphs.append(Data(x=x, edge_index=edges, edge_attr=e, y=x.sum().view(1, 1)))
    return Batch.from_data_list(graphs)


class Residual(nn.Module):
    """Writes `x`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GINEConv(nn.Linear(8, 8))

    def forward(self, batch: Any) -> Any:
        before = batch.x
        batch.x = self.conv(batch.x, batch.edge_index, batch.edge_attr).relu()
        batch.x = before + batch.x
        return batch


class Gated(nn.Module):
    """Writes `x` and `edge_attr`, and adds a field."""

    def __init__(self) -> None:
        super().__init__()
        self.of_ends, self.of_edges = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, batch: Any) -> Any:
        row, col = batch.edge_index
        h = self.of_ends(batch.x)
        gate = h[row] + h[col] + self.of_edges(batch.edge_attr)
        batch.x = batch.x + torch.zeros_like(h).index_add(0, col, gate.sigmoid() * h[row])
        batch.edge_attr = batch.edge_attr + gate.relu()
        batch["gates"] = gate.sum(1)
        return batch


class Virtual(nn.Module):
    """Adds edges and nodes where there are none, and asks for numbers of nodes and graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.node = Gated(), nn.Parameter(torch.randn(1, 8))

    def forward(self, batch: Any) -> Any:
        if not hasattr(batch, "more_edges"):
            batch.more_edges = batch.edge_index.flip(0)
        if "edge_attr" in batch and batch.edge_attr is not None:
            batch.more_attr = batch.edge_attr * 2
        h = torch.cat([batch.x, self.node.expand(batch.num_graphs, -1)])
        batch.virtual = h[batch.num_nodes :]
        batch.x = h[: batch.num_nodes] * batch.more_attr.mean()
        return self.inner(batch)


class Net(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module], copied: bool = False) -> None:
        super().__init__()
        self.layers, self.head, self.copied = nn.Sequential(layer(), layer()), nn.Linear(8, 1), copied

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        batch = self.layers(batch.clone() if self.copied else batch)
        return self.head(global_mean_pool(batch.x, batch.batch)), batch.y


CASES: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: Net(Residual), "gated": lambda: Net(Gated), "virtual": lambda: Net(Virtual),
    "copied": lambda: Net(Residual, copied=True),
}  # fmt: skip


@pytest.mark.parametrize("name", by_default(CASES, "virtual"))
def test_layers_write_into_a_batch_without_a_break(name: str) -> None:
    model = CASES[name]().double()
    compiled = graphweave.compile(model)
    for more in (0, 3):
        results = []
        for call in (model, compiled):
            model.zero_grad()
            given = batch(more)
            out, y = call(given)
            ((out - y) ** 2).sum().backward()
            fields = {key: value for key, value in given.to_dict().items() if isinstance(value, Tensor)}
            results.append((out, fields, {n: p.grad for n, p in model.named_parameters()}))
        torch.testing.assert_close(results[1], results[0])
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)
