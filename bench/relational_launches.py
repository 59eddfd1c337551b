"""The number of kernels that one step of PyG's HeteroConv calls, compiled by graphweave.

HeteroConv has one SAGEConv (means, no root weight, 64 wide) for each relation between two node types of 200 nodes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from bench.relational_graphs import FEATURES

NODES, EDGES = 200, 600
"""Nodes of a type, edges of a relation."""


class Summed(nn.Module):
    """A scalar of all outputs, so that the backward is one call."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        return torch.stack([value.square().mean() for value in self.layer(x, edges).values()]).sum()


def count(relations: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    types = [("a", f"r{r}", "b") if r % 2 else ("b", f"r{r}", "a") for r in range(relations)]
    convs = {one: pyg.SAGEConv((FEATURES, FEATURES), FEATURES, root_weight=False, bias=False) for one in types}
    layer = pyg.HeteroConv(convs, aggr="sum")
    x = {name: torch.randn(NODES, FEATURES, generator=generator) for name in ("a", "b")}
    edges = {one: torch.randint(NODES, (2, EDGES), generator=generator) for one in types}
    infer, train = graphweave.compile(layer), graphweave.compile(Summed(layer))

    def step() -> None:
        train(x, edges).backward()

    def forward() -> None:
        with torch.no_grad():
            infer(x, edges)

    answer: dict[str, Any] = {"status": "ok"}
    for mode, call in (("infer", forward), ("train", step)):
        for _ in range(2):
            call()
        graphweave.reset_counters()
        call()
        counts = graphweave.counters()
        answer[mode] = counts["kernel_launches"]
        answer[f"{mode}_counters"] = {name: n for name, n in counts.items() if n}
    return answer
