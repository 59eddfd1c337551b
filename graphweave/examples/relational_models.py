"""Two-layer relational models made of layers of `graphweave.nn`, which encode nodes, classify them, or score links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.examples.training import TrainingJob
from graphweave.graph.build import graph
from graphweave.graph.graph import Graph
from graphweave.nn import DistMult, HGTConv, RelGraphConv, RGATConv, RotatE

RELATIONAL_MODELS = ("rgcn", "rgat", "hgt")
DECODERS = ("distmult", "rotate")

_NUM_BASES = 30
"""If there are more relations than this, their weights are sums of this many bases, so that there are fewer weights to
learn."""


@dataclass(frozen=True, slots=True, eq=False)
class RelationalEdges:
    """The inputs of the layers other than features, for E edges and N nodes.

    `etype` [E], `ntype` [N] int64. `norm` [E] float32 is 1 / number of edges of the same relation into the same
    destination, the 1 / c_ir of R-GCN.
    """

    graph: Graph
    etype: Tensor
    ntype: Tensor
    norm: Tensor

    @staticmethod
    def of(edge_index: Tensor, etype: Tensor, ntype: Tensor) -> RelationalEdges:
        """From `edge_index` [2, E], `etype` [E] and `ntype` [N], all int64."""
        key = edge_index[1] * (int(etype.max()) + 1 if etype.numel() else 1) + etype
        _, pair, counts = torch.unique(key, return_inverse=True, return_counts=True)
        return RelationalEdges(graph(edge_index, num_nodes=ntype.numel()), etype, ntype, 1 / counts[pair].float())

    def only(self, keep: Tensor) -> RelationalEdges:
        """The edges where `keep` [E] bool is true, with the norms they had."""
        src, dst = self.graph.edges()
        some = graph((src[keep], dst[keep]), num_nodes=self.ntype.numel())
        return RelationalEdges(some, self.etype[keep], self.ntype, self.norm[keep])

    def first(self, count: int) -> RelationalEdges:
        keep = torch.zeros_like(self.etype, dtype=torch.bool)
        keep[:count] = True
        return self.only(keep)


class Encoder(nn.Module):
    """Nodes [N, hidden] and edges -> [N, out]: layer, ReLU, dropout, layer. The first layer has `job.heads` heads, the
    second one."""

    def __init__(self, job: TrainingJob, out: int, num_rels: int, num_ntypes: int) -> None:
        super().__init__()
        if job.model != "rgcn":
            job.check_heads()
        self.first = _layer(job.model, job.hidden, job.hidden, job.heads, num_rels, num_ntypes)
        self.second = _layer(job.model, job.hidden, out, 1, num_rels, num_ntypes)
        self.dropout = job.dropout

    def forward(self, x: Tensor, g: Graph, etype: Tensor, ntype: Tensor, norm: Tensor) -> Tensor:
        x = F.relu(_called(self.first, x, g, etype, ntype, norm))
        x = F.dropout(x, self.dropout, self.training)
        return _called(self.second, x, g, etype, ntype, norm)


def _layer(model: str, in_size: int, out: int, heads: int, num_rels: int, num_ntypes: int) -> nn.Module:
    """A layer of `out` features, those of all heads together."""
    tied = {"regularizer": "basis", "num_bases": _NUM_BASES} if num_rels > _NUM_BASES else {}
    match model:
        case "rgcn":
            return RelGraphConv(in_size, out, num_rels, **tied)  # type: ignore[arg-type]
        case "rgat":
            return RGATConv(in_size, out // heads, num_rels, heads, residual=True, **tied)  # type: ignore[arg-type]
        case _:
            return HGTConv(in_size, out // heads, heads, num_ntypes, num_rels, dropout=0.0, activation=F.gelu)


def _called(layer: nn.Module, x: Tensor, g: Graph, etype: Tensor, ntype: Tensor, norm: Tensor) -> Tensor:
    if isinstance(layer, RelGraphConv):
        out: Tensor = layer(g, x, etype, norm)
    elif isinstance(layer, RGATConv):
        out = layer(g, x, etype).flatten(1)
    else:
        out = layer(g, x, ntype, etype)
    return out


class Classifier(nn.Module):
    """Features of each node type and edges -> logits [N, classes].

    Each type has a linear map of its features to `hidden` numbers; each node of a type without features has an
    embedding. A layer norm follows, because the features of some types are thousandths, and those of others are counts.
    """

    def __init__(
        self, job: TrainingJob, widths: Sequence[int | None], counts: Sequence[int], classes: int, num_rels: int
    ) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(
            nn.Embedding(count, job.hidden) if width is None else nn.Linear(width, job.hidden)
            for width, count in zip(widths, counts, strict=True)
        )
        self.encoder = Encoder(job, classes, num_rels, len(counts))

    def forward(
        self, features: Sequence[Tensor | None], g: Graph, etype: Tensor, ntype: Tensor, norm: Tensor
    ) -> Tensor:
        parts = [
            part.weight if isinstance(part, nn.Embedding) else part(x)
            for part, x in zip(self.inputs, features, strict=True)
        ]
        x = F.layer_norm(torch.cat(parts), (parts[0].size(1),))
        x = F.dropout(x, self.encoder.dropout, self.training)
        out: Tensor = self.encoder(x, g, etype, ntype, norm)
        return out


class LinkEncoder(nn.Module):
    """Edges -> nodes [N, hidden]: the sum of an embedding of each node and the encoder's result for it.

    Without the sum, an encoder may stop learning because every unit is below 0 for all nodes (seen with 14 nodes).
    """

    def __init__(self, job: TrainingJob, num_nodes: int, num_rels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_nodes, job.hidden)
        nn.init.xavier_uniform_(self.embedding.weight)
        self.encoder = Encoder(job, job.hidden, num_rels, 1)

    def forward(self, g: Graph, etype: Tensor, ntype: Tensor, norm: Tensor) -> Tensor:
        x = self.embedding.weight
        out: Tensor = x + self.encoder(x, g, etype, ntype, norm)
        return out


def decoder(name: str, num_rels: int, hidden: int) -> DistMult | RotatE:
    """The module that scores triples by the embeddings of their ends. `num_rels` counts inverses."""
    if name == "rotate":
        if hidden % 2:
            raise DataError(
                f"hidden must be even for rotate, real and imaginary parts (got {hidden}). Choose another width."
            )
        return RotatE(num_rels, hidden)
    return DistMult(num_rels, hidden)
