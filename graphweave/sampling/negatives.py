"""Negative edges: pairs of nodes without an edge, drawn uniformly or by degree, each with its exact probability."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.graph.relation import Etype
from graphweave.sampling.hops import allocated, batch_key, checked_nodes, checked_seed, fold_numbers
from graphweave.sampling.undirected import check_pairs
from graphweave.sampling.weighted import weighted_numbers

_ROUNDS = 16
"""Draws by degree that hit an edge are repeated this often, before the nodes that are left are looked at one by one."""


class NegativeSampler:
    """Draws pairs of a source and a destination that no edge of the graph joins.

    Draws are independent, with replacement. A draw is a function of `seed`, `epoch` and what is asked for alone.

    - `by="uniform"`: each pair without an edge is equally likely.
    - `by="degree"`: given the source, a destination has a probability proportional to in-degree^0.75, among those
      without an edge from that source (Mikolov et al., "Distributed Representations of Words and Phrases and their
      Compositionality", 2013, section 2.2). Destinations without edges are never drawn.

    With `filtered=False`, edges are drawn like other pairs.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        etype: Etype | None = None,
        by: Literal["uniform", "degree"] = "uniform",
        filtered: bool = True,
        seed: int = 0,
    ) -> None:
        """`etype`: the relation, if the graph has several. Memory: 16 bytes for each different edge if `filtered`.

        DataError for another `by`, and for more than 2^63 pairs.
        """
        if by not in ("uniform", "degree"):
            raise DataError(f"expected by='uniform' or 'degree' (got {by!r}). Pass one of these.")
        start, _, end = key = graph.to_canonical_etype(etype)
        self._num_src, self._num_dst = graph.num_nodes(start), graph.num_nodes(end)
        check_pairs(self._num_src, self._num_dst)
        src, dst = (ends.cpu().long() for ends in graph.all_edges(etype=key))
        pairs = (src * self._num_dst + dst).unique() if filtered else torch.empty(0, dtype=torch.int64, device="cpu")
        self._pairs = pairs
        self._missing = pairs - torch.arange(pairs.numel(), device="cpu")  # pairs without an edge before each edge
        self._weights = torch.bincount(dst, minlength=self._num_dst).double() ** 0.75 if by == "degree" else None
        self._seed = checked_seed(seed)

    def pairs(self, count: int, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """(sources, destinations), int64 [count] each. By degree, sources are uniform. DataError if every pair is an
        edge, or there is no node, and for a count that is no number of pairs."""
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 1 << 63:
            raise DataError(f"count must be an integer, 0 or above, of 64 bits (got {count!r}). Pass such a number.")
        bounds = allocated(count, what=f"{count} pairs", do="a smaller count")
        generator = self._generator(epoch, torch.tensor([count], device="cpu"))
        if self._weights is not None:
            src = _below(bounds.fill_(self._num_src), generator, "source nodes")
            return src, self._by_degree(src, generator)
        free = self._num_src * self._num_dst - self._pairs.numel()
        found = self._numbered(_below(bounds.fill_(free), generator, "pairs without an edge"))
        return found // self._num_dst, found % self._num_dst

    def destinations(self, src: Tensor, k: int, epoch: int = 0) -> Tensor:
        """int64 [sources, k]: destinations to which src[i] has no edge. DataError if one of the sources has an edge to
        every node that could be drawn, and for a `k` that is no positive integer; IndexRangeError for a source out of
        range."""
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k < 1 << 63:
            raise DataError(f"k must be a positive integer of 64 bits (got {k!r}). Pass such a number.")
        nodes = checked_nodes(src, self._num_src, "src")
        generator = self._generator(epoch, nodes)
        rows = allocated(nodes.numel(), k, what=f"{nodes.numel()} sources with {k} destinations each", do="a smaller k")
        rows = rows.copy_(nodes[:, None]).view(-1)
        if self._weights is not None:
            return self._by_degree(rows, generator).view(-1, k)
        first = torch.searchsorted(self._pairs, rows * self._num_dst)
        last = torch.searchsorted(self._pairs, (rows + 1) * self._num_dst)
        free = self._num_dst - (last - first)
        found = _below(free, generator, "destinations without an edge") + rows * self._num_dst - first
        return (self._numbered(found) % self._num_dst).view(-1, k)

    def _generator(self, epoch: int, asked: Tensor) -> torch.Generator:
        return torch.Generator().manual_seed(fold_numbers(batch_key(self._seed, epoch, [asked]), [asked.numel()]))

    def _numbered(self, rank: Tensor) -> Tensor:
        """The pairs without an edge that have these ranks among all pairs without an edge, by number."""
        return rank + torch.searchsorted(self._missing, rank, right=True)

    def _is_edge(self, src: Tensor, dst: Tensor) -> Tensor:
        if self._pairs.numel() == 0:
            return torch.zeros_like(src, dtype=torch.bool)
        wanted = src * self._num_dst + dst
        at = torch.searchsorted(self._pairs, wanted).clamp(max=self._pairs.numel() - 1)
        return self._pairs[at] == wanted

    def _by_degree(self, src: Tensor, generator: torch.Generator) -> Tensor:
        assert self._weights is not None
        out = torch.empty_like(src)
        left = torch.arange(src.numel(), device="cpu")
        for _ in range(_ROUNDS):
            out[left] = _weighted(self._weights, left.numel(), generator)
            left = left[self._is_edge(src[left], out[left])]
            if left.numel() == 0:
                return out
        everyone = torch.arange(self._num_dst, device="cpu")
        for row in left.tolist():
            free = self._weights.where(~self._is_edge(src[row].expand(self._num_dst), everyone), 0)
            out[row] = _weighted(free, 1, generator)[0]
        return out


def _below(bounds: Tensor, generator: torch.Generator, of: str) -> Tensor:
    """Uniform integers below each of the bounds. DataError for a bound of 0."""
    if bounds.numel() and int(bounds.min()) <= 0:
        raise DataError(f"a negative edge was asked for where there are no {of}. Leave it out, or pass filtered=False.")
    most = (1 << 63) - 1
    drawn = torch.randint(most, bounds.shape, generator=generator, device="cpu")
    while bool((again := drawn >= most // bounds * bounds).any()):  # so that each remainder is equally likely
        drawn[again] = torch.randint(most, (int(again.sum()),), generator=generator, device="cpu")
    return drawn % bounds


def _weighted(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """int64 [count]: positions drawn with probabilities proportional to `weights`. DataError if all are 0."""
    if not count:
        return torch.empty(0, dtype=torch.int64, device="cpu")
    found = weighted_numbers(weights, count, generator)
    if found is None:
        raise DataError(
            "a negative edge was asked for where no destination with edges is left. Leave it out, or take by='uniform'."
        )
    return found
