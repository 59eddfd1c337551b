"""Explanations by trained masks of edges and features (GNNExplainer)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import sqrt
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import khop_in_subgraph
from graphweave.graph.frame import EID, NID
from graphweave.graph.relation import CanonicalEtype

_TINY = 1e-15
_FEAT_STD = 0.1

K = TypeVar("K")

EdgeMask = tuple[int, float, torch.device]
"""The number of edges that a mask is for, the deviation of its first values, and its device."""


class _Masks(nn.Module):
    """The parts that the two explainers share: the masks' first values, their loss, and their training.

    `model` is called as `model(graph=, feat=, eweight=, ...)` and returns logits [N, classes], or node type -> logits.
    The masks, sigmoid(M) for edges and sigmoid(F) for features, minimise -log p(prediction) + `alpha1` sum sigmoid(M) +
    `alpha2` mean H(sigmoid(M)) + `beta1` mean sigmoid(F) + `beta2` mean H(sigmoid(F)), H the entropy of a coin, by
    `num_epochs` steps of Adam with the rate `lr`. Source: Ying et al., "GNNExplainer: Generating Explanations for Graph
    Neural Networks", NeurIPS 2019, section 4. `log` is DGL's argument and decides nothing.
    """

    def __init__(
        self, model: nn.Module, num_hops: int, lr: float = 0.01, num_epochs: int = 100, *, alpha1: float = 0.005,
        alpha2: float = 1.0, beta1: float = 1.0, beta2: float = 0.1, log: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.num_hops, self.lr, self.num_epochs = model, num_hops, lr, num_epochs
        self.alpha1, self.alpha2, self.beta1, self.beta2 = alpha1, alpha2, beta1, beta2

    def _ready(self, graph: DGLGraph) -> None:
        self.model = self.model.to(graph.device)
        self.model.eval()

    def _trained(
        self, feats: Mapping[str, Tensor], edges: Mapping[K, EdgeMask], loss: Callable[..., Tensor]
    ) -> tuple[dict[str, Tensor], dict[K, Tensor]]:
        """sigmoid of trained masks: type -> [F], and relation -> [E]. `loss`: of masks of features and of edges."""
        of_feats = {t: nn.Parameter(torch.randn(1, x.shape[1], device=x.device) * _FEAT_STD) for t, x in feats.items()}
        of_edges = {
            key: nn.Parameter(torch.randn(count, device=device) * std) for key, (count, std, device) in edges.items()
        }
        optimizer = torch.optim.Adam([*of_feats.values(), *of_edges.values()], lr=self.lr)
        for _ in range(self.num_epochs):
            optimizer.zero_grad()
            total = loss(_sigmoids(of_feats), _sigmoids(of_edges)).sum()
            total = self._regularised(total, of_edges.values(), self.alpha1, self.alpha2, torch.sum)
            total = self._regularised(total, of_feats.values(), self.beta1, self.beta2, torch.mean)
            total.backward()
            optimizer.step()
        found = _sigmoids({t: mask.detach().squeeze(0) for t, mask in of_feats.items()})
        return found, _sigmoids({key: mask.detach() for key, mask in of_edges.items()})

    @staticmethod
    def _regularised(
        loss: Tensor, masks: Iterable[Tensor], size: float, entropy: float, fold: Callable[[Tensor], Tensor]
    ) -> Tensor:
        for mask in masks:
            p = mask.sigmoid()
            coin = -p * torch.log(p + _TINY) - (1 - p) * torch.log(1 - p + _TINY)
            loss = loss + size * fold(p) + entropy * (coin.mean() if coin.numel() else coin.sum())
        return loss


class GNNExplainer(_Masks):
    """Masks of edges and features for a graph of one node type and one relation.

    >>> explainer = GNNExplainer(model, num_hops=2)
    >>> new_center, subgraph, feat_mask, edge_mask = explainer.explain_node(10, graph, feat)
    """

    __doc__ = f"{__doc__}\n{_Masks.__doc__}"

    def explain_node(
        self, node_id: object, graph: DGLGraph, feat: Tensor, **kwargs: object
    ) -> tuple[Tensor, DGLGraph, Tensor, Tensor]:
        """(number of the node in the subgraph [1], subgraph of `num_hops` hops, feature mask [F], edge mask [E]).

        `kwargs`: more arguments of the model; tensors with a row for each node or edge are cut to the subgraph.
        """
        self._ready(graph)
        sub, rows = khop_in_subgraph(graph, node_id, self.num_hops)
        nodes, edges = sub.ndata[NID].long(), sub.edata[EID].long()

        def cut(value: object) -> object:
            if not isinstance(value, Tensor) or not value.dim():
                return value
            if len(value) == graph.num_nodes():
                return value[nodes]
            return value[edges] if len(value) == graph.num_edges() else value

        kwargs = {name: cut(value) for name, value in kwargs.items()}
        feat_mask, edge_mask = self._masks(sub, feat[nodes], rows.long(), kwargs)
        return rows, sub, feat_mask, edge_mask

    def explain_graph(self, graph: DGLGraph, feat: Tensor, **kwargs: object) -> tuple[Tensor, Tensor]:
        """(feature mask [F], edge mask [E]) for the prediction of the whole graph, the first row of the logits."""
        self._ready(graph)
        return self._masks(graph, feat, torch.zeros(1, dtype=torch.long, device=feat.device), kwargs)

    def _masks(
        self, graph: DGLGraph, feat: Tensor, rows: Tensor, kwargs: Mapping[str, object]
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            predicted = self.model(graph=graph, feat=feat, **kwargs).argmax(-1)[rows]

        def loss(of_feats: Mapping[str, Tensor], of_edges: Mapping[str, Tensor]) -> Tensor:
            logits = self.model(graph=graph, feat=feat * of_feats[""], eweight=of_edges[""], **kwargs)
            return -logits.log_softmax(-1)[rows, predicted]

        std = _relu_std(2 * graph.num_nodes())
        feats, edges = self._trained({"": feat}, {"": (graph.num_edges(), std, feat.device)}, loss)
        return feats[""], edges[""]


class HeteroGNNExplainer(_Masks):
    """Masks of edges and features for each relation and each node type.

    >>> explainer = HeteroGNNExplainer(model, num_hops=1)
    >>> new_center, subgraph, feat_mask, edge_mask = explainer.explain_node("user", 0, graph, feat)
    """

    __doc__ = f"{__doc__}\n{_Masks.__doc__}"

    def explain_node(
        self, ntype: str, node_id: object, graph: DGLGraph, feat: Mapping[str, Tensor], **kwargs: object
    ) -> tuple[Tensor, DGLGraph, dict[str, Tensor], dict[CanonicalEtype, Tensor]]:
        """(number of the node in the subgraph [1], subgraph, type -> feature mask [F], relation -> edge mask [E])."""
        self._ready(graph)
        sub, inverse = khop_in_subgraph(graph, {ntype: node_id}, self.num_hops)
        rows = inverse[ntype]
        cut = {t: feat[t][sub.nodes[t].data[NID].long()] for t in sub.ntypes}
        return rows, sub, *self._masks(sub, cut, rows.long(), lambda logits: logits[ntype], kwargs)

    def explain_graph(
        self, graph: DGLGraph, feat: Mapping[str, Tensor], **kwargs: object
    ) -> tuple[dict[str, Tensor], dict[CanonicalEtype, Tensor]]:
        """(type -> feature mask [F], relation -> edge mask [E]) for the first row of the logits."""
        self._ready(graph)
        rows = torch.zeros(1, dtype=torch.long, device=graph.device)
        return self._masks(graph, feat, rows, lambda logits: logits, kwargs)

    def _masks(
        self,
        graph: DGLGraph,
        feat: Mapping[str, Tensor],
        rows: Tensor,
        of: Callable[[Any], Tensor],
        kwargs: dict[str, object],
    ) -> tuple[dict[str, Tensor], dict[CanonicalEtype, Tensor]]:
        with torch.no_grad():
            predicted = of(self.model(graph=graph, feat=feat, **kwargs)).argmax(-1)[rows]

        def loss(of_feats: Mapping[str, Tensor], of_edges: Mapping[object, Tensor]) -> Tensor:
            masked = {t: x * of_feats[t] for t, x in feat.items()}
            logits = of(self.model(graph=graph, feat=masked, eweight=of_edges, **kwargs))
            return -logits.log_softmax(-1)[rows, predicted]

        edges = {
            key: (
                graph.num_edges(key), _relu_std(graph.num_nodes(key[0]) + graph.num_nodes(key[2])), graph.device,
            )
            for key in graph.canonical_etypes
        }  # fmt: skip
        return self._trained(feat, edges, loss)


def _sigmoids(masks: Mapping[K, Tensor]) -> dict[K, Tensor]:
    return {key: mask.sigmoid() for key, mask in masks.items()}


def _relu_std(ends: int) -> float:
    return nn.init.calculate_gain("relu") * sqrt(2 / max(ends, 1))
