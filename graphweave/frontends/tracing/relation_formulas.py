"""Formulas for PyG's layers over dictionaries of relations, in traces with all keys of dictionaries that calls give in
part. Each says where the layer leaves out what is not given: what it computes for a relation without edges need not be
zero, for a bias alone or for the root's weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Relation = tuple[str, str, str]
Given = dict[str | Relation, Any]
"""The arguments of types of nodes and of relations."""

_FILLED = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf}
"""For each way to put results of relations together, the number that changes nothing."""


def _hetero_conv(self: Any, *args_dict: Given, **kwargs_dict: Given) -> dict[str, Tensor]:
    """HeteroConv: a layer for each relation that has an argument of its own, and what a type gets put together."""
    found: dict[str, list[tuple[Tensor, list[Tensor]]]] = {}
    for relation, conv in self.convs.items():
        witnesses = [v[relation] for v in (*args_dict, *kwargs_dict.values()) if relation in v]
        if not witnesses:
            continue
        args = [v for given in args_dict for v in _arguments_for(relation, given)]
        named = {
            name.removesuffix("_dict"): v
            for name, given in kwargs_dict.items()
            for v in _arguments_for(relation, given)
        }
        found.setdefault(relation[2], []).append((conv(*args, **named), witnesses))
    return {of_type: _together(parts, self.aggr) for of_type, parts in found.items()}


def _arguments_for(relation: Relation, given: Given) -> Iterable[object]:
    """The values in a dictionary for a relation: at most one argument, which is a pair for two types of nodes."""
    src, _, dst = relation
    if relation in given:
        return [given[relation]]
    if src == dst:
        return [given[src]] if src in given else []
    return [(given.get(src), given.get(dst))] if src in given or dst in given else []


def _together(parts: list[tuple[Tensor, list[Tensor]]], aggr: str | None) -> Tensor:
    """The results of one type of nodes, each with the arguments that it needs, put together where these are given."""
    ops: Any = torch.ops.graphweave
    if len(parts) == 1:
        ((out, witnesses),) = parts
        only: Tensor = ops.existing_with.default(out.unsqueeze(1) if aggr is None else out, witnesses[0])
        return only
    if aggr not in _FILLED:
        raise NotImplementedError(f"what HeteroConv(aggr={aggr!r}) returns has another width for other relations")
    stacked = torch.stack([ops.where_given.default(out, given, _FILLED[aggr]) for out, given in parts])
    out = stacked.sum(dim=0) if aggr in ("sum", "mean") else getattr(stacked, aggr)(dim=0).values
    if aggr != "sum":
        one = out.new_ones(())
        count = torch.stack([ops.where_given.default(one, given, 0.0) for _, given in parts]).sum()
        # without any relation there is no result, but infinite rows would make the gradients of weights NaN
        out = out / count.clamp(min=1) if aggr == "mean" else torch.where(count > 0, out, 0.0)
    exists: Tensor = ops.given_with_any.default(out, [witness for _, given in parts for witness in given])
    return exists


def _hgt_conv(
    self: Any, x_dict: dict[str, Tensor], edge_index_dict: dict[Relation, Tensor]
) -> dict[str, Tensor | None]:
    """HGTConv, which puts the edges of all relations into one list: a relation without edges adds nothing to it. It has
    a result for each type whose features are given."""
    from torch_geometric.nn.conv import HGTConv  # optional, but already imported if this is called

    out = HGTConv.forward(self, x_dict, edge_index_dict)
    ops: Any = torch.ops.graphweave
    return {kind: None if x is None else ops.existing_with.default(x, x_dict[kind]) for kind, x in out.items()}


def _han_conv(
    self: Any, x_dict: dict[str, Tensor], edge_index_dict: dict[Relation, Tensor],
    return_semantic_attention_weights: bool = False,
) -> object:  # fmt: skip
    """HANConv: attention over the edges of each relation, and over the relations to a type. It has a result for each
    type whose features are given, which is None if no relation leads to it."""
    ops: Any = torch.ops.graphweave
    if return_semantic_attention_weights:  # as many weights of a type as relations to it, so that all must be given
        from torch_geometric.nn.conv import HANConv  # optional, but already imported if this is called

        x_dict = {kind: ops.existing.default(x) for kind, x in x_dict.items()}
        edge_index_dict = {relation: ops.existing.default(edges) for relation, edges in edge_index_dict.items()}
        return HANConv.forward(self, x_dict, edge_index_dict, True)
    channels = self.out_channels
    projected = {kind: self.proj[kind](x).view(-1, self.heads, channels // self.heads) for kind, x in x_dict.items()}
    found: dict[str, list[tuple[Tensor, Tensor]]] = {kind: [] for kind in x_dict}
    for (src, name, dst), edges in edge_index_dict.items():
        relation, x = f"{src}__{name}__{dst}", (projected[src], projected[dst])
        alpha = ((x[0] * self.lin_src[relation]).sum(-1), (x[1] * self.lin_dst[relation]).sum(-1))
        found[dst].append((self.propagate(edges, x=x, alpha=alpha).relu(), edges))
    out = {}
    for kind, x_of_kind in x_dict.items():
        parts = found[kind]
        value = _attended(self, parts) if parts else x_of_kind.new_zeros(x_of_kind.shape[0], channels)
        exists = ops.existing_with.default(value, x_of_kind)
        out[kind] = ops.none_without.default(exists, [edges for _, edges in parts])
    return out


def _attended(conv: Any, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The results of HANConv's relations to a type, each with its edges: their sum, weighted by a softmax over those
    whose edges are given."""
    ops: Any = torch.ops.graphweave
    scores, results = [], []
    for rows, edges in parts:
        score = (conv.q * torch.tanh(conv.k_lin(rows))).sum() / max(rows.shape[0], 1)
        # with -inf for all relations, the weights and their gradients would be NaN
        scores.append(ops.where_given.default(score, [edges], torch.finfo(score.dtype).min))
        results.append(ops.where_given.default(rows, [edges], 0.0))
    weights = torch.stack(scores).softmax(0).view(-1, 1, 1)
    return (weights * torch.stack(results)).sum(0)


