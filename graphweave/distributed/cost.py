"""The cost of a training step over parts: bytes on the wire, memory and time of each rank (docs/distributed.md).

A step runs L layers over the whole graph, forward and backward. Layer l of widths w[l-1] -> w[l] exchanges halo rows of
the narrower of its input and its product with the weights, m[l] = min(w[l-1], w[l]). Forward, a rank receives
halo * m[l] values and sends `sent` * m[l]; backward it is the other way round. If the first layer exchanges its inputs
(w[0] <= w[1]), these rows travel once, not in each step, and have no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from graphweave.core.errors import DataError

_INDEX_BYTES = 16
"""Bytes of an edge's index: two int64 numbers."""
_FORMAT_BYTES = 12
"""Bytes that kernels make of an edge's index: int32 columns by destination, columns and positions by source."""


@dataclass(frozen=True)
class RankLoad:
    """The counts of rows and edges that one rank owns, reads and sends."""

    num_own: int
    num_halo: int
    num_sent: int
    """Rows that other ranks read, once for each of them."""
    num_edges: int
    num_peers: int
    """Ranks that it receives rows from or sends rows to, whichever are more."""


@dataclass(frozen=True)
class Model:
    """The layers of a model: `widths` [L + 1] are those of its features, and `value_bytes` the size of a value."""

    widths: tuple[int, ...]
    value_bytes: int = 4

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise DataError(f"widths must be at least two numbers above 0 (got {list(self.widths)}). Pass such.")

    @property
    def exchanged(self) -> tuple[int, ...]:
        """The width m[l] of the rows that each layer exchanges."""
        return tuple(min(pair) for pair in pairwise(self.widths))

    @property
    def inputs_travel_once(self) -> bool:
        """Whether the first layer exchanges its inputs, which do not change."""
        return self.widths[0] <= self.widths[1]

    @property
    def every_step(self) -> tuple[int, ...]:
        """The widths of the exchanges of each step."""
        return self.exchanged[self.inputs_travel_once :]

    @property
    def num_weights(self) -> int:
        """Values of all weight matrices, of one matrix and a bias a layer."""
        return sum(a * b + b for a, b in pairwise(self.widths))


@dataclass(frozen=True)
class Cluster:
    """Speeds: `bandwidth` in bytes a second that a rank can send, and as many receive; `latency` in seconds a message;
    `edge_seconds` that one rank takes for a step of the model, for each edge."""

    bandwidth: float
    latency: float
    edge_seconds: float


@dataclass(frozen=True)
class RankCost:
    """The cost of a step for one rank. Bytes forward are received; as many are sent backward, as gradients."""

    forward_bytes: int
    """Received forward: halo * sum of m[l] * bytes of a value."""
    backward_bytes: int
    """Received backward, from the ranks that read rows of this one: sent * sum of m[l] * bytes of a value."""
    once_bytes: int
    """Received before the first step."""
    memory: int
    """Bytes: see `memory_of`."""
    compute: float
    """Seconds: edges * edge_seconds."""
    communication: float
    """Seconds: see `communication_of`."""


@dataclass(frozen=True)
class StepCost:
    """The cost of a step on all ranks together."""

    ranks: tuple[RankCost, ...]
    one_rank: float
    """Seconds of a step on one rank that had all edges."""

    @property
    def compute(self) -> float:
        """Seconds of the rank that computes longest."""
        return max(rank.compute for rank in self.ranks)

    @property
    def communication(self) -> float:
        """Seconds of the rank that communicates longest."""
        return max(rank.communication for rank in self.ranks)

    @property
    def in_turn(self) -> float:
        """Seconds of a step in which no communication is hidden behind computation."""
        return self.compute + self.communication

    @property
    def hidden(self) -> float:
        """Seconds of a step in which all of the smaller is hidden behind the larger."""
        return max(self.compute, self.communication)

    def speedup(self, seconds: float) -> float:
        """How many times faster than one rank a step of so many seconds is; 0 where there is nothing to do."""
        return self.one_rank / seconds if seconds else 0.0


def step_cost(loads: Sequence[RankLoad], model: Model, cluster: Cluster) -> StepCost:
    """The cost of a step over parts of these loads."""
    each = sum(model.every_step) * model.value_bytes
    once = model.widths[0] * model.value_bytes * model.inputs_travel_once
    ranks = tuple(
        RankCost(
            load.num_halo * each,
            load.num_sent * each,
            load.num_halo * once,
            memory_of(load, model),
            load.num_edges * cluster.edge_seconds,
            communication_of(load, len(loads), model, cluster),
        )
        for load in loads
    )
    return StepCost(ranks, sum(load.num_edges for load in loads) * cluster.edge_seconds)


def memory_of(load: RankLoad, model: Model) -> int:
    """Bytes of a rank: its features, for each edge the index and what kernels make of it, and for each layer what it
    exchanges (own and halo rows) and its result (own rows), both with their gradients."""
    rows = load.num_own * model.widths[0]
    for exchanged, out in zip(model.exchanged, model.widths[1:], strict=True):
        rows += 2 * ((load.num_own + load.num_halo) * exchanged + load.num_own * out)
    return rows * model.value_bytes + load.num_edges * (_INDEX_BYTES + _FORMAT_BYTES)


def communication_of(load: RankLoad, num_parts: int, model: Model, cluster: Cluster) -> float:
    """Seconds of a rank's exchanges in both directions, and of the sum of the weights' gradients over all ranks.

    An exchange takes max(received, sent) bytes / bandwidth, and the latency of a message to each peer. The sum is a
    ring's: 2 (P - 1) / P of the weights' bytes, in 2 (P - 1) messages (Patarasuk and Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", 2009).
    """
    rows = max(load.num_halo, load.num_sent)
    values = 2 * rows * sum(model.every_step) + 2 * (num_parts - 1) / num_parts * model.num_weights
    messages = 2 * load.num_peers * len(model.every_step) + 2 * (num_parts - 1)
    return values * model.value_bytes / cluster.bandwidth + messages * cluster.latency


def random_halo(degrees: np.ndarray, counts: np.ndarray, num_parts: int) -> float:
    """The expected halo rows of a part where nodes are given to parts at random: the sum over nodes v of
    (1 - 1/P) (1 - (1 - 1/P)^d(v)), for d(v) edges that leave v. `counts` nodes have each of the `degrees`."""
    away = 1 - 1 / num_parts
    return float((counts * away * -np.expm1(degrees * np.log1p(-1 / num_parts))).sum()) if num_parts > 1 else 0.0


def power_law(num_nodes: float, mean_degree: float, exponent: float, max_degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Degrees 1..max_degree and how many nodes have each, in proportion to (d + shift)^-exponent, where the shift is
    the one that gives the mean."""
    degrees = np.arange(1, max_degree + 1, dtype=np.float64)
    low, high = 0.0, float(max_degree)
    for _ in range(60):
        shift = (low + high) / 2
        share = (degrees + shift) ** -exponent
        share /= share.sum()
        low, high = (shift, high) if (degrees * share).sum() < mean_degree else (low, shift)
    return degrees, num_nodes * share
