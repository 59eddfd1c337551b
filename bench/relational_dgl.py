"""The three layers in DGL 2.1, run by the Python of DGL's own environment, with the weights of the other systems.

    dgl         RelGraphConv and HGTConv, whose typed products are segment_mm (nodes and edges are sorted by type)
    dgl-hetero  HeteroGraphConv: GraphConv's means of each relation for RGCN, GATConv (softmax over the edges of one
                relation: another function) for RGAT
    dgl-udf     messages as user-defined functions, with one small product an edge; sums are built in

HGTConv's skip connection has a gate of 1 here. Work that a layer need not do at each step (degrees, formats, checks for
nodes without edges) is done before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import dgl
import dgl.function as fn
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.relational_graphs import FEATURES, Case, case_of
from bench.relational_models import GATE, SLOPE, Layer, copy, gradient, typed
from bench.steps import ModelStep, Step

Weights = Mapping[str, Tensor]


def graph_of(case: Case) -> Any:
    graph = dgl.graph((case.src, case.dst), num_nodes=case.x.size(0))
    graph.create_formats_()
    return graph


class Rel(nn.Module):
    """RelGraphConv."""

    def __init__(self, case: Case, weights: Weights) -> None:
        super().__init__()
        self.case, self.graph = case, graph_of(case)
        self.norm = case.norm.unsqueeze(1)
        self.conv = dglnn.RelGraphConv(FEATURES, FEATURES, case.num_relations, bias=False, self_loop=True)
        self.own = {"weight": self.conv.linear_r.W, "root": self.conv.loop_weight}
        for name, parameter in self.own.items():
            copy(parameter, weights[name])

    def forward(self) -> Tensor:
        return self.conv(self.graph, self.case.x, self.case.etype, self.norm, presorted=True)

    def grads(self) -> dict[str, Tensor]:
        return {name: gradient(parameter) for name, parameter in self.own.items()}


class Hgt(nn.Module):
    """HGTConv."""

    def __init__(self, case: Case, weights: Weights) -> None:
        super().__init__()
        self.case, self.graph = case, graph_of(case)
        conv = self.conv = dglnn.HGTConv(FEATURES, FEATURES, 1, case.num_node_types, case.num_relations, dropout=0.0)
        nn.init.constant_(conv.skip, GATE)
        self.own = {
            "key": conv.linear_k.W,
            "query": conv.linear_q.W,
            "value": conv.linear_v.W,
            "last": conv.linear_a.W,
            "att": conv.relation_att[0].W,
            "msg": conv.relation_msg[0].W,
            "prior": conv.relation_pri[0],
        }
        for name, parameter in self.own.items():
            copy(parameter, weights[name])

    def forward(self) -> Tensor:
        return self.conv(self.graph, self.case.x, self.case.ntype, self.case.etype, presorted=True)

    def grads(self) -> dict[str, Tensor]:
        return {name: gradient(parameter) for name, parameter in self.own.items()}


class Hetero(nn.Module):
    """HeteroGraphConv with one convolution for each relation."""

    def __init__(self, model: str, case: Case, weights: Weights) -> None:
        super().__init__()
        self.case, self.model = case, model
        types = case.ends.tolist()
        names = [(f"n{s}", f"r{r}", f"n{d}") for r, (s, d) in enumerate(types)]
        parts = {name: (part[0], part[1]) for name, part in zip(names, case.by_relation(), strict=True)}
        self.nodes = [f"n{t}" for t in range(case.num_node_types)]
        counts = dict(zip(self.nodes, case.counts.tolist(), strict=True))
        self.graph = dgl.heterograph(parts, counts)
        self.graph.create_formats_()
        self.convs: list[Any] = [self._conv(r, weights) for r in range(case.num_relations)]
        self.layer = dglnn.HeteroGraphConv({f"r{r}": conv for r, conv in enumerate(self.convs)}, aggregate="sum")
        self.root = nn.Parameter(weights["root"].clone()) if model == "rgcn" else None
        self.x = dict(zip(self.nodes, case.x.split(case.counts.tolist()), strict=True))

    def _conv(self, r: int, weights: Weights) -> nn.Module:
        if self.model == "rgcn":
            mean = dglnn.GraphConv(FEATURES, FEATURES, norm="right", bias=False, allow_zero_in_degree=True)
            copy(mean.weight, weights["weight"][r])
            return mean
        gat = dglnn.GATConv(FEATURES, FEATURES, 1, negative_slope=SLOPE, bias=False, allow_zero_in_degree=True)
        copy(gat.fc.weight, weights["weight"][r].t())
        copy(gat.attn_l, weights["att_src"][r])
        copy(gat.attn_r, weights["att_dst"][r])
        return gat

    def forward(self) -> Tensor:
        out = self.layer(self.graph, self.x)
        rows = [out[name].flatten(1) if name in out else torch.zeros_like(self.x[name]) for name in self.nodes]
        joined = torch.cat(rows)
        return joined if self.root is None else joined + self.case.x @ self.root

    def grads(self) -> dict[str, Tensor]:
        if self.root is not None:
            stacked = torch.stack([gradient(conv.weight) for conv in self.convs])
            return {"weight": stacked, "root": gradient(self.root)}
        return {
            "weight": torch.stack([gradient(conv.fc.weight).t() for conv in self.convs]),
            "att_src": torch.stack([gradient(conv.attn_l).flatten() for conv in self.convs]),
            "att_dst": torch.stack([gradient(conv.attn_r).flatten() for conv in self.convs]),
        }


class Udf(Layer):
    """Messages as functions of edges."""

    weight: Tensor
    root: Tensor
    att_src: Tensor
    att_dst: Tensor
    att: Tensor
    msg: Tensor
    prior: Tensor
    last: Tensor

    def __init__(self, model: str, case: Case, weights: Weights) -> None:
        super().__init__(weights)
        self.model, self.case, self.graph = model, case, graph_of(case)
        self.graph.edata["type"] = case.etype
        self.graph.edata["norm"] = case.norm.unsqueeze(1)

    def forward(self) -> Tensor:
        with self.graph.local_scope():
            return {"rgcn": self._rgcn, "rgat": self._rgat, "hgt": self._hgt}[self.model](self.graph, self.case.x)

    def _rgcn(self, graph: Any, x: Tensor) -> Tensor:
        graph.ndata["h"] = x

        def message(edges: Any) -> dict[str, Tensor]:
            return {"m": typed(edges.src["h"], self.weight, edges.data["type"]) * edges.data["norm"]}

        graph.update_all(message, fn.sum("m", "h"))
        return graph.ndata["h"] + x @ self.root

    def _rgat(self, graph: Any, x: Tensor) -> Tensor:
        graph.ndata["h"] = x

        def score(edges: Any) -> dict[str, Tensor]:
            kind = edges.data["type"]
            weight = self.weight[kind]
            sent = torch.bmm(edges.src["h"].unsqueeze(1), weight).squeeze(1)
            received = torch.bmm(edges.dst["h"].unsqueeze(1), weight).squeeze(1)
            score = (sent * self.att_src[kind]).sum(1) + (received * self.att_dst[kind]).sum(1)
            return {"sent": sent, "score": F.leaky_relu(score, SLOPE)}

        graph.apply_edges(score)
        return self._attend(graph, "sent")

    def _hgt(self, graph: Any, x: Tensor) -> Tensor:
        kinds = self.case.ntype
        for name in ("key", "query", "value"):
            graph.ndata[name] = typed(x, getattr(self, name), kinds)

        def score(edges: Any) -> dict[str, Tensor]:
            kind = edges.data["type"]
            dots = (edges.dst["query"] * typed(edges.src["key"], self.att, kind)).sum(1)
            return {
                "sent": typed(edges.src["value"], self.msg, kind),
                "score": dots * self.prior[kind] / math.sqrt(FEATURES),
            }

        graph.apply_edges(score)
        return typed(self._attend(graph, "sent"), self.last, kinds)

    def _attend(self, graph: Any, sent: str) -> Tensor:
        graph.edata["share"] = dgl.ops.edge_softmax(graph, graph.edata["score"].unsqueeze(1))

        def message(edges: Any) -> dict[str, Tensor]:
            return {"m": edges.data[sent] * edges.data["share"]}

        graph.update_all(message, fn.sum("m", "h"))
        return graph.ndata["h"]

    def grads(self) -> dict[str, Tensor]:
        return {name: gradient(parameter) for name, parameter in self.named_parameters()}


def step_of(peer: str, arrays: Mapping[str, Tensor], model: str, mode: str, **_: Any) -> Step:
    case = case_of(arrays)
    weights = {name.removeprefix("weight."): v for name, v in arrays.items() if name.startswith("weight.")}
    if peer == "dgl-udf":
        module: Any = Udf(model, case, weights)
    elif peer == "dgl-hetero":
        module = Hetero(model, case, weights)
    else:
        module = Rel(case, weights) if model == "rgcn" else Hgt(case, weights)
    return ModelStep(module, mode, module, lambda: F.cross_entropy(module(), case.y), module.grads)
