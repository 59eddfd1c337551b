"""Models of DGL's table 3 and figure 2(b) that are more than layers over one graph: R-GCN, GCMC and link prediction.

Each module computes a loss from tensors and index tensors. How rows are summed along edges, and how the products of
both ends of edges are taken, is `Along`, which a framework has in its own words; an "index" is that framework's graph.
Nothing but PyTorch is imported, since DGL's process runs this file, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.specs import Spec


class Along(Protocol):
    """Sums and products along edges (src, dst) of an index."""

    def total(self, x: Tensor, index: Any, weight: Tensor, rows: int) -> Tensor:
        """out[v] = the sum over edges into v of weight[e] x[src[e]]. [N, F], [E] -> [rows, F]; 0 without edges."""

    def dot(self, left: Tensor, right: Tensor, index: Any) -> Tensor:
        """out[e] = <left[src[e]], right[dst[e]]>. [E]."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges [2, E] from one set of `sources` rows to another of `destinations`."""

    index: Tensor
    sources: int
    destinations: int


def glorot(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[-2] ** 0.5)


class RgcnWeighted(nn.Module):
    """h_v = relu(sum over r of (1 / sum of w_r) sum over u of w_r[e] (h_u W_r) + h_v W_0), appendix D.1 of the paper.

    Every edge has a weight for each of R relations. `shares` [E, R] are the weights divided by their sums at a node.
    The loss is the cross entropy of the last layer.
    """

    def __init__(self, along: Along, inputs: int, widths: Sequence[int], relations: int) -> None:
        super().__init__()
        pairs = list(pairwise((inputs, *widths)))
        self.along = along
        self.related = nn.ParameterList(glorot(relations, i, o) for i, o in pairs)
        self.own = nn.ParameterList(glorot(i, o) for i, o in pairs)

    def forward(self, y: Tensor, x: Tensor, index: Any, shares: Tensor) -> Tensor:
        for layer, (related, own) in enumerate(zip(self.related, self.own, strict=True)):
            x = x if layer == 0 else x.relu()
            out = x @ own
            for r in range(related.size(0)):
                out = out + self.along.total(x @ related[r], index, shares[:, r], x.size(0))
            x = out
        return F.cross_entropy(x, y)


class Gcmc(nn.Module):
    """Graph convolutional matrix completion: van den Berg et al. (2017), with the sizes of the paper's appendix D.1.

    One-hot nodes, so that the product with the weights of rating r is a row of `users[r]` or `items[r]`. Messages of
    all ratings are summed, then ReLU, a linear layer, and logits by R combinations of `bases` bilinear forms.
    Arguments: the rating of each edge [E], the index of all edges, and for each rating the index from users to items,
    the one back, and the norms of their edges [E_r], 1 / sqrt(degree of the user x degree of the item).
    """

    def __init__(self, along: Along, counts: tuple[int, int], ratings: int, widths: Sequence[int], bases: int) -> None:
        super().__init__()
        hidden, out = widths
        self.along = along
        self.users, self.items = (nn.Parameter(torch.randn(ratings, n, hidden) / hidden**0.5) for n in counts)
        self.user_out, self.item_out = glorot(hidden, out), glorot(hidden, out)
        self.forms, self.mix = glorot(bases, out, out), glorot(bases, ratings)

    def forward(self, y: Tensor, every: Any, *rated: Any) -> Tensor:
        users = self.items.new_zeros(self.users.shape[1:])
        items = self.items.new_zeros(self.items.shape[1:])
        for r in range(self.users.size(0)):
            there, back, norm = rated[3 * r : 3 * r + 3]
            items = items + self.along.total(self.users[r], there, norm, items.size(0))
            users = users + self.along.total(self.items[r], back, norm, users.size(0))
        u, v = users.relu() @ self.user_out, items.relu() @ self.item_out
        scores = torch.stack([self.along.dot(u @ form, v, every) for form in self.forms], 1)
        return F.cross_entropy(scores @ self.mix, y)


