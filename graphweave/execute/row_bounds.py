"""The limits of `row_needs.py` as numbers, on one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.analysis.cones import map_type
from graphweave.core.types import Space
from graphweave.execute.region_step import Format, RegionStep
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.tape.limits import Least, Limit, Most, Reach, RowsOf, StepLimit
from graphweave.lower.parameters import Perm
from graphweave.runtime import formats
from graphweave.runtime.edge_subsets import edges_at, index_below, largest_reached
from graphweave.runtime.index import Index
from graphweave.runtime.long_rows import LONG, PRODUCTS


@dataclass(frozen=True, slots=True)
class Bounds:
    """The rows and edges that a kernel computes on a graph."""

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
        ends = torch.tensor([end], device="cpu")
        return torch.cat([below, ends]) if below.numel() else torch.zeros(2, dtype=torch.int64, device="cpu")

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


class LimitTable:
    """The limits of some kernels as a list of numbers to compute, each limit once and after those that it needs."""

    def __init__(self, limits: Mapping[int, StepLimit], steps: Sequence[RegionStep]) -> None:
        """`limits` are those of `steps`, by position."""
        self._order: list[Limit] = []
        self._at: dict[Limit, int] = {}
        self._steps = [
            (
                i, steps[i].spaces[0], self._add(limit.rows),
                None if limit.edges is None else (limit.edges.map, self._add(limit.edges.below)),
                [(steps[i].writes.index(ref), self._add(upto)) for ref, upto in limit.zeros],
            )
            for i, limit in limits.items()
        ]  # fmt: skip

    def _add(self, limit: Limit | None) -> int | None:
        """The position of a limit in the list."""
        if limit is None or limit in self._at:
            return None if limit is None else self._at[limit]
        match limit:
            case Reach(below=below):
                self._add(below)
            case Most(of) | Least(of):
                for one in of:
                    self._add(one)
        self._at[limit] = len(self._order)
        self._order.append(limit)
        return self._at[limit]

    def on_graph(self, count: Mapping[Space, int], index: Mapping[Ref, Index]) -> dict[int, Bounds]:
        """The bounds of each of the kernels. `index` has the maps that tell them."""
        numbers: list[int] = []
        for limit in self._order:
            numbers.append(self._number(limit, numbers, count, index))
        out: dict[int, Bounds] = {}
        for i, space, at, chosen, zeros in self._steps:
            every = count[space]
            rows = None if at is None else min(numbers[at], every)
            edges = None
            if chosen is not None and chosen[1] is not None:
                edges = chosen[0], min(numbers[chosen[1]], index[chosen[0]].rows)
            ends = [(w, every if upto is None else min(every, numbers[upto])) for w, upto in zeros]
            out[i] = Bounds(rows, edges, tuple((w, rows, end) for w, end in ends if rows is not None and rows < end))
        return out

    def _number(
        self, limit: Limit, numbers: Sequence[int], count: Mapping[Space, int], index: Mapping[Ref, Index]
    ) -> int:
        match limit:
            case RowsOf(space):
                return count[space]
            case Most(of):
                return max((numbers[self._at[x]] for x in of), default=0)
            case Least(of):
                return min(numbers[self._at[x]] for x in of)
            case Reach(walked, to, below):
                by, other = index[walked], index[to]
                limit_on_rows = min(numbers[self._at[below]], by.rows)
                return largest_reached(by, limit_on_rows, other, by.wide or other.wide)
