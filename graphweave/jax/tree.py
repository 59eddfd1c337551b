"""Messages reduced by an associative function of two values: a balanced tree over the edges of each destination.

It is the tree of `graphweave.ops` (`runtime/tree_rounds.py`). A round is a function on the edges of a graph whose edges
are the pairs that are combined; JAX moves the values that have no partner in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from torch import Tensor

from graphweave.core.edge_functions import PairFunction, check_identity, check_pairs
from graphweave.core.errors import DataError
from graphweave.jax.data import EdgeData
from graphweave.jax.fixed_graph import FixedGraph
from graphweave.jax.traced_graph import TracedGraph
from graphweave.runtime.tree_rounds import tree_rounds


@dataclass(frozen=True, slots=True)
class _Round:
    """Pairs of rows that are combined, rows carried to the next round, and rows that are their destination's value."""

    pairs: FixedGraph | None
    carried: Any
    finished: Any


def tree_reduced(messages: Array, graph: FixedGraph | TracedGraph, combine: PairFunction, identity: float) -> Array:
    """[edges, ...] -> [destinations, ...], `identity` for destinations without edges."""
    if isinstance(graph, TracedGraph):
        raise DataError(
            f"reduce must be a name where JAX traces the edges (got {combine!r}): the tree in which a function of two"
            " values combines messages is made of edges that are known. Close over the graph."
        )
    check_identity(identity, messages.dtype, jnp.issubdtype(messages.dtype, jnp.floating))
    at, rounds = graph.remembered("tree", lambda: _rounds(graph))
    current, done = messages, []
    for one in rounds:
        made = [] if one.pairs is None else [_combined(current, one.pairs, combine)]
        done.append(_rows(current, one.finished))
        current = jnp.concatenate([*made, _rows(current, one.carried)])
    last = jnp.full((1, *messages.shape[1:]), identity, messages.dtype)
    return jnp.concatenate([*done, last])[at]


def _combined(x: Array, pairs: FixedGraph, combine: PairFunction) -> Array:
    def checked(src: Array, dst: Array, edge: Array) -> Array:
        return check_pairs(combine(src, dst), src)

    data = EdgeData(pairs, x, x, None)
    return data.called("reduce", data.traced("reduce", checked), "edge", "auto")


def _rows(x: Array, index: Array) -> Array:
    return x.at[index].get(mode="promise_in_bounds", unique_indices=True)


def _rounds(graph: FixedGraph) -> tuple[Any, tuple[_Round, ...]]:
    """Where each destination's value is found at the end, [destinations], and the rounds."""
    found = [t.numpy() for t in tree_rounds(graph.destinations, graph.num_dst) if isinstance(t, Tensor)]
    rounds, rows = [], graph.num_edges
    for left, right, carried, finished in zip(*(found[1 + i :: 4] for i in range(4)), strict=True):
        rounds.append(_Round(FixedGraph(left, right, rows) if len(left) else None, carried, finished))
        rows = len(left) + len(carried)
    return np.asarray(found[0]), tuple(rounds)
