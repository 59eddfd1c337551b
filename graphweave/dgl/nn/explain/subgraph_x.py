"""Explanations by subgraphs, found by a tree search with Shapley values (SubgraphX)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.graph.frame import NID
from graphweave.graph.transform import subgraph as node_subgraph

Nodes = dict[str, Tensor]
"""Node type -> ids, int64 in rising order; types without nodes are left out."""


@dataclass(slots=True)
class _Place:
    """A node of the search tree: a subgraph of the graph that is explained."""

    nodes: Nodes
    visits: int = 0
    total: float = 0.0
    reward: float | None = None
    children: list[_Place] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(ids.numel() for ids in self.nodes.values())


class HeteroSubgraphX(nn.Module):
    """The connected subgraph of at most `node_min` nodes with the greatest Shapley value for a prediction.

    `model(graph, feat, ...)` gives logits. A search goes down from the whole graph `num_rollouts` times: the children
    of a subgraph leave one node out, of those with the highest degrees (`high2low`; else the lowest) `num_child` at
    most, and keep the largest connected part. It goes to the child with the greatest mean reward + `coef` R sqrt(visits
    of all) / (1 + visits), R the child's Shapley value: the mean over `shapley_steps` random coalitions of nodes within
    `num_hops` - 1 hops of p(class) with the subgraph's features minus without; features of nodes that are absent are 0.
    Source: Yuan et al., "On Explainability of Graph Neural Networks via Subgraph Explorations", ICML 2021, section 3.
    Draws are from PyTorch's generator. `log` is DGL's argument and decides nothing.
    """

    def __init__(
        self, model: nn.Module, num_hops: int, coef: float = 10.0, high2low: bool = True, num_child: int = 12,
        num_rollouts: int = 20, node_min: int = 3, shapley_steps: int = 100, log: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.num_hops, self.coef, self.high2low = model, num_hops, coef, high2low
        self.num_child, self.num_rollouts, self.node_min = num_child, num_rollouts, node_min
        self.shapley_steps = shapley_steps

    def explain_graph(self, graph: DGLGraph, feat: Mapping[str, Tensor], target_class: int, **kwargs: object) -> Any:
        """Node type -> ids of the subgraph that explains `target_class`. DataError for a graph of `node_min` nodes or
        fewer."""
        if graph.num_nodes() <= self.node_min:
            raise DataError(
                f"SubgraphX: expected a graph of more than node_min={self.node_min} nodes (got {graph.num_nodes()})."
                " Pass a smaller node_min."
            )
        self.model.eval()
        search = SubgraphSearch(self, graph, dict(feat), int(target_class), lambda x: self.model(graph, x, **kwargs))
        return search.best()


class SubgraphX(HeteroSubgraphX):
    """`HeteroSubgraphX` for a graph of one node type and one relation: features are a tensor."""

    __doc__ = f"{__doc__}\n{HeteroSubgraphX.__doc__}"

    def explain_graph(self, graph: DGLGraph, feat: Any, target_class: int, **kwargs: object) -> Tensor:
        """The ids of the nodes of the subgraph that explains `target_class`, int64 [at most node_min]."""
        model, ntype = self.model, graph.ntypes[0]
        inner = HeteroSubgraphX(
            _OfTensor(model, ntype), self.num_hops, self.coef, self.high2low, self.num_child, self.num_rollouts,
            self.node_min, self.shapley_steps,
        )  # fmt: skip
        found: Tensor = inner.explain_graph(graph, {ntype: feat}, target_class, **kwargs)[ntype]
        return found


class _OfTensor(nn.Module):
    """A model of features of one type, which takes type -> features."""

    def __init__(self, model: nn.Module, ntype: str) -> None:
        super().__init__()
        self.model, self.ntype = model, ntype

    def forward(self, graph: object, feat: Mapping[str, Tensor], **kwargs: object) -> Any:
        """The model's logits."""
        return self.model(graph, feat[self.ntype], **kwargs)


