"""RGCN, RGAT and HGT as a user of PyTorch writes them: gathers, one small product for each edge, scatters.

graphweave compiles this text. In eager mode it is the peer "bmm", which copies the weight of its type for every edge.
Single layers, 64 -> 64, one head, as in section 4.1 of Hector (Wu et al., ASPLOS 2024). N nodes, E edges, R relations,
T node types. Nothing but PyTorch is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.relational_graphs import FEATURES, Case

SLOPE = 0.2
"""Negative slope of RGAT's leaky ReLU."""

GATE = 100.0
"""Value of a gate before its sigmoid, which is 1 in float32."""

MODELS = ("rgcn", "rgat", "hgt")


def copy(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value.reshape(parameter.shape))


def gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def weights(model: str, num_relations: int, num_node_types: int, seed: int = 0) -> dict[str, Tensor]:
    """Parameters by name, drawn from one seed.

    Each relation has attention vectors of its own in RGAT, but PyG's layer has one pair for all relations. So they are
    equal for all relations here, and the gradient of PyG's pair is compared with the sum of their gradients.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(FEATURES)

    square = (FEATURES, FEATURES)
    match model:
        case "rgcn":
            return {"weight": drawn(num_relations, *square), "root": drawn(*square)}
        case "rgat":
            vectors = {name: drawn(1, FEATURES).repeat(num_relations, 1) for name in ("att_src", "att_dst")}
            return {"weight": drawn(num_relations, *square), **vectors}
        case "hgt":
            typed = {name: drawn(num_node_types, *square) for name in ("key", "query", "value", "last")}
            related = {name: drawn(num_relations, *square) for name in ("att", "msg")}
            return {**typed, **related, "prior": 1.0 + 0.1 * torch.randn(num_relations, generator=generator)}
    raise ValueError(f"no model {model!r}")


class Layer(nn.Module):
    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_parameter(name, nn.Parameter(value.clone()))


def typed(x: Tensor, weight: Tensor, kind: Tensor) -> Tensor:
    """out[i] = x[i] weight[kind[i]]."""
    return torch.bmm(x.unsqueeze(1), weight[kind]).squeeze(1)


def summed(message: Tensor, dst: Tensor, x: Tensor) -> Tensor:
    """[N, 64]: the sum of the messages of each destination, 0 if it has none."""
    return torch.zeros_like(x).index_add(0, dst, message)


def edge_softmax(score: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
    """[E]: the softmax over all edges of a destination, of any relation."""
    index = dst
    top = score.new_full((num_nodes,), -math.inf).scatter_reduce(0, index, score.detach(), "amax")
    shifted = torch.exp(score - top[dst])
    total = score.new_zeros(num_nodes).index_add(0, index, shifted)
    return shifted / total[dst]


class Rgcn(Layer):
    """h_v W_0 + sum over relations of the mean of h_u W_r. The weights of edges, `norm`, make sums of means."""

    weight: Tensor
    root: Tensor

    def forward(self, x: Tensor, src: Tensor, dst: Tensor, etype: Tensor, norm: Tensor) -> Tensor:
        message = typed(x[src], self.weight, etype) * norm.unsqueeze(1)
        return summed(message, dst, x) + x @ self.root


class Rgat(Layer):
    """sum of softmax(leaky_relu(<h_u W_r, a_r> + <h_v W_r, b_r>)) h_u W_r."""

    weight: Tensor
    att_src: Tensor
    att_dst: Tensor

    def forward(self, x: Tensor, src: Tensor, dst: Tensor, etype: Tensor) -> Tensor:
        weight = self.weight[etype]
        sent = torch.bmm(x[src].unsqueeze(1), weight).squeeze(1)
        received = torch.bmm(x[dst].unsqueeze(1), weight).squeeze(1)
        score = (sent * self.att_src[etype]).sum(1) + (received * self.att_dst[etype]).sum(1)
        share = edge_softmax(F.leaky_relu(score, SLOPE), dst, x.size(0))
        return summed(sent * share.unsqueeze(1), dst, x)


class Hgt(Layer):
    """Keys, queries, values and the output have weights by node type, edges by relation; softmax over all edges."""

    key: Tensor
    query: Tensor
    value: Tensor
    last: Tensor
    att: Tensor
    msg: Tensor
    prior: Tensor

    def forward(self, x: Tensor, src: Tensor, dst: Tensor, etype: Tensor, ntype: Tensor) -> Tensor:
        key, query, value = (typed(x, weight, ntype) for weight in (self.key, self.query, self.value))
        related = typed(key[src], self.att, etype)
        score = (query[dst] * related).sum(1) * self.prior[etype] / math.sqrt(FEATURES)
        share = edge_softmax(score, dst, x.size(0))
        message = typed(value[src], self.msg, etype) * share.unsqueeze(1)
        return typed(summed(message, dst, x), self.last, ntype)


LAYERS: dict[str, type[Layer]] = {"rgcn": Rgcn, "rgat": Rgat, "hgt": Hgt}


class WithLoss(nn.Module):
    """A layer and its loss, the negative log-likelihood of random labels, as one module for a compiler."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, y: Tensor, *inputs: Tensor) -> Tensor:
        return F.cross_entropy(self.layer(*inputs), y)


def inputs(model: str, case: Case) -> tuple[Tensor, ...]:
    """The arguments of a model's layer."""
    last = {"rgcn": (case.norm,), "rgat": (), "hgt": (case.ntype,)}[model]
    return (case.x, case.src, case.dst, case.etype, *last)
