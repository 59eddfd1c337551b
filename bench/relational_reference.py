"""Reference results of the three layers in float64, computed relation by relation.

No tensor of edges x features is kept: the backward computes each relation again (activation checkpointing), so that a
graph of millions of edges fits into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bench.relational_graphs import FEATURES, Case
from bench.relational_models import SLOPE

Weights = Mapping[str, Tensor]


def _again(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    out: Tensor = checkpoint(function, *tensors, use_reentrant=False)
    return out


def _by_type(x: Tensor, weight: Tensor, case: Case) -> Tensor:
    first = case.first_nodes
    return torch.cat([x[first[t] : first[t + 1]] @ weight[t] for t in range(case.num_node_types)])


def _slices(case: Case) -> list[tuple[int, slice]]:
    bounds = case.first_edges
    return [(r, slice(bounds[r], bounds[r + 1])) for r in range(case.num_relations) if bounds[r] < bounds[r + 1]]


def _sizes(case: Case) -> list[int]:
    return torch.bincount(case.etype, minlength=case.num_relations).tolist()


def _collect(rows: Tensor, weight: Tensor, share: Tensor, case: Case) -> Tensor:
    """[N, 64]: sum over edges of share * rows[src] weight[etype]."""
    out = torch.zeros_like(rows)
    matrices, shares = weight.unbind(), share.split(_sizes(case))
    for r, part in _slices(case):
        src, dst = case.src[part], case.dst[part]
        message = _again(lambda h, w, s, src=src: (h[src] @ w) * s.unsqueeze(1), rows, matrices[r], shares[r])
        out = out.index_add(0, dst, message)
    return out


def _softmax(score: Tensor, case: Case, *, within: bool) -> Tensor:
    """[E]: the softmax over the edges of a destination, or, if `within`, over those of the same relation."""
    groups = case.dst * case.num_relations + case.etype if within else case.dst
    _, which = torch.unique(groups, return_inverse=True)
    count = int(which.max()) + 1 if which.numel() else 0
    top = score.new_full((count,), -math.inf).scatter_reduce(0, which, score.detach(), "amax")
    shifted = torch.exp(score - top[which])
    return shifted / score.new_zeros(count).index_add(0, which, shifted)[which]


def _rgcn(x: Tensor, w: Weights, case: Case, within: bool) -> Tensor:
    return _collect(x, w["weight"], case.norm.to(x.dtype), case) + x @ w["root"]


def _rgat(x: Tensor, w: Weights, case: Case, within: bool) -> Tensor:
    scores = [x.new_zeros(0)]
    matrices, left, right = (w[name].unbind() for name in ("weight", "att_src", "att_dst"))
    for r, part in _slices(case):
        src, dst = case.src[part], case.dst[part]

        def score(weight: Tensor, a: Tensor, b: Tensor, src: Tensor = src, dst: Tensor = dst) -> Tensor:
            return (x[src] @ weight) @ a + (x[dst] @ weight) @ b

        scores.append(_again(score, matrices[r], left[r], right[r]))
    share = _softmax(F.leaky_relu(torch.cat(scores), SLOPE), case, within=within)
    return _collect(x, w["weight"], share, case)


def _hgt(x: Tensor, w: Weights, case: Case, within: bool) -> Tensor:
    key, query, value = (_by_type(x, w[name], case) for name in ("key", "query", "value"))
    scores = [x.new_zeros(0)]
    matrices, priors = w["att"].unbind(), w["prior"].unbind()
    for r, part in _slices(case):
        src, dst = case.src[part], case.dst[part]

        def score(k: Tensor, q: Tensor, a: Tensor, prior: Tensor, src: Tensor = src, dst: Tensor = dst) -> Tensor:
            return (q[dst] * (k[src] @ a)).sum(1) * prior / math.sqrt(FEATURES)

        scores.append(_again(score, key, query, matrices[r], priors[r]))
    share = _softmax(torch.cat(scores), case, within=within)
    return _by_type(_collect(value, w["msg"], share, case), w["last"], case)


def reference(model: str, case: Case, weights: Weights, *, within: bool = False) -> dict[str, Tensor]:
    """`out` [N, 64], `loss`, and gradients by name, all float64. `within`: each relation has its own softmax."""
    wide = {name: value.double().requires_grad_() for name, value in weights.items()}
    forward = {"rgcn": _rgcn, "rgat": _rgat, "hgt": _hgt}[model]
    out = forward(case.x.double(), wide, case, within)
    loss = F.cross_entropy(out, case.y)
    loss.backward()
    grads = {name: value.grad for name, value in wide.items() if value.grad is not None}
    return {"out": out.detach(), "loss": loss.detach(), **grads}
