"""Shortest walks: `shortest_dist`, `double_radius_node_labeling`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import one_relation


def shortest_dist(g: DGLGraph, root: int | None = None, return_paths: bool = False) -> Any:
    """The number of edges of a shortest walk from `root` to each node, int64 [N]; from each node to each, [N, N],
    without a root. -1 where there is none.

    With `return_paths`, also the numbers of such a walk's edges, int64 [..., longest], with -1 behind them.
    """
    from scipy.sparse import csgraph  # SciPy takes long to load

    r = one_relation(g, "shortest_dist")
    num = g.num_nodes()
    if root is not None and not 0 <= root < num:
        raise DataError(f"shortest_dist: expected a root below {num} (got {root}). Pass one of the nodes.")
    found, before = csgraph.shortest_path(
        g.adj_external(scipy_fmt="csr"), unweighted=True, return_predecessors=True, indices=root
    )
    found = np.where(np.isinf(found), -1, found).astype(np.int64)
    dist = torch.from_numpy(found).to(g.device)
    if not return_paths:
        return dist
    numbers = {
        (int(u), int(v)): e for e, (u, v) in reversed(list(enumerate(zip(r.src.tolist(), r.dst.tolist(), strict=True))))
    }
    paths = np.full((*found.shape, max(int(found.max(initial=0)), 0)), -1, dtype=np.int64)
    for at in np.argwhere(found > 0):
        row, node = at[:-1], int(at[-1])
        for step in range(int(found[tuple(at)]) - 1, -1, -1):
            previous = int(before[(*row, node)])
            paths[(*at, step)] = numbers[previous, node]
            node = previous
    return dist, torch.from_numpy(paths).to(g.device)


def double_radius_node_labeling(g: DGLGraph, src: int, dst: int) -> Tensor:
    """A label for each node of its distances to two nodes, int64 [N], for edges taken both ways.

    With the distance a to `src`, measured without `dst`, the distance b to `dst`, measured without `src`, and d = a +
    b: 1 + min(a, b) + (d // 2) (d // 2 + d % 2 - 1). Both nodes have label 1, nodes that one of them does not reach 0.
    Source: Zhang and Chen, "Link Prediction Based on Graph Neural Networks", section 4.2.
    """
    from scipy.sparse import csgraph  # SciPy takes long to load

    matrix = g.adj_external(scipy_fmt="csr")

    def without(gone: int, root: int) -> np.ndarray:
        left = np.delete(np.arange(g.num_nodes()), gone)
        place = int(np.flatnonzero(left == root)[0])
        found = np.full(g.num_nodes(), np.inf)
        found[left] = csgraph.shortest_path(matrix[left][:, left], directed=False, unweighted=True, indices=place)
        return found

    a, b = without(dst, src), without(src, dst)
    d = a + b
    reached = np.isfinite(d)
    whole = np.where(reached, d, 0).astype(np.int64)
    least = np.where(reached, np.minimum(a, b), 0).astype(np.int64)
    label = np.where(reached, 1 + least + (whole // 2) * (whole // 2 + whole % 2 - 1), 0)
    label[[src, dst]] = 1
    return torch.from_numpy(label).to(g.device)
