"""Reference results of the three layers in float64, computed relation by relation.

No tensor of edges x features is stored (bench/exact_sums.py), and of nodes x features only results: the backward
computes again the rows of some edges of a relation (activation checkpointing). So graphs of millions of nodes and edges
fit into memory.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bench import exact_sums, relational_graphs, relational_models
from bench.exact_sums import dot_in_pieces, weighted_sum
from bench.relational_graphs import FEATURES, Case, kept_path
from bench.relational_models import SLOPE
from graphweave.core.whole_file import written_whole

Weights = Mapping[str, Tensor]


def _again(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    out: Tensor = checkpoint(function, *tensors, use_reentrant=False)
    return out


def _add_rows(out: Tensor, rows: Tensor, values: Tensor) -> None:
    """`out[rows] += values`, in place. The backward of `index_add_` would keep `values`, for their shape alone."""
    out.index_put_((rows,), values, accumulate=True)


def _by_type(x: Tensor, weight: Tensor, case: Case) -> Tensor:
    first = case.first_nodes
    return torch.cat([x[first[t] : first[t + 1]] @ weight[t] for t in range(case.num_node_types)])


@dataclass(frozen=True, slots=True)
class _Relation:
    """Edges of one relation: its number, the nodes that are sources or destinations, and `index` [2, e] of them."""

    number: int
    src: Tensor
    dst: Tensor
    index: Tensor


Relations = Sequence[_Relation]


def _relations(case: Case) -> Relations:
    """The relations that have edges, in the order of edges, in pieces: a relation may have edges at all nodes."""
    found = []
    for r, (begin, last) in enumerate(pairwise(case.first_edges)):
        for first in range(begin, last, exact_sums.PIECE):
            end = min(first + exact_sums.PIECE, last)
            ends = (torch.unique(one[first:end], return_inverse=True) for one in (case.src, case.dst))
            (src, sources), (dst, destinations) = ends
            found.append(_Relation(r, src, dst, torch.stack((sources, destinations))))
    return found


def _collect(matrices: Sequence[Tensor], share: Tensor, case: Case, relations: Relations) -> Tensor:
    """[N, 64]: the sum over edges of share * x[src] matrices[relation]."""
    out = share.new_zeros(case.x.shape)
    for one, part in zip(relations, share.split([one.index.size(1) for one in relations]), strict=True):

        def total(matrix: Tensor, part: Tensor, one: _Relation = one) -> Tensor:
            return weighted_sum(case.x[one.src].double() @ matrix, one.index, part, len(one.dst))

        _add_rows(out, one.dst, _again(total, matrices[one.number], part))
    return out


def _scores(case: Case, relations: Relations, score: Callable[..., Tensor], *tensors: Sequence[Tensor]) -> Tensor:
    """[E]: `score(sources, destinations, index, ...)` of rows of nodes and of what `tensors` have for a relation."""
    found = [torch.zeros(0, dtype=torch.float64, device=case.x.device)]
    for one in relations:

        def of_rows(*given: Tensor, one: _Relation = one) -> Tensor:
            return score(case.x[one.src].double(), case.x[one.dst].double(), one.index, *given)

        found.append(_again(of_rows, *(each[one.number] for each in tensors)))
    return torch.cat(found)


def _softmax(score: Tensor, case: Case, *, within: bool) -> Tensor:
    """[E]: the softmax over the edges of a destination, or, if `within`, over those of the same relation."""
    groups = case.dst * case.num_relations + case.etype if within else case.dst
    _, which = torch.unique(groups, return_inverse=True)
    count = int(which.max()) + 1 if which.numel() else 0
    top = score.new_full((count,), -math.inf).scatter_reduce(0, which, score.detach(), "amax")
    shifted = torch.exp(score - top[which])
    return shifted / score.new_zeros(count).index_add(0, which, shifted)[which]


def _rgcn(w: Weights, case: Case, relations: Relations, within: bool) -> Tensor:
    out = _collect(w["weight"].unbind(), case.norm.double(), case, relations)
    for rows in torch.arange(len(out), device=out.device).split(exact_sums.PIECE):

        def at_root(root: Tensor, rows: Tensor = rows) -> Tensor:
            return case.x[rows].double() @ root

        _add_rows(out, rows, _again(at_root, w["root"]))
    return out


def _rgat(w: Weights, case: Case, relations: Relations, within: bool) -> Tensor:
    def score(x: Tensor, y: Tensor, index: Tensor, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return (x @ (weight @ a))[index[0]] + (y @ (weight @ b))[index[1]]

    matrices, left, right = (w[name].unbind() for name in ("weight", "att_src", "att_dst"))
    share = _softmax(F.leaky_relu(_scores(case, relations, score, matrices, left, right), SLOPE), case, within=within)
    return _collect(matrices, share, case, relations)


def _hgt(w: Weights, case: Case, relations: Relations, within: bool) -> Tensor:
    """Nodes of one type stand at each end of a relation, so that the product of its matrices is taken first."""

    def score(x: Tensor, y: Tensor, index: Tensor, key: Tensor, query: Tensor, prior: Tensor) -> Tensor:
        return dot_in_pieces(x @ key, y @ query, index) * prior / math.sqrt(FEATURES)

    src, dst = case.ends.unbind(1)
    keys, queries = (w["key"][src] @ w["att"]).unbind(), w["query"][dst].unbind()
    share = _softmax(_scores(case, relations, score, keys, queries, w["prior"].unbind()), case, within=within)
    return _by_type(_collect((w["value"][src] @ w["msg"]).unbind(), share, case, relations), w["last"], case)


def reference(model: str, case: Case, weights: Weights, *, within: bool = False) -> dict[str, Tensor]:
    """`out` [N, 64], `loss`, and gradients by name, all float64. `within`: each relation has its own softmax."""
    wide = {name: value.double().requires_grad_() for name, value in weights.items()}
    out = {"rgcn": _rgcn, "rgat": _rgat, "hgt": _hgt}[model](wide, case, _relations(case), within)
    loss = F.cross_entropy(out, case.y)
    loss.backward()
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
    files = (__file__, exact_sums.__file__, relational_graphs.__file__, relational_models.__file__)
    return zlib.crc32(b"".join(Path(str(file)).read_bytes() for file in files))
