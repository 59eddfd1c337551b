"""Explanations by a network that weighs edges (PGExplainer)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.dgl.batch import batch
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import khop_in_subgraph
from graphweave.graph.frame import ETYPE, NID
from graphweave.graph.hetero import to_homogeneous
from graphweave.graph.relation import CanonicalEtype

ByType: TypeAlias = Any
"""A tensor, or in a graph of several types a tensor for each: type of nodes, or relation -> tensor."""

_HIDDEN = 64
_LEAST = 1e-6
_SCALE = 0.99


class PGExplainer(nn.Module):
    """A network of two layers that gives each edge a weight, from the model's embeddings of both ends (and of the node
    that is explained). It is trained once, and explains any graph.

    `model` is called as `model(graph, feat, embed=True)` for embeddings of nodes [N, `num_features`], and as
    `model(graph, feat, edge_weight=)` for logits. `explain_graph`: whether graphs are explained, or nodes within
    `num_hops` hops. In training, an edge's weight is sigmoid((log u - log(1 - u) + w) / temperature), u uniform on
    (`sample_bias`, 1 - `sample_bias`), averaged with that of its reverse: each edge needs one. The loss is -log
    p(prediction) + `coff_budget` relu(sum of weights - `coff_budget`) + `coff_connect` mean H(weight). Source: Luo et
    al., "Parameterized Explainer for Graph Neural Network", NeurIPS 2020, sections 4.2 and 4.3. DGL 2.1 leaves the
    gradient of the first term out; here it is there, as in the paper.
    """

    def __init__(
        self, model: nn.Module, num_features: int, num_hops: int | None = None, explain_graph: bool = True,
        coff_budget: float = 0.01, coff_connect: float = 5e-4, sample_bias: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.num_hops, self.graph_explanation = model, num_hops, explain_graph
        self.num_features = num_features * (2 if explain_graph else 3)
        self.coff_budget, self.coff_connect, self.sample_bias = coff_budget, coff_connect, sample_bias
        self.elayers = nn.Sequential(nn.Linear(self.num_features, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Those of the network that weighs edges: the model is not trained."""
        return self.elayers.parameters(recurse)

    def train_step(self, graph: DGLGraph, feat: object, temperature: float, **kwargs: object) -> Tensor:
        """The loss of a graph, or of a batch of graphs; the caller does the backward pass."""
        self._expect(graphs=True, graph=graph)
        predicted = self.model(graph, feat, embed=False, **kwargs).argmax(-1).detach()
        values, mask = self._weights(graph, self._ends(graph, feat, kwargs), temperature, training=True)
        logits = self.model(graph, feat, edge_weight=self._of_relations(graph, mask), **kwargs)
        return self._loss(logits, predicted, values, mask)

    def train_step_node(
        self, nodes: object, graph: DGLGraph, feat: ByType, temperature: float, **kwargs: object
    ) -> Tensor:
        """The loss of `nodes`, ids, or type -> ids; the caller does the backward pass."""
        self._expect(graphs=False, graph=graph)
        sub, ends, rows = self._around(nodes, graph, feat, kwargs)
        feats = self._feats(sub)
        predicted = self._rows(self.model(sub, feats, embed=False, **kwargs), rows).argmax(-1).detach()
        values, mask = self._weights(sub, ends, temperature, training=True)
        logits = self.model(sub, feats, edge_weight=self._of_relations(sub, mask), **kwargs)
        return self._loss(self._rows(logits, rows), predicted, values, mask)

    def explain_graph(
        self, graph: DGLGraph, feat: object, temperature: float = 1.0, training: bool = False, **kwargs: object
    ) -> tuple[Tensor, ByType]:
        """(probabilities of classes with the weights, the weights [E]). `training`: weights are drawn as there."""
        self._expect(graphs=True, graph=graph)
        _, mask = self._weights(graph, self._ends(graph, feat, kwargs), temperature, training)
        weights = self._of_relations(graph, mask)
        return self.model(graph, feat, edge_weight=weights, **kwargs).softmax(-1), weights

    def explain_node(
        self,
        nodes: object,
        graph: DGLGraph,
        feat: ByType,
        temperature: float = 1.0,
        training: bool = False,
        **kwargs: object,
    ) -> tuple[ByType, ByType, DGLGraph, ByType]:
        """(probabilities, weights of edges [E], the batched subgraphs around `nodes`, the numbers of `nodes` there)."""
        self._expect(graphs=False, graph=graph)
        sub, ends, rows = self._around(nodes, graph, feat, kwargs)
        _, mask = self._weights(sub, ends, temperature, training)
        weights = self._of_relations(sub, mask)
        logits = self.model(sub, self._feats(sub), edge_weight=weights, **kwargs)
        several = isinstance(logits, Mapping)
        return ({t: x.softmax(-1) for t, x in logits.items()} if several else logits.softmax(-1)), weights, sub, rows

    def _expect(self, *, graphs: bool, graph: DGLGraph) -> None:
        if graphs != self.graph_explanation:
            raise DataError(
                f"expected an explainer with explain_graph={graphs} (got explain_graph={self.graph_explanation})."
                " Make one with that argument."
            )
        if not graphs and self.num_hops is None:
            raise DataError("num_hops: expected a number for explanations of nodes (got None). Pass num_hops=.")
        self.model, self.elayers = self.model.to(graph.device), self.elayers.to(graph.device)

    def _loss(self, logits: Tensor, predicted: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        likely = logits.softmax(-1).gather(-1, predicted.unsqueeze(-1)) + _LEAST
        size = values.sum() if self.coff_budget <= 0 else torch.relu(values.sum() - self.coff_budget)
        p = mask * (2 * _SCALE - 1) + (1 - _SCALE)
        entropy = -p * torch.log(p) - (1 - p) * torch.log(1 - p)
        return -torch.log(likely).mean() + self.coff_budget * size + self.coff_connect * entropy.mean()

    def _weights(self, graph: DGLGraph, ends: Tensor, temperature: float, training: bool) -> tuple[Tensor, Tensor]:
        """The weight of each edge of the homogeneous graph, [E], by itself and averaged with its reverse's."""
        w = self.elayers(ends).reshape(-1)
        if training:
            u = self.sample_bias + (1 - 2 * self.sample_bias) * torch.rand(w.shape).to(w.device)
            w = (torch.log(u) - torch.log(1 - u) + w) / temperature
        values = torch.sigmoid(w)
        whole = self._homogeneous(graph)
        src, dst = whole.edges()
        return values, (values + values[whole.edge_ids(dst, src).long()]) / 2

    def _ends(
        self, graph: DGLGraph, feat: object, kwargs: Mapping[str, object], center: tuple[str, int] | None = None
    ) -> Tensor:
        """The inputs of the network: embeddings of both ends of each edge, and of the node `center`."""
        with torch.no_grad():
            embedded = self.model(graph, feat, embed=True, **kwargs)
        whole, rows = self._embedded(graph, embedded)
        src, dst = (x.long() for x in whole.edges())
        parts = [rows[src], rows[dst]]
        if center is not None:
            parts.append(rows[self._row(graph, *center)].expand(len(src), -1))
        return torch.cat(parts, dim=-1)

    def _around(
        self, nodes: object, graph: DGLGraph, feat: ByType, kwargs: Mapping[str, object]
    ) -> tuple[DGLGraph, Tensor, ByType]:
        """The batched subgraphs around nodes, the inputs of the network for their edges, and the nodes' numbers."""
        subgraphs, ends = [], []
        for ntype, node in _each(nodes, graph):
            sub, inverse = khop_in_subgraph(graph, {ntype: node}, self.num_hops or 0)
            row = int(inverse[ntype].reshape(-1)[0])
            for t in sub.ntypes:
                data = sub.nodes[t].data
                data["feat"] = _of_type(feat, t)[data[NID].long()]
                data["train"] = torch.zeros(sub.num_nodes(t), dtype=torch.bool, device=sub.device)
            sub.nodes[ntype].data["train"][row] = True
            subgraphs.append(sub)
            ends.append(self._ends(sub, self._feats(sub), kwargs, (ntype, row)))
        joined = batch(subgraphs)
        return joined, self._in_order(subgraphs, ends), self._explained(joined)

    # ------------------------------------------------ what differs for graphs of several types

    def _feats(self, graph: DGLGraph) -> ByType:
        return graph.ndata["feat"]

    def _explained(self, graph: DGLGraph) -> ByType:
        return graph.ndata["train"].nonzero().squeeze(1)

    def _rows(self, logits: Tensor, rows: Tensor) -> Tensor:
        out: Tensor = logits[rows]
        return out

    def _homogeneous(self, graph: DGLGraph) -> DGLGraph:
        return graph

    def _embedded(self, graph: DGLGraph, embedded: Tensor) -> tuple[DGLGraph, Tensor]:
        return graph, embedded

    def _row(self, graph: DGLGraph, ntype: str, row: int) -> int:
        return row

    def _in_order(self, graphs: list[DGLGraph], ends: list[Tensor]) -> Tensor:
        return torch.cat(ends)

    def _of_relations(self, graph: DGLGraph, mask: Tensor) -> ByType:
        return mask


class HeteroPGExplainer(PGExplainer):
    """`PGExplainer` for graphs of several types: features, embeddings and logits of nodes are type -> tensor, and
    weights relation -> tensor. Each edge needs a reverse, in whatever relation."""

    def _feats(self, graph: DGLGraph) -> dict[str, Tensor]:
        return {t: graph.nodes[t].data["feat"] for t in graph.ntypes}

    def _explained(self, graph: DGLGraph) -> dict[str, Tensor]:
        return {t: graph.nodes[t].data["train"].nonzero().squeeze(1) for t in graph.ntypes}

    def _rows(self, logits: ByType, rows: ByType) -> Tensor:
        return torch.cat([logits[t][at] for t, at in rows.items() if t in logits])

    def _homogeneous(self, graph: DGLGraph) -> DGLGraph:
        return to_homogeneous(graph)

    def _embedded(self, graph: DGLGraph, embedded: ByType) -> tuple[DGLGraph, Tensor]:
        return to_homogeneous(graph), torch.cat([embedded[t] for t in graph.ntypes])

    def _row(self, graph: DGLGraph, ntype: str, row: int) -> int:
        before = graph.ntypes[: graph.ntypes.index(ntype)]
        return row + sum(graph.num_nodes(t) for t in before)

    def _in_order(self, graphs: list[DGLGraph], ends: list[Tensor]) -> Tensor:
        """Rows in the order of the batch's edges, relation by relation and then graph by graph."""
        keys = graphs[0].canonical_etypes
        parts = [x.split([g.num_edges(key) for key in keys]) for g, x in zip(graphs, ends, strict=True)]
        return torch.cat([part[i] for i in range(len(keys)) for part in parts])

    def _of_relations(self, graph: DGLGraph, mask: Tensor) -> dict[CanonicalEtype, Tensor]:
        kinds = to_homogeneous(graph).edata[ETYPE]
        return {key: mask[kinds == graph.get_etype_id(key)] for key in graph.canonical_etypes}


def _each(nodes: object, graph: DGLGraph) -> Iterator[tuple[str, int]]:
    given = nodes if isinstance(nodes, Mapping) else {graph.ntypes[0]: nodes}
    for ntype, ids in given.items():
        yield from ((ntype, node) for node in torch.as_tensor(ids).reshape(-1).tolist())


def _of_type(feat: Tensor, ntype: str) -> Tensor:
    out: Tensor = feat[ntype] if isinstance(feat, Mapping) else feat
    return out