class SubgraphSearch:
    """The search in one graph."""

    def __init__(self, options: HeteroSubgraphX, graph: DGLGraph, feat: Nodes, target: int, logits: Any) -> None:
        self.options, self.graph, self.feat, self.target, self.logits = options, graph, feat, target, logits
        self.known: dict[tuple[Any, ...], _Place] = {}
        self.root = self._place({t: torch.arange(graph.num_nodes(t)) for t in graph.ntypes if graph.num_nodes(t)})

    def best(self) -> Nodes:
        for _ in range(self.options.num_rollouts):
            self._rollout()
        leaves = [place for place in self.known.values() if place.size <= self.options.node_min]
        return max(leaves, key=lambda place: place.reward or 0.0).nodes

    def _rollout(self) -> None:
        place, path = self.root, list[_Place]()
        while place.size > self.options.node_min:
            children = self._children(place)
            root = sqrt(sum(child.visits for child in children))
            place = max(children, key=lambda child, root=root: self._promise(child, root))  # type: ignore[misc]
            path.append(place)
        for visited in path:
            visited.visits += 1
            visited.total += place.reward or 0.0

    def _promise(self, child: _Place, root: float) -> float:
        mean = child.total / max(child.visits, 1)
        return mean + self.options.coef * (child.reward or 0.0) * root / (1 + child.visits)

    def _children(self, place: _Place) -> list[_Place]:
        if place.children:
            return place.children
        sub = node_subgraph(self.graph, {t: place.nodes.get(t, torch.empty(0).long()) for t in self.graph.ntypes})
        counts = [sub.num_nodes(t) for t in sub.ntypes]
        first = dict(zip(sub.ntypes, torch.tensor([0, *counts]).cumsum(0).tolist(), strict=False))
        ends = [(key, sub.edges(etype=key)) for key in sub.canonical_etypes]
        src = torch.cat([first[key[0]] + u.long().cpu() for key, (u, _) in ends])
        dst = torch.cat([first[key[2]] + v.long().cpu() for key, (_, v) in ends])
        degrees = torch.bincount(torch.cat([src, dst]), minlength=sum(counts))
        count = min(self.options.num_child, sum(counts))
        found: dict[int, _Place] = {}
        for node in torch.topk(degrees, count, largest=self.options.high2low).indices.tolist():
            kept = _largest_part(src, dst, sum(counts), node)
            nodes = {}
            for t in sub.ntypes:
                rows = kept[(kept >= first[t]) & (kept < first[t] + sub.num_nodes(t))] - first[t]
                if rows.numel():
                    nodes[t] = sub.nodes[t].data[NID].long().cpu()[rows].sort().values
            child = self._place(nodes)
            found[id(child)] = child
        place.children = list(found.values())
        for child in place.children:
            if child.reward is None:
                child.reward = self._shapley(child.nodes)
        return place.children

    def _place(self, nodes: Nodes) -> _Place:
        key = tuple((t, *ids.tolist()) for t, ids in sorted(nodes.items()))
        return self.known.setdefault(key, _Place(nodes))

    def _shapley(self, nodes: Nodes) -> float:
        inside = {t: torch.zeros(self.graph.num_nodes(t), dtype=torch.bool) for t in self.graph.ntypes}
        for t, ids in nodes.items():
            inside[t][ids] = True
        near = {t: mask.clone() for t, mask in inside.items()}
        for _ in range(self.options.num_hops - 1):
            before = {t: mask.clone() for t, mask in near.items()}
            for key in self.graph.canonical_etypes:
                u, v = (x.long().cpu() for x in self.graph.edges(etype=key))
                near[key[0]][u[before[key[2]][v]]] = True
                near[key[2]][v[before[key[0]][u]]] = True
        players = {t: (near[t] & ~inside[t]).nonzero().squeeze(1) for t in near}
        count = sum(ids.numel() for ids in players.values())
        gains = [self._gain(inside, near, players, count) for _ in range(self.options.shapley_steps)]
        return torch.cat(gains).mean().item()

    def _gain(self, inside: Mapping[str, Tensor], near: Mapping[str, Tensor], players: Nodes, count: int) -> Tensor:
        """p(class) with the subgraph minus p(class) without it, for one random coalition of the other players."""
        order = torch.randperm(count + 1)
        joined = torch.zeros(count + 1, dtype=torch.bool)
        joined[order[: int((order == count).nonzero())]] = True
        parts = joined[:count].split([players[t].numel() for t in near])
        without = {}
        for t, part in zip(near, parts, strict=True):
            without[t] = ~near[t]
            without[t][players[t][part]] = True
        return self._likely({t: without[t] | inside[t] for t in near}) - self._likely(without)

    def _likely(self, present: Mapping[str, Tensor]) -> Tensor:
        masked = {t: x * present[t].to(x.device, x.dtype).unsqueeze(1) for t, x in self.feat.items()}
        with torch.no_grad():
            found: Tensor = self.logits(masked).softmax(-1)[:, self.target]
        return found


def _largest_part(src: Tensor, dst: Tensor, count: int, without: int) -> Tensor:
    """The nodes of the largest weakly connected part of a graph without one of its nodes, in rising order."""
    from scipy.sparse import coo_array  # SciPy takes long to load
    from scipy.sparse.csgraph import connected_components

    kept = (src != without) & (dst != without)
    ones, ends = torch.ones(int(kept.sum())).numpy(), (src[kept].numpy(), dst[kept].numpy())
    parts = connected_components(coo_array((ones, ends), shape=(count, count)), directed=False)[1]
    labels = torch.from_numpy(parts).long()
    labels[without] = -1
    sizes = torch.bincount(labels[labels >= 0], minlength=count)
    return (labels == sizes.argmax()).nonzero().squeeze(1)
