"""The limits of `row_needs.py` as numbers, on one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphweave.analysis.cones import map_type
from graphweave.analysis.row_limits import Least, Limit, Most, Reach, RowsOf
from graphweave.core.types import Space
from graphweave.execute.region_step import Format, RegionStep
from graphweave.execute.row_needs import StepLimit
from graphweave.ir.message.nodes import Program, Ref
from graphweave.lower.parameters import Perm
from graphweave.runtime import formats
from graphweave.runtime.edge_subsets import edges_at, index_below, largest_reached
from graphweave.runtime.index import Index
from graphweave.runtime.long_rows import LONG, PRODUCTS


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a kernel computes on a graph."""

    rows: int | None
    """Rows below it; None for all."""

    edges: tuple[Ref, int] | None
    """A map, and the row below which it sends the edges that are walked; None for all edges."""

    zeros: tuple[tuple[int, int, int], ...]
    """Outputs by position, each with the range of rows that are set to zero."""


@dataclass(frozen=True, slots=True)
class Within:
    """The bounds of a kernel, and the indices of all maps that tell them."""

    bounds: Bounds
    index: Mapping[Ref, Index]

    def rows(self, count: int) -> int:
        return count if self.bounds.rows is None else min(count, self.bounds.rows)

    def chunks(self, chunks: Tensor) -> Tensor:
        """The row boundaries of `chunks` below the bound, and the bound."""
        last = int(chunks[-1])
        end = self.rows(last)
        if end == last:
            return chunks
        below = chunks[: int(torch.searchsorted(chunks, end))]
        ends = torch.tensor([end])
        return torch.cat([below, ends]) if below.numel() else torch.zeros(2, dtype=torch.int64)

    def edges(self, walked: Ref, wide: bool) -> WalkedEdges | None:
        """The edges that a kernel walks along `walked`, if they are not all.

        They are chosen by the limit on rows where a row may be long, since rows behind the limit must not be divided.
        """
        if self.bounds.edges is not None:
            return WalkedEdges(*self.bounds.edges, walked, self.index, wide, whole=True)
        if self.bounds.rows is None or formats.csr(self.index[walked], wide).max_degree <= LONG // PRODUCTS:
            return None
        return WalkedEdges(walked, self.bounds.rows, walked, self.index, wide, whole=False)


@dataclass(frozen=True, slots=True)
class WalkedEdges:
    """The edges that the map `by` sends to a row below `below`. `of` has indices of all edges."""

    by: Ref
    below: int
    walked: Ref
    of: Mapping[Ref, Index]
    wide: bool
    whole: bool
    """Whether long rows stay whole."""

    def index(self, program: Program, maps: Iterable[Ref]) -> dict[Ref, Index]:
        """The indices of `maps`, on these edges alone where they are indices of edges."""
        space, by = map_type(program, self.walked).dom, self.of[self.by]
        return {
            m: index_below(by, self.below, self.of[m], self.wide) if map_type(program, m).dom == space else self.of[m]
            for m in maps
        }

    def placed(self, binding: Format, found: Tensor, index: Mapping[Ref, Index]) -> Tensor:
        """A format that was made of `index`, in which edges have the numbers of all edges."""
        if not isinstance(binding, Perm) or binding.map != self.walked:
            return found
        return edges_at(self.of[self.by], self.below, index[self.walked], self.wide)


def bounds_on_graph(
    limits: Mapping[int, StepLimit], steps: Sequence[RegionStep], count: Mapping[Space, int], index: Mapping[Ref, Index]
) -> dict[int, Bounds]:
    """The bounds of each of the `steps` that has limits. `index` has the maps that tell them."""
    known = _Numbers(count, index, any(one.wide for one in index.values()))
    return {i: _bounds(limit, steps[i], known) for i, limit in limits.items()}


def _bounds(limit: StepLimit, step: RegionStep, known: _Numbers) -> Bounds:
    rows = None if limit.rows is None else min(known.of(limit.rows), known.count[step.spaces[0]])
    edges = None if limit.edges is None else (limit.edges.map, known.below(limit.edges.map, limit.edges.below))
    zeros: list[tuple[int, int, int]] = []
    for ref, upto in limit.zeros:
        end = known.count[step.spaces[0]]
        end = end if upto is None else min(end, known.of(upto))
        if rows is not None and rows < end:
            zeros.append((step.writes.index(ref), rows, end))
    return Bounds(rows, edges, tuple(zeros))


@dataclass
class _Numbers:
    """Limits on a graph, each computed once."""

    count: Mapping[Space, int]
    index: Mapping[Ref, Index]
    wide: bool
    found: dict[Limit, int] = field(default_factory=dict)

    def of(self, limit: Limit) -> int:
        if limit not in self.found:
            self.found[limit] = self._computed(limit)
        return self.found[limit]

    def below(self, m: Ref, limit: Limit) -> int:
        """The limit on rows to which the map leads."""
        return min(self.of(limit), self.index[m].rows)

    def _computed(self, limit: Limit) -> int:
        match limit:
            case RowsOf(space):
                return self.count[space]
            case Most(of):
                return max(map(self.of, of), default=0)
            case Least(of):
                return min(map(self.of, of))
            case Reach(walked, to, below):
                return largest_reached(self.index[walked], self.below(walked, below), self.index[to], self.wide)
