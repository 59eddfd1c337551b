"""GraphSAINT: subgraphs of drawn nodes, and the coefficients that make training on them unbiased."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.build import graph as graph_of
from graphweave.graph.graph import Graph
from graphweave.sampling.hops import allocated, batch_key, checked_seed, fold_numbers
from graphweave.sampling.induced import Whole, edges_between, whole
from graphweave.sampling.undirected import check_pairs
from graphweave.sampling.walks import RandomWalker

if TYPE_CHECKING:
    from torch_geometric.data import Data

Mode = Literal["node", "edge", "walk"]

_MODES = ("node", "edge", "walk")
_ESTIMATE = 1 << 33
"""The number that keys of presampled batches fold in."""
_LOST = 1e-12
"""A probability that is smaller than this, relative to the numbers of which it is a difference, is 0."""


class SAINTSampler:
    """Induced subgraphs of the nodes that are drawn at random (Zeng et al., "GraphSAINT: Graph Sampling Based Inductive
    Learning Method", 2020, section 3.4 and algorithm 2). Draws are with replacement.

    - `mode="node"`: `budget` nodes, with a probability proportional to the squared norm of the node's column of the
      mean-normalised adjacency with self-loops: (1 + indegree(u))^-2 + sum over edges u -> v of (1 + indegree(v))^-2.
    - `mode="edge"`: both ends of `budget` edges u -> v, with a probability proportional to
      1 / outdegree(u) + 1 / indegree(v). Nodes without edges are never drawn.
    - `mode="walk"`: all nodes of the walks along outgoing edges that begin at `budget[0]` uniform nodes and take
      `budget[1]` steps each. A walk ends at a node from which no edge leads on.

    With p(v) and p(e) the probabilities that a batch contains node v and both ends of edge e, a batch has

    - `node_norm` [nodes]: 1 / (num_nodes p(v)). The sum of node_norm(v) loss(v) over a batch has the mean loss of all
      nodes as its expectation (equation 2 of section 3.2; the paper's 1 / lambda).
    - `edge_norm` [edges]: p(v) / p(u -> v) at an edge u -> v (the paper's 1 / alpha). Given that v is in the batch, the
      sum of edge_norm(e) m(e) over the incoming edges in the batch has that over all incoming edges as its expectation.

    Both are 0 where a batch never contains the node or the edge. They are exact for nodes and edges. For walks,
    frequencies in presampled batches estimate p, as in the paper's algorithm 1 and in PyG's GraphSAINT samplers.
    """

    def __init__(
        self,
        graph: Graph | Data,
        mode: Mode,
        budget: int | tuple[int, int],
        *,
        norms: Literal["exact", "estimated"] | None = None,
        coverage: int = 50,
        seed: int = 0,
    ) -> None:
        """`graph`: a PyG `Data`, or a `Graph` of one relation, on the CPU. `norms`: how p is found; None for "exact"
        where there is a formula, which walks have not. "estimated" draws batches until they have `coverage` nodes for
        each node of the graph; a node or edge that none of them has counts as seen once.

        DataError for another `mode`, `budget`, `norms` or `coverage`, and for a graph without nodes, or without edges
        to draw.
        """
        self._whole: Whole = whole(graph)
        self.graph, self._mode, self._seed = graph, _checked_mode(mode, self._whole), checked_seed(seed)
        self._budget, self._length = _checked_budget(mode, budget)
        if not isinstance(coverage, int) or isinstance(coverage, bool) or coverage < 1:
            raise DataError(f"coverage must be a positive integer (got {coverage!r}). Pass for example 50.")
        if norms not in (None, "exact", "estimated") or (norms == "exact" and mode == "walk"):
            raise DataError(
                f"expected norms='estimated', or for nodes and edges 'exact' (got {norms!r} for mode {mode!r})."
                " Pass one of these, or None."
            )
        self._src, self._dst = self._whole.src.long(), self._whole.dst.long()
        self._shares = self._probabilities() if mode != "walk" else torch.empty(0, device="cpu")
        self._sums = self._shares.cumsum(0)
        pair = (self._src, self._dst)
        self._walker = (
            RandomWalker(graph_of(pair, num_nodes=self._whole.num_nodes), seed=seed) if mode == "walk" else None
        )
        estimated = norms == "estimated" or mode == "walk"
        of_nodes, of_edges = self._estimated(coverage) if estimated else self._exact()
        self.node_norm = _inverse(of_nodes * self._whole.num_nodes)
        """float64 [num_nodes]"""
        self.edge_norm = of_nodes[self._dst] * _inverse(of_edges)
        """float64 [num_edges]"""
        self._fields = {"node_norm": self.node_norm.float()}, {"edge_norm": self.edge_norm.float()}

    def sample(self, numbers: object, epoch: int = 0) -> Any:
        """A batch as a function of `seed`, `epoch` and the integers `numbers` [k]: the drawn nodes in rising order and
        every edge between two of them, sorted by destination.

        A `Data` has the rows of all attributes, `n_id`, `e_id`, `node_norm` and `edge_norm`; a `Graph` those of all
        fields, "_ID", `ndata["node_norm"]` and `edata["edge_norm"]`. Coefficients are float32. DataError for no
        numbers, and for others than integers.
        """
        given = torch.as_tensor(numbers)
        if not given.numel() or given.is_floating_point() or given.is_complex():
            raise DataError(
                f"numbers: expected integers, one at least (got {numbers!r}). Pass the number of the batch."
            )
        nodes = self._drawn(batch_key(self._seed, epoch, [given.long()]))
        return self._whole.subgraph(nodes, *self._fields)

    def _drawn(self, key: int) -> Tensor:
        """int64 [k]: the different nodes of a batch, in rising order."""
        generator = torch.Generator().manual_seed(fold_numbers(key, [0]))
        allocated(self._budget, what=f"a batch of {self._budget} draws", do="a smaller budget")
        if self._walker is not None:
            roots = torch.randint(self._whole.num_nodes, (self._budget,), generator=generator, device="cpu")
            found = self._walker.walk(roots, self._length, epoch=key)[0].reshape(-1)
            return found[found >= 0].unique()
        at = torch.rand(self._budget, generator=generator, dtype=torch.float64, device="cpu") * self._sums[-1]
        drawn = torch.searchsorted(self._sums, at, right=True).clamp(max=self._sums.numel() - 1)
        return (drawn if self._mode == "node" else torch.cat([self._src[drawn], self._dst[drawn]])).unique()

    def _probabilities(self) -> Tensor:
        """float64 [num_nodes] or [num_edges]: the probability of each at one draw."""
        count = self._whole.num_nodes
        indegree = torch.bincount(self._dst, minlength=count).double()
        if self._mode == "node":
            share = (1 + indegree) ** -2
            weights = share + torch.bincount(self._src, share[self._dst], minlength=count)
        else:
            outdegree = torch.bincount(self._src, minlength=count).double()
            weights = 1 / outdegree[self._src] + 1 / indegree[self._dst]
        return weights / weights.cumsum(0)[-1]  # in order, unlike a sum, whose bits depend on the number of threads

    def _exact(self) -> tuple[Tensor, Tensor]:
        """float64 [num_nodes] and [num_edges]: the probabilities that a batch has each node, and both ends of each
        edge. By inclusion and exclusion, from the probabilities that one draw has the nodes."""
        src, dst, count, share = self._src, self._dst, self._whole.num_nodes, self._shares
        if self._mode == "node":
            one, both = share, torch.zeros(src.numel(), dtype=torch.float64, device="cpu")
        else:
            ends = torch.bincount(src, share, minlength=count) + torch.bincount(dst, share, minlength=count)
            one = ends - torch.bincount(src, share * (src == dst), minlength=count)
            check_pairs(count, count)
            pairs, place = (torch.minimum(src, dst) * count + torch.maximum(src, dst)).unique(return_inverse=True)
            both = torch.bincount(place, share, minlength=pairs.numel())[place]
        of_nodes = self._ever(one)
        together = of_nodes[src] + of_nodes[dst]
        of_edges = together - self._ever(one[src] + one[dst] - both)
        of_edges = of_edges.where(of_edges > _LOST * together, 0)
        return of_nodes, of_edges.where(src != dst, of_nodes[dst])

    def _ever(self, once: Tensor) -> Tensor:
        """The probability that something happens at one draw of a batch at least, if it does at one with `once`."""
        return -torch.expm1(self._budget * torch.log1p(-once.clamp(max=1)))

    def _estimated(self, coverage: int) -> tuple[Tensor, Tensor]:
        """Like `_exact`, but estimated: shares of presampled batches."""
        count = self._whole.num_nodes
        nodes = torch.zeros(count, dtype=torch.int64, device="cpu")
        edges = torch.zeros(self._src.numel(), dtype=torch.int64, device="cpu")
        batches = seen = 0
        while seen < coverage * count:
            drawn = self._drawn(fold_numbers(self._seed, [_ESTIMATE, batches]))
            with self._whole.numbering.of(drawn) as numbers:
                found = edges_between(self._whole.grouped, numbers, drawn).edge
            nodes[drawn] += 1
            edges[found] += 1
            batches, seen = batches + 1, seen + drawn.numel()
        return nodes.clamp(min=1).double() / batches, edges.clamp(min=1).double() / batches


def _inverse(values: Tensor) -> Tensor:
    """1 / values, 0 where that is infinite."""
    return (1 / values).where(values > 0, 0)


def _checked_mode(mode: Any, of: Whole) -> Mode:
    if mode not in _MODES:
        raise DataError(f"expected mode 'node', 'edge' or 'walk' (got {mode!r}). Pass one of these.")
    if not of.num_nodes or (mode == "edge" and not of.src.numel()):
        what = "edges" if of.num_nodes else "nodes"
        raise DataError(f"mode {mode!r}: the graph has no {what} to draw. Pass a graph that has some.")
    found: Mode = mode
    return found


def _checked_budget(mode: str, budget: Any) -> tuple[int, int]:
    """The number of draws, and the length of walks (0 in other modes)."""
    numbers = (budget, 1) if mode != "walk" else budget
    whole_numbers = isinstance(numbers, tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
    if not whole_numbers or len(numbers) != 2 or min(numbers) < 1 or max(numbers) >= 1 << 63:
        wanted = "a tuple (roots, length) of positive integers" if mode == "walk" else "a positive integer"
        wanted += " of 64 bits"
        raise DataError(f"budget of mode {mode!r} must be {wanted} (got {budget!r}). Pass such a budget.")
    return numbers[0], numbers[1] if mode == "walk" else 0