class LinkPrediction(nn.Module):
    """GCN of a cluster of nodes, then the inner product of both ends of real and of drawn edges, and binary entropy."""

    def __init__(self, along: Along, inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.along = along
        self.layers = nn.ParameterList(glorot(i, o) for i, o in pairwise((inputs, *widths)))

    def forward(self, y: Tensor, x: Tensor, index: Any, norm: Tensor, pairs: Any) -> Tensor:
        for layer, weight in enumerate(self.layers):
            x = self.along.total((x if layer == 0 else x.relu()) @ weight, index, norm, x.size(0))
        return F.binary_cross_entropy_with_logits(self.along.dot(x, x, pairs), y)


def _numbers(spec: Spec) -> list[int]:
    return [int(number) for number in spec.graph.split(":")[1:]]


def module_of(spec: Spec, along: Along) -> nn.Module:
    """The module of a spec, whose graph is weighted:NODES:EDGES:RELATIONS, ratings:USERS:ITEMS:EDGES:RATINGS, or
    pairs:NODES:EDGES:NEGATIVES."""
    numbers = _numbers(spec)
    if spec.layer == "rgcn":
        return RgcnWeighted(along, spec.inputs, spec.widths, numbers[2])
    if spec.layer == "gcmc":
        return Gcmc(along, (numbers[0], numbers[1]), numbers[3], spec.widths, spec.kernels)
    return LinkPrediction(along, spec.inputs, spec.widths)


Draw = Callable[[int, int], Tensor]
"""(nodes, edges) -> index [2, edges]."""


def inputs_of(spec: Spec, draw: Draw) -> tuple[Tensor | Edges, ...]:
    """The arguments of the module, all from one seed; graphs of one set of nodes are drawn by `draw`."""
    generator = torch.Generator().manual_seed(0)
    return INPUTS[spec.layer](spec, draw, generator)


def _weighted(spec: Spec, draw: Draw, generator: torch.Generator) -> tuple[Tensor | Edges, ...]:
    nodes, edges, relations = _numbers(spec)
    index = draw(nodes, edges)
    weight = torch.rand(index.size(1), relations, generator=generator)
    sums = torch.zeros(nodes, relations).index_add(0, index[1], weight)
    y = torch.randint(spec.widths[-1], (nodes,), generator=generator)
    return y, torch.ones(nodes, 1), Edges(index, nodes, nodes), weight / sums[index[1]]


def _ratings(spec: Spec, draw: Draw, generator: torch.Generator) -> tuple[Tensor | Edges, ...]:
    users, items, edges, ratings = _numbers(spec)
    ends = [torch.randint(n, (edges,), generator=generator) for n in (users, items)]
    y = torch.randint(ratings, (edges,), generator=generator).sort().values
    index = torch.stack(ends)
    norm = torch.ones(edges)
    for end, count in zip(ends, (users, items), strict=True):
        norm = norm / torch.bincount(end, minlength=count)[end].float().sqrt()
    given: list[Tensor | Edges] = [y, Edges(index, users, items)]
    for r in range(ratings):
        one = index[:, y == r]
        given += [Edges(one, users, items), Edges(one.flip(0).contiguous(), items, users), norm[y == r]]
    return tuple(given)


def _pairs(spec: Spec, draw: Draw, generator: torch.Generator) -> tuple[Tensor | Edges, ...]:
    nodes, edges, negatives = _numbers(spec)
    index = draw(nodes, edges)
    degree = torch.bincount(index[1], minlength=nodes).clamp(min=1).float()
    norm = degree.rsqrt()[index[0]] * degree.rsqrt()[index[1]]
    drawn = torch.stack([index[0].repeat(negatives), torch.randint(nodes, (negatives * edges,), generator=generator)])
    y = torch.cat([torch.ones(edges), torch.zeros(negatives * edges)])
    pairs = Edges(torch.cat([index, drawn], 1), nodes, nodes)
    x = torch.randn(nodes, spec.inputs, generator=generator)
    return y, x, Edges(index, nodes, nodes), norm, pairs


INPUTS: Mapping[str, Callable[[Spec, Draw, torch.Generator], tuple[Tensor | Edges, ...]]] = {
    "rgcn": _weighted, "gcmc": _ratings, "link": _pairs,
}  # fmt: skip
"""Layer of a spec -> its arguments. These are the layers of this file."""
