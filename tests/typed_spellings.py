"""Rows times the matrix of their type, in every way that people write it, and graphs of edges with types for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graphweave import ops
from graphweave.analysis.typed import is_typed
from graphweave.compiler.report import Report
from graphweave.core.types import UNIT
from graphweave.ir.message.nodes import Gram, MapType, MatMul, Program, Type
from graphweave.ir.message.parse import parse


class TypedEdges(NamedTuple):
    """`src`, `dst` and `etype` of each edge, int64 [E]; one of `types` types, of which some may have no edges."""

    name: str
    nodes: int
    types: int
    src: Tensor
    dst: Tensor
    etype: Tensor


def typed_edges() -> Iterator[TypedEdges]:
    generator = torch.Generator().manual_seed(3)

    def some(edges: int, nodes: int, types: int, name: str) -> TypedEdges:
        src, dst = (torch.randint(nodes, (edges,), generator=generator) for _ in range(2))
        return TypedEdges(name, nodes, types, src, dst, torch.randint(types, (edges,), generator=generator))

    usual = some(40, 9, 4, "usual")
    yield usual
    yield some(0, 5, 3, "no edges")
    yield some(1, 4, 5, "one edge")
    yield some(30, 8, 1, "one type")
    yield usual._replace(name="empty types", types=6, etype=usual.etype % 2 * 3 + 1)
    yield some(6, 7, 6, "one edge a type")._replace(etype=torch.tensor([3, 0, 5, 1, 4, 2]))
    nearly = torch.full((40,), 2)
    nearly[[3, 31]] = torch.tensor([0, 3])
    yield usual._replace(name="nearly all of one type", etype=nearly)
    once = some(8, 5, 3, "once")
    again = [x.repeat(4) for x in (once.src, once.etype)]
    yield TypedEdges("duplicate pairs", 5, 3, again[0], torch.randint(5, (32,), generator=generator), again[1])
    yield some(700, 50, 474, "more types than rows of most")
    yield some(2000, 90, 1345, "many types")._replace(dst=torch.randint(90, (2000,), generator=generator) // 30)
    yield some(3000, 40, 3, "many rows of few types")


GRAPHS = tuple(typed_edges())


@dataclass(frozen=True)
class Spelling:
    """`rows(x, w, src, etype)` gives the typed rows of the edges, x and w being of the shapes behind N and R."""

    rows: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    x: Callable[[int, int], tuple[int, ...]] = lambda k, j: (k,)
    w: Callable[[int, int], tuple[int, ...]] = lambda k, j: (k, j)
    heads: int = 1

    def tensors(self, graph: TypedEdges, k: int, j: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(8)
        shapes = ((graph.nodes, *self.x(k, j)), (graph.types, *self.w(k, j)))
        x, w = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        return x, w

    def layer(self) -> Callable[..., Tensor]:
        """Messages, and their sum in each row."""

        def run(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, etype: Tensor) -> Tensor:
            rows = self.rows(x, w, src, etype).flatten(1)
            return x.new_zeros(x.size(0), rows.size(1)).index_add(0, dst, rows)

        return run


def _flat(gather: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def rows(x: Tensor, w: Tensor, src: Tensor, etype: Tensor) -> Tensor:
        matrices = gather(w.view(w.size(0), -1), etype).view(-1, w.size(1), w.size(2))
        return torch.bmm(x[src].unsqueeze(1), matrices).squeeze(1)

    return rows


def _turned_shape(k: int, j: int) -> tuple[int, ...]:
    return j, k


_TURNED: dict[str, Any] = {"w": _turned_shape}
_HEADS: dict[str, Any] = {"x": lambda k, j: (3, k), "w": lambda k, j: (3, k, j), "heads": 3}

SPELLINGS: dict[str, Spelling] = {
    "bmm": Spelling(lambda x, w, s, t: torch.bmm(x[s].unsqueeze(1), w[t]).squeeze(1)),
    "matmul": Spelling(lambda x, w, s, t: (x[s].unsqueeze(-2) @ w[t]).squeeze(-2)),
    "einsum": Spelling(lambda x, w, s, t: torch.einsum("ek,ekj->ej", x[s], w[t])),
    "einsum-heads": Spelling(lambda x, w, s, t: torch.einsum("ehk,ehkj->ehj", x[s], w[t]), **_HEADS),
    "einsum-blocks": Spelling(
        lambda x, w, s, t: torch.einsum("abcd,acde->ace", x[s].view(-1, 1, w.size(1), w.size(2)), w[t]),
        x=lambda k, j: (3 * k,), w=lambda k, j: (3, k, j), heads=3,
    ),
    "matmul-heads": Spelling(lambda x, w, s, t: (x[s].unsqueeze(2) @ w[t]).squeeze(2), **_HEADS),
    "summed": Spelling(lambda x, w, s, t: (x[s][:, :, None] * w[t]).sum(1)),
    "summed-matrix-first": Spelling(lambda x, w, s, t: (w[t] * x[s][:, None, :]).sum(-1), **_TURNED),
    "matrix-first": Spelling(lambda x, w, s, t: (w[t] @ x[s].unsqueeze(-1)).squeeze(-1), **_TURNED),
    "matrix-first-turned": Spelling(lambda x, w, s, t: (w[t].mT @ x[s][..., None])[..., 0]),
    "turned-rows": Spelling(lambda x, w, s, t: torch.bmm(x[s][:, None], w[t].mT)[:, 0], **_TURNED),
    "turned-weights": Spelling(lambda x, w, s, t: torch.bmm(x[s][:, None], w.mT[t])[:, 0], **_TURNED),
    "index_select": Spelling(
        lambda x, w, s, t: torch.bmm(x.index_select(0, s).unsqueeze(1), w.index_select(0, t)).squeeze(1)
    ),
    "flat-index_select": Spelling(_flat(lambda w, t: w.index_select(0, t))),
    "flat-index": Spelling(_flat(lambda w, t: w[t])),
    "flat-embedding": Spelling(_flat(lambda w, t: functional.embedding(t, w))),
    "gather_mm": Spelling(lambda x, w, s, t: ops.gather_mm(x[s], w, idx_b=t)),
    "gather_mm-heads": Spelling(lambda x, w, s, t: ops.gather_mm(x[s], w, idx_b=t), **_HEADS),
    "scaled": Spelling(lambda x, w, s, t: torch.bmm((x[s] * x[s][:, :1]).unsqueeze(1), w[t]).squeeze(1)),
}  # fmt: skip


def programs_of(report: Report) -> list[Program]:
    return [parse(graph.ir) for graph in report.graphs]


def assert_no_matrices_of_edges(report: Report, elements: int) -> None:
    """Programs have typed products, forward and backward; no value but those of types, and what all share, has rows of
    as many as `elements` numbers; nothing of that is left to PyTorch."""
    kinds = {type(n) for p in programs_of(report) for r, n in enumerate(p.nodes) if is_typed(p, r)}
    assert kinds & {MatMul}
    assert Gram in kinds
    assert_no_wide_rows_of_edges(report, elements)


def assert_no_wide_rows_of_edges(report: Report, elements: int) -> None:
    programs = programs_of(report)
    assert programs and not report.eager
    for program in programs:
        maps = {m for n in program.nodes if isinstance(n, MatMul | Gram) and (m := n.map) is not None}
        types = {t.cod for m in maps if isinstance(t := program.types[m], MapType)}
        wide = [
            f"%{r}: {t}"
            for r, t in enumerate(program.types)
            if isinstance(t, Type) and t.space != UNIT and t.space not in types and prod(t.shape) >= elements
        ]
        assert not wide, wide
    left = [f.what for graph in report.graphs for f in graph.fallbacks if f.what.startswith("aten.")]
    assert not left, left
