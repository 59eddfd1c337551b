"""Messages reduced by an associative function of two values: a balanced tree over the edges of each destination.

It is the tree of `graphweave.ops` (`runtime/tree_rounds.py`). A round is a function on the edges of a graph whose edges
are the pairs that are combined; JAX moves the values that have no partner in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.jax.data import EdgeData
from graphweave.jax.fixed_graph import FixedGraph
from graphweave.runtime.tree_rounds import tree_rounds

PairFunction: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class _Round:
    """Pairs of rows that are combined, rows carried to the next round, and rows that are their destination's value."""

    pairs: FixedGraph | None
    carried: Any
    finished: Any


def pair_reducer(reduce: Any, names: Sequence[str]) -> tuple[PairFunction, float]:
    """`reduce`, checked to be a pair of an associative function of two values and its identity. Raises DataError
    otherwise."""
    if not isinstance(reduce, (tuple, list)) or len(reduce) != 2 or not callable(reduce[0]):
        raise DataError(
            f"reduce must be one of {', '.join(names)}, or a pair (function of two values, identity) (got {reduce!r})."
            " Pass one of these."
        )
    combine, identity = reduce
    if isinstance(identity, bool) or not isinstance(identity, (int, float)):
        raise DataError(
            "reduce must be a pair of a function of two values and its identity, a number "
            f"(got {type(identity).__name__}). Pass what a destination without edges gets."
        )
    return combine, identity


def tree_reduced(messages: Any, graph: FixedGraph, combine: PairFunction, identity: float) -> Any:
    """[edges, ...] -> [destinations, ...], `identity` for destinations without edges."""
    if not (math.isfinite(identity) or jnp.issubdtype(messages.dtype, jnp.floating)):
        raise DataError(
            f"reduce: the identity of messages of {messages.dtype} must be one of their numbers (got {identity})."
            " Pass such a number, or return floating-point messages."
        )
    at, rounds = graph.remembered("tree", lambda: _rounds(graph))
    current, done = messages, []
    for one in rounds:
        made = [] if one.pairs is None else [_combined(current, one.pairs, combine)]
        done.append(_rows(current, one.finished))
        current = jnp.concatenate([*made, _rows(current, one.carried)])
    last = jnp.full((1, *messages.shape[1:]), identity, messages.dtype)
    return jnp.concatenate([*done, last])[at]


def _combined(x: Any, pairs: FixedGraph, combine: PairFunction) -> Any:
    def checked(src: Any, dst: Any, edge: Any) -> Any:
        out = combine(src, dst)
        if getattr(out, "shape", None) != src.shape or out.dtype != src.dtype:
            got = f"{out.dtype} {list(out.shape)}" if hasattr(out, "shape") else type(out).__name__
            raise DataError(
                f"reduce: the function of two values must return what it takes, {src.dtype} {list(src.shape)} "
                f"(got {got}). Return one value for each pair."
            )
        return out

    data = EdgeData(pairs, x, x, None)
    return data.called("reduce", data.traced("reduce", checked), "edge", "auto")


def _rows(x: Any, index: Any) -> Any:
    return x.at[index].get(mode="promise_in_bounds", unique_indices=True)


def _rounds(graph: FixedGraph) -> tuple[Any, tuple[_Round, ...]]:
    """Where each destination's value is found at the end, [destinations], and the rounds."""
    found = [t.numpy() for t in tree_rounds(graph.destinations, graph.num_dst) if isinstance(t, Tensor)]
    rounds, rows = [], graph.num_edges
    for left, right, carried, finished in zip(*(found[1 + i :: 4] for i in range(4)), strict=True):
        rounds.append(_Round(FixedGraph(left, right, rows) if len(left) else None, carried, finished))
        rows = len(left) + len(carried)
    return np.asarray(found[0]), tuple(rounds)
