"""Two-layer models of PyG's unmodified convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.core.errors import GraphweaveError
from graphweave.examples.training import TrainingJob

Conv: TypeAlias = Callable[[int, int, int], nn.Module]
"""in features, out features, heads -> a module called as conv(x, edge_index)."""


class TwoLayer(nn.Module):
    """`x` [N, F], `edge_index` [2, E] -> logits [N, classes]: convolution, ReLU, dropout, convolution. The second
    convolution takes the edges `last`, if they are given. `weight` [E] and `last_weight` are weights of the edges of
    both, for convolutions that take such."""

    def __init__(self, first: nn.Module, second: nn.Module, dropout: float) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.dropout = dropout

    def forward(
        self, x: Tensor, edge_index: Tensor, last: Tensor | None = None, weight: Tensor | None = None,
        last_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        first = () if weight is None else (weight,)
        second = first if last_weight is None else (last_weight,)
        hidden = F.relu(self.first(x, edge_index, *first))
        hidden = F.dropout(hidden, self.dropout, self.training)
        return self.second(hidden, edge_index if last is None else last, *second)


def _mlp(features: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, out))


def convolutions(job: TrainingJob, *, given_norms: bool = False) -> dict[str, Conv]:
    """The models by name. The inner width of those with an MLP is `job.hidden`. With `given_norms`, those in `NORMED`
    take the norms of edges as weights, instead of counting the edges of the graph at hand. GraphweaveError if PyG is
    missing. DataError if `job.model` has heads, and these do not divide the width."""
    hidden = job.hidden
    if job.model in _WITH_HEADS:
        job.check_heads()
    try:
        # Imported here, since PyG is an optional dependency and takes seconds to load.
        import torch_geometric.nn as pyg
    except ImportError as error:
        raise GraphweaveError("torch_geometric is missing. Run: pip install 'graphweave[pyg]'") from error

    return {
        "gcn": lambda i, o, heads: pyg.GCNConv(i, o, normalize=not given_norms),
        "sage": lambda i, o, heads: pyg.SAGEConv(i, o),
        "gat": lambda i, o, heads: pyg.GATConv(i, o // heads, heads),
        "gatv2": lambda i, o, heads: pyg.GATv2Conv(i, o // heads, heads),
        "gin": lambda i, o, heads: pyg.GINConv(_mlp(i, hidden, o)),
        "edgeconv": lambda i, o, heads: pyg.EdgeConv(_mlp(2 * i, hidden, o)),
    }


MODELS = ("gcn", "sage", "gat", "gatv2", "gin", "edgeconv")
NORMED = frozenset({"gcn"})
"""Models whose convolutions divide what an edge carries by the degrees of its ends."""
_WITH_HEADS = frozenset({"gat", "gatv2"})


def build(job: TrainingJob, features: int, out: int, *, given_norms: bool = False) -> TwoLayer:
    """The model `job.model`; `given_norms` is that of `convolutions`. Parameters come from torch's global generator."""
    conv = convolutions(job, given_norms=given_norms)[job.model]
    return TwoLayer(conv(features, job.hidden, job.heads), conv(job.hidden, out, 1), job.dropout)
