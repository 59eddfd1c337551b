"""What layers over edges of several relations share: types of edges, and edges that agree in destination and type."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph


def checked_types(name: str, types: Tensor, count: int, of: str) -> Tensor:
    """`types`, if it is one integer for each of `count` rows; else DataError."""
    if types.dim() != 1 or types.is_floating_point() or types.shape[0] != count:
        raise DataError(
            f"{name} must be integers [{count}], one for each of the {of} (got {types.dtype} of shape "
            f"{tuple(types.shape)})."
            " Pass such a tensor."
        )
    return types


def into_pairs(graph: Graph, etypes: Tensor, num_rels: int) -> tuple[Tensor, Tensor]:
    """Edges grouped by (destination, relation), of which there are P: (number of the pair of each edge [E], edges of
    each pair [P]).

    P is at most E: no table of destinations x relations is made. It depends on the graph alone, so in compiled models
    it is made once for a graph.
    """
    _, dst = graph.edges()
    key = dst.to(torch.int64) * num_rels + etypes
    _, pair, counts = torch.unique(key, return_inverse=True, return_counts=True)
    return pair, counts
