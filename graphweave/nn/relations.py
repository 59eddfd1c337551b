"""Functions that relational layers share: a check of types, and edges grouped by destination and relation."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph


def checked_types(name: str, types: Tensor, count: int, of: str) -> Tensor:
    """`types`. Raises DataError unless it holds one integer for each of `count` rows."""
    if types.dim() != 1 or types.is_floating_point() or types.shape[0] != count:
        raise DataError(
            f"{name} must be integers [{count}], one for each of the {of} (got {types.dtype} of shape "
            f"{tuple(types.shape)})."
            " Pass such a tensor."
        )
    return types


def into_pairs(graph: Graph, etypes: Tensor, num_rels: int) -> tuple[Tensor, Tensor]:
    """The P unique pairs (destination, relation) of edges: the number of each edge's pair [E], and how many edges each
    pair has [P].

    P is at most E, since no table of destinations x relations is made. The pairs depend on the graph alone, so compiled
    models make them once for a graph.
    """
    _, dst = graph.edges()
    key = dst.to(torch.int64) * num_rels + etypes
    _, pair, counts = torch.unique(key, return_inverse=True, return_counts=True)
    return pair, counts