def _edges_of_all(
    edge_index_dict: dict[Relation, Tensor], src_offset_dict: dict[Relation, int], dst_offset_dict: dict[str, int],
    edge_attr_dict: object = None, num_nodes: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """construct_bipartite_edge_index: the edges of all relations in one list, and their features, of which parameters
    are one row for each relation. The original asks whether there are as many rows as edges, so that a relation with
    one edge would be a compilation."""
    edges, features = [], []
    for relation, first in src_offset_dict.items():
        index = edge_index_dict[relation]
        edges.append(torch.stack([index[0] + first, index[1] + dst_offset_dict[relation[2]]]))
        if isinstance(edge_attr_dict, dict):
            features.append(edge_attr_dict[relation])
        elif edge_attr_dict is not None:
            parameters: Any = edge_attr_dict
            features.append(parameters["__".join(relation)].expand(index.size(1), -1))
    return torch.cat(edges, dim=1), torch.cat(features) if features else None


FORMULAS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch_geometric.nn.conv.hetero_conv", "HeteroConv.forward", _hetero_conv),
    ("torch_geometric.nn.conv.hgt_conv", "HGTConv.forward", _hgt_conv),
    ("torch_geometric.nn.conv.han_conv", "HANConv.forward", _han_conv),
    ("torch_geometric.utils.hetero", "construct_bipartite_edge_index", _edges_of_all),
)
"""Module, function or method, and the formula that is traced in its place."""

_DECLARED: dict[tuple[str, str], Callable[[Any], Iterable[Relation]]] = {
    ("torch_geometric.nn.conv.hetero_conv", "HeteroConv"): lambda conv: conv.convs.keys(),
    ("torch_geometric.nn.conv.hgt_conv", "HGTConv"): lambda conv: conv.edge_types,
    ("torch_geometric.nn.conv.han_conv", "HANConv"): lambda conv: conv.metadata[1],
}
"""The layers above, and the relations that each was made for."""


def declared_relations(module: torch.nn.Module) -> list[Relation]:
    """The relations that the layers of a module were made for, in their order, each once."""
    found: dict[Relation, None] = {}
    for part in module.modules():
        relations = _DECLARED.get((type(part).__module__, type(part).__qualname__))
        if relations is not None:
            found.update(dict.fromkeys((src, name, dst) for src, name, dst in relations(part)))
    return list(found)
