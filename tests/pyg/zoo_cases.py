"""Every zoo case by name, and how to build one."""

from __future__ import annotations

import torch

from tests.pyg.zoo_convs import CONVS
from tests.pyg.zoo_graphs import Built, Make
from tests.pyg.zoo_models import MODELS, NOT_HERE

CASES: dict[str, Make] = {**CONVS, **{f"models.{name}": make for name, make in MODELS.items()}}
"""Case name -> builder; models of `torch_geometric.nn.models` have the prefix `models.`."""

SMALL = (
    "GCNConv", "SAGEConv-max", "GATConv-heads", "GATv2Conv-edge", "GINConv", "EdgeConv", "RGCNConv", "HeteroConv",
    "models.GraphSAGE", "models.GAE",
)  # fmt: skip
"""The cases of the default test run; the marker `zoo` runs all cases."""

__all__ = ["CASES", "NOT_HERE", "SMALL", "build"]


def build(name: str, seed: int = 0) -> Built:
    """The module and inputs of a case, drawn from `seed`."""
    torch.manual_seed(seed)
    return CASES[name]()
