"""Relations with features for user-defined functions, and what a reduce function gives and sends back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweave.udf.arguments import EdgeBatch, Frames, RelationEdges
from graphweave.udf.bucket import reduce_in_buckets
from graphweave.udf.passing import edge_results, reduce_mailboxes
from tests.programs.compare import assert_close
from tests.programs.graphs import EdgeList

Function = Callable[[Any], Mapping[str, Any]]
RELATION = ("_N", "_E", "_N")


@dataclass(frozen=True, slots=True)
class Case:
    """A relation and the leaves that receive gradients: of sources, destinations, edges and the closure."""

    ends: RelationEdges
    frames: Frames
    leaves: tuple[Tensor, ...]


def ends_of(edges: EdgeList, index: torch.dtype = torch.int64) -> RelationEdges:
    rows = (torch.empty(edges.num_src, 0), torch.empty(edges.num_dst, 0))
    return RelationEdges(edges.src.to(index), edges.dst.to(index), *rows, None)


def frames_of(src: Mapping[str, Tensor], dst: Mapping[str, Tensor], edge: Mapping[str, Tensor]) -> Frames:
    return Frames(src, dst, edge, {}, {}, RELATION)


def case_of(
    edges: EdgeList, feature: tuple[int, ...], dtype: torch.dtype = torch.float64, index: torch.dtype = torch.int64
) -> Case:
    """Fields `x` of sources, `q` and `z` (of no dims) of destinations, `w` (of no dims) and `e` of edges."""
    generator = torch.Generator().manual_seed(7)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    x, q, z = leaf(edges.num_src, *feature), leaf(edges.num_dst, *feature), leaf(edges.num_dst)
    w, e = leaf(edges.src.numel()), leaf(edges.src.numel(), *feature)
    frames = frames_of({"x": x}, {"q": q, "z": z}, {"w": w, "e": e})
    return Case(ends_of(edges, index), frames, (x, q, z, w, e))


def sends(edges: EdgeBatch) -> dict[str, Tensor]:
    """Messages `m` and `n` [edges, *features], `s` [edges]."""
    return {"m": edges.src["x"] * edges.data["e"], "n": edges.src["x"] + edges.dst["q"], "s": edges.data["w"]}


def at_once(case: Case, reduce: Function, message: Function = sends) -> dict[str, Tensor]:
    return reduce_mailboxes(case.ends, case.frames, edge_results(case.ends, case.frames, message, "message"), reduce)


def in_buckets(case: Case, reduce: Function, message: Function = sends) -> dict[str, Tensor]:
    return reduce_in_buckets(case.ends, case.frames, edge_results(case.ends, case.frames, message, "message"), reduce)


def pulled_back(out: Mapping[str, Tensor], leaves: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Gradients of the sum of `out`, weighted at random."""
    generator = torch.Generator().manual_seed(11)
    total: Any = 0.0
    for name in sorted(out):
        if out[name].is_floating_point():
            weight = torch.randn(out[name].shape, generator=generator, dtype=torch.float64).to(out[name].dtype)
            total = total + (out[name] * weight).sum()
    if not leaves or not isinstance(total, Tensor) or not total.requires_grad:
        return (None,) * len(leaves)
    return torch.autograd.grad(total, leaves, allow_unused=True)


def assert_same(got: Mapping[str, Tensor], want: Mapping[str, Tensor], leaves: tuple[Tensor, ...], terms: int) -> None:
    """Values and gradients agree; `terms` is the most that any sum has. No gradient and one of zeros are the same."""
    assert got.keys() == want.keys()
    for name in want:
        assert_close(got[name], want[name], reduction_length=terms, floor=1.0)
    for leaf, a, b in zip(leaves, pulled_back(got, leaves), pulled_back(want, leaves), strict=True):
        a, b = (torch.zeros_like(leaf) if g is None else g for g in (a, b))
        assert_close(a, b, reduction_length=terms, floor=1.0)


def on_sum(nodes: Any) -> dict[str, Any]:
    return {"o": nodes.mailbox["m"].sum(1)}
