"""Reference results of the three layers in float64, computed relation by relation.

No tensor of edges x features is kept: the backward computes each relation again (activation checkpointing), so that a
graph of millions of edges fits into memory.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bench import relational_graphs, relational_models
from bench.relational_graphs import FEATURES, Case, kept_path
from bench.relational_models import SLOPE
from graphweave.core.whole_file import written_whole

Weights = Mapping[str, Tensor]


def _again(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    out: Tensor = checkpoint(function, *tensors, use_reentrant=False)
    return out


class _Gather(torch.autograd.Function):
    """rows[index], whose gradient is added to `total`. A tensor of all rows for each of 535 relations takes minutes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, total: Tensor) -> Tensor:
        ctx.index, ctx.total = index, total
        return rows[index]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ctx.total.index_add_(0, ctx.index, grad)
        return None, None, None


class _Rows:
    """Rows of nodes that many relations gather. Their gradient goes on to what they were made of by `backward`."""

    def __init__(self, rows: Tensor) -> None:
        self._made, self._rows = rows, rows.detach().requires_grad_(rows.requires_grad)
        self._total = torch.zeros_like(rows) if rows.requires_grad else rows

    def __getitem__(self, index: Tensor) -> Tensor:
        found: Tensor = _Gather.apply(self._rows, index, self._total)
        return found

    def zeros(self) -> Tensor:
        return torch.zeros_like(self._rows)

    def backward(self) -> None:
        if self._made.requires_grad:
            self._made.backward(self._total)


def _by_type(x: Tensor, weight: Tensor, case: Case) -> Tensor:
    first = case.first_nodes
    return torch.cat([x[first[t] : first[t + 1]] @ weight[t] for t in range(case.num_node_types)])


def _slices(case: Case) -> list[tuple[int, slice]]:
    bounds = case.first_edges
    return [(r, slice(bounds[r], bounds[r + 1])) for r in range(case.num_relations) if bounds[r] < bounds[r + 1]]


def _sizes(case: Case) -> list[int]:
    return torch.bincount(case.etype, minlength=case.num_relations).tolist()


def _collect(rows: _Rows, weight: Tensor, share: Tensor, case: Case) -> Tensor:
    """[N, 64]: sum over edges of share * rows[src] weight[etype]."""
    out = rows.zeros()
    matrices, shares = weight.unbind(), share.split(_sizes(case))
    for r, part in _slices(case):
        src, dst = case.src[part], case.dst[part]
        message = _again(lambda w, s, src=src: (rows[src] @ w) * s.unsqueeze(1), matrices[r], shares[r])
        out.index_add_(0, dst, message)
    return out


def _softmax(score: Tensor, case: Case, *, within: bool) -> Tensor:
    """[E]: the softmax over the edges of a destination, or, if `within`, over those of the same relation."""
    groups = case.dst * case.num_relations + case.etype if within else case.dst
    _, which = torch.unique(groups, return_inverse=True)
    count = int(which.max()) + 1 if which.numel() else 0
    top = score.new_full((count,), -math.inf).scatter_reduce(0, which, score.detach(), "amax")
    shifted = torch.exp(score - top[which])
    return shifted / score.new_zeros(count).index_add(0, which, shifted)[which]


def _rgcn(x: Tensor, w: Weights, case: Case, within: bool) -> tuple[Tensor, list[_Rows]]:
    return _collect(_Rows(x), w["weight"], case.norm.to(x.dtype), case) + x @ w["root"], []


def _rgat(x: Tensor, w: Weights, case: Case, within: bool) -> tuple[Tensor, list[_Rows]]:
    scores = [x.new_zeros(0)]
    matrices, left, right = (w[name].unbind() for name in ("weight", "att_src", "att_dst"))
    for r, part in _slices(case):
        src, dst = case.src[part], case.dst[part]

        def score(weight: Tensor, a: Tensor, b: Tensor, src: Tensor = src, dst: Tensor = dst) -> Tensor:
            return (x[src] @ weight) @ a + (x[dst] @ weight) @ b

        scores.append(_again(score, matrices[r], left[r], right[r]))
    share = _softmax(F.leaky_relu(torch.cat(scores), SLOPE), case, within=within)
    return _collect(_Rows(x), w["weight"], share, case), []


def _hgt(x: Tensor, w: Weights, case: Case, within: bool) -> tuple[Tensor, list[_Rows]]:
    key, query, value = (_Rows(_by_type(x, w[name], case)) for name in ("key", "query", "value"))
    scores = [x.new_zeros(0)]
    matrices, priors = w["att"].unbind(), w["prior"].unbind()
    for r, part in _slices(case):
        src, dst = case.src[part], case.dst[part]

        def score(a: Tensor, prior: Tensor, src: Tensor = src, dst: Tensor = dst) -> Tensor:
            return (query[dst] * (key[src] @ a)).sum(1) * prior / math.sqrt(FEATURES)

        scores.append(_again(score, matrices[r], priors[r]))
    share = _softmax(torch.cat(scores), case, within=within)
    return _by_type(_collect(value, w["msg"], share, case), w["last"], case), [key, query, value]


def reference(model: str, case: Case, weights: Weights, *, within: bool = False) -> dict[str, Tensor]:
    """`out` [N, 64], `loss`, and gradients by name, all float64. `within`: each relation has its own softmax."""
    wide = {name: value.double().requires_grad_() for name, value in weights.items()}
    forward = {"rgcn": _rgcn, "rgat": _rgat, "hgt": _hgt}[model]
    out, gathered = forward(case.x.double(), wide, case, within)
    loss = F.cross_entropy(out, case.y)
    loss.backward()
    for rows in gathered:
        rows.backward()
    grads = {name: value.grad for name, value in wide.items() if value.grad is not None}
    return {"out": out.detach(), "loss": loss.detach(), **grads}


def kept_reference(model: str, graph: str, case: Case, weights: Weights, *, within: bool = False) -> dict[str, Tensor]:
    """`reference` on the graph of this name, from a file if an earlier process has computed it by the same code."""
    path = kept_path(f"{_prefix(model, graph)}{within}-{FEATURES}-{_code()}.npz")
    if not path.is_file():
        found = reference(model, case, weights, within=within)
        with written_whole(path) as partial, partial.open("wb") as file:
            np.savez(file, **{name: value.numpy() for name, value in found.items()})  # type: ignore[arg-type]
        return found
    with np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def drop_references(model: str, graph: str) -> None:
    """Remove the files of `kept_reference`, which are as large as the results."""
    for path in kept_path("").glob(f"{_prefix(model, graph)}*"):
        path.unlink()


def _prefix(model: str, graph: str) -> str:
    return f"reference-{model}-{graph}-"


def _code() -> int:
    """A number that changes with the code that decides on graphs, weights and results."""
    files = (__file__, relational_graphs.__file__, relational_models.__file__)
    return zlib.crc32(b"".join(Path(str(file)).read_bytes() for file in files))
