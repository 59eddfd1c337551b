"""The three layers by PyTorch Geometric's own classes, with the weights of `bench.relational_models`.

What PyG's layers compute in addition is switched off, so that numbers are equal: HGTConv's biases are 0, its skip
connection's gate is 1, and its activation is the identity in this process. HeteroConv has one convolution for each
relation: for RGCN SAGEConv with means; for RGAT GATConv, whose softmax is over the edges of one relation, which is
another function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

from bench.relational_graphs import FEATURES, Case
from bench.relational_models import GATE, SLOPE, copy, gradient
from bench.steps import ModelStep

Weights = Mapping[str, Tensor]

FORMS = {
    "pyg-rgcn": ("rgcn",),
    "pyg-fast-rgcn": ("rgcn",),
    "pyg-rgat": ("rgat",),
    "pyg-hgt": ("hgt",),
    "pyg-hetero": ("rgcn", "rgat"),
}
"""System -> the models that it has."""

WITHIN = ("pyg-hetero", "rgat")
"""The system and model whose softmax is over the edges of each relation by itself."""


def form(
    module: nn.Module, call: Callable[[], Tensor], case: Case, grads: Callable[[], dict[str, Tensor]]
) -> ModelStep:
    return ModelStep(module, "train", call, lambda: F.cross_entropy(call(), case.y), grads)


def build(system: str, model: str, case: Case, weights: Weights) -> ModelStep:
    match system:
        case "pyg-hgt":
            return _hgt(case, weights)
        case "pyg-hetero":
            return _hetero_rgcn(case, weights) if model == "rgcn" else _hetero_gat(case, weights)
        case "pyg-rgat":
            return _rgat(case, weights)
    kind = pyg.FastRGCNConv if system == "pyg-fast-rgcn" else pyg.RGCNConv
    layer = kind(FEATURES, FEATURES, case.num_relations, bias=False, aggr="mean")
    for name in ("weight", "root"):
        copy(getattr(layer, name), weights[name])
    edges = torch.stack([case.src, case.dst])

    def grads() -> dict[str, Tensor]:
        return {name: getattr(layer, name).grad for name in ("weight", "root")}

    return form(layer, lambda: layer(case.x, edges, case.etype), case, grads)


def _rgat(case: Case, weights: Weights) -> ModelStep:
    layer = pyg.RGATConv(FEATURES, FEATURES, case.num_relations, negative_slope=SLOPE, bias=False)
    copy(layer.weight, weights["weight"])
    copy(layer.k, weights["att_src"][0])
    copy(layer.q, weights["att_dst"][0])
    edges = torch.stack([case.src, case.dst])

    def grads() -> dict[str, Tensor]:
        shared = {"att_src": layer.k.grad, "att_dst": layer.q.grad}
        return {"weight": layer.weight.grad, **{f"sum.{name}": grad.flatten() for name, grad in shared.items()}}

    return form(layer, lambda: layer(case.x, edges, case.etype), case, grads)


class Typed:
    """A case as dictionaries by node type and by relation."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.nodes = [f"n{t}" for t in range(case.num_node_types)]
        self.relations = [(f"n{s}", f"r{r}", f"n{d}") for r, (s, d) in enumerate(case.ends.tolist())]
        self.edges = dict(zip(self.relations, case.by_relation(), strict=True))
        self.x = dict(zip(self.nodes, case.x.split(case.counts.tolist()), strict=True))

    def joined(self, out: Mapping[str, Tensor | None]) -> Tensor:
        """The results of all types as [N, 64]; 0 for a type in which no relation ends."""
        rows = [out.get(name) for name in self.nodes]
        return torch.cat(
            [torch.zeros_like(self.x[n]) if v is None else v for n, v in zip(self.nodes, rows, strict=True)]
        )


def _hetero(typed: Typed, convs: Mapping[Any, nn.Module]) -> nn.Module:
    return pyg.HeteroConv(dict(convs), aggr="sum")


def _hetero_rgcn(case: Case, weights: Weights) -> ModelStep:
    typed = Typed(case)
    convs: dict[Any, Any] = {
        relation: pyg.SAGEConv((FEATURES, FEATURES), FEATURES, aggr="mean", root_weight=False, bias=False)
        for relation in typed.relations
    }
    layer: Any = _hetero(typed, convs)
    layer.root = nn.Parameter(weights["root"].clone())
    for r, conv in enumerate(convs.values()):
        copy(conv.lin_l.weight, weights["weight"][r].t())

    def call() -> Tensor:
        return typed.joined(layer(typed.x, typed.edges)) + case.x @ layer.root

    def grads() -> dict[str, Tensor]:
        return {
            "weight": torch.stack([gradient(conv.lin_l.weight).t() for conv in convs.values()]),
            "root": gradient(layer.root),
        }

    return form(layer, call, case, grads)


def _hetero_gat(case: Case, weights: Weights) -> ModelStep:
    typed = Typed(case)
    convs: dict[Any, Any] = {
        relation: pyg.GATConv(FEATURES, FEATURES, negative_slope=SLOPE, add_self_loops=False, bias=False)
        for relation in typed.relations
    }
    for r, conv in enumerate(convs.values()):
        copy(conv.lin.weight, weights["weight"][r].t())
        copy(conv.att_src, weights["att_src"][r])
        copy(conv.att_dst, weights["att_dst"][r])
    layer = _hetero(typed, convs)

    def grads() -> dict[str, Tensor]:
        every = convs.values()
        return {
            "weight": torch.stack([gradient(conv.lin.weight).t() for conv in every]),
            "att_src": torch.stack([gradient(conv.att_src).flatten() for conv in every]),
            "att_dst": torch.stack([gradient(conv.att_dst).flatten() for conv in every]),
        }

    return form(layer, lambda: typed.joined(layer(typed.x, typed.edges)), case, grads)


def _hgt(case: Case, weights: Weights) -> ModelStep:
    functions: Any = F
    functions.gelu = torch.Tensor.contiguous  # the identity; HGTConv takes it from this module at each call
    typed = Typed(case)
    layer = pyg.HGTConv(FEATURES, FEATURES, (typed.nodes, typed.relations), heads=1)
    for t, name in enumerate(typed.nodes):
        parts = [weights[part][t].t() for part in ("key", "query", "value")]
        copy(layer.kqv_lin.lins[name].weight, torch.cat(parts))
        copy(layer.out_lin.lins[name].weight, weights["last"][t].t())
        for linear in (layer.kqv_lin, layer.out_lin):
            nn.init.zeros_(linear.lins[name].bias)
        nn.init.constant_(layer.skip[name], GATE)
    copy(layer.k_rel.weight, weights["att"])
    copy(layer.v_rel.weight, weights["msg"])
    priors = ["__".join(relation) for relation in typed.relations]
    for r, name in enumerate(priors):
        copy(layer.p_rel[name], weights["prior"][r])

    def grads() -> dict[str, Tensor]:
        parts = [gradient(layer.kqv_lin.lins[name].weight).chunk(3) for name in typed.nodes]
        found = {part: torch.stack([one[i].t() for one in parts]) for i, part in enumerate(("key", "query", "value"))}
        outs = [gradient(layer.out_lin.lins[name].weight).t() for name in typed.nodes]
        found.update(last=torch.stack(outs), att=gradient(layer.k_rel.weight), msg=gradient(layer.v_rel.weight))
        found["prior"] = torch.stack([gradient(layer.p_rel[name]).squeeze() for name in priors])
        return found

    return form(layer, lambda: typed.joined(layer(typed.x, typed.edges)), case, grads)
