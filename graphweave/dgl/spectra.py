"""Numbers of nodes from matrices of the whole graph: eigenvectors, singular vectors, and returns of random walks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.batch import unbatch
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import one_relation


def laplacian_lambda_max(g: DGLGraph) -> list[float]:
    """The largest eigenvalue of I - D^-1/2 A D^-1/2 of each graph of a batch. D holds in-degrees, at least 1."""
    graphs = unbatch(g) if g.batch_size > 1 else [g]
    return [float(np.linalg.eigvals(_laplacian(one)).real.max()) for one in graphs]


def laplacian_pe(g: DGLGraph, k: int, padding: bool = False, return_eigval: bool = False) -> Any:
    """The eigenvectors of the k smallest eigenvalues but the first of I - D^-1/2 A D^-1/2, float32 [N, k].

    The sign of each is arbitrary. A graph of N nodes has N - 1 of them: with `padding` further columns are 0, and
    further eigenvalues NaN; without it, DataError. With `return_eigval`, also the eigenvalues [k]. Source: Dwivedi et
    al., "Benchmarking Graph Neural Networks", section 3.3.
    """
    num = g.num_nodes()
    if k >= num and not padding:
        raise DataError(
            f"laplacian_pe: a graph of {num} nodes has {num - 1} such vectors (got k = {k}). Pass padding=True."
        )
    values, vectors = np.linalg.eig(_laplacian(g))
    values, vectors = values.real, vectors.real
    order = np.argsort(values)[1 : k + 1]
    shape = (num, max(k - len(order), 0))
    pe = torch.from_numpy(np.concatenate([vectors[:, order], np.zeros(shape)], axis=1)).float().to(g.device)
    if not return_eigval:
        return pe
    found = np.concatenate([values[order], np.full(shape[1], np.nan)])
    return pe, torch.from_numpy(found).float().to(g.device)


lap_pe = laplacian_pe


def random_walk_pe(g: DGLGraph, k: int, eweight_name: str | None = None) -> Tensor:
    """The chance that a random walk from a node is back after 1 to k steps, float32 [N, k].

    A step takes each outgoing edge with the same chance, or in proportion to the field `eweight_name`. Source: Dwivedi
    et al., "Graph Neural Networks with Learnable Structural and Positional Representations", section 3.
    """
    walk = _dense(g, eweight_name)
    walk = walk / walk.sum(1, keepdims=True).clip(min=np.finfo(np.float64).tiny)
    found, power = [], np.eye(len(walk))
    for _ in range(k):
        power = power @ walk
        found.append(power.diagonal().copy())
    return torch.from_numpy(np.stack(found, axis=1) if k else np.zeros((len(walk), 0))).float().to(g.device)


def svd_pe(g: DGLGraph, k: int, padding: bool = False, random_flip: bool = True) -> Tensor:
    """The left and right singular vectors of A times the roots of the k largest singular values, float32 [N, 2k].

    With `random_flip` the sign of each pair is random. With `padding` columns beyond the N-th are 0; without it,
    DataError for k > N. Source: Hussain et al., "Global Self-Attention as a Replacement for Graph Convolution", section
    3.
    """
    num = g.num_nodes()
    if k > num and not padding:
        raise DataError(f"svd_pe: a graph of {num} nodes has {num} singular values (got k = {k}). Pass padding=True.")
    left, values, right = np.linalg.svd(_dense(g, None))
    most = min(k, num)
    root = np.sqrt(values[:most])
    pairs = np.stack([left[:, :most] * root, right[:most].T * root])
    if random_flip:
        pairs = pairs * np.random.default_rng(int(torch.randint(2**31, ()))).choice([-1.0, 1.0], (1, 1, most))
    pairs = np.pad(pairs, ((0, 0), (0, 0), (0, k - most)))
    return torch.from_numpy(np.concatenate([pairs[0], pairs[1]], axis=1)).float().to(g.device)


def _dense(g: DGLGraph, eweight_name: str | None) -> np.ndarray:
    """The numbers, or sums of weights, of edges from u to v: float64 [N, N] at (u, v)."""
    r = one_relation(g, "positions in a graph")
    out = np.zeros((g.num_nodes(), g.num_nodes()))
    weight = 1.0 if eweight_name is None else g.edge_frames[r.key][eweight_name].double().reshape(-1).cpu().numpy()
    np.add.at(out, (r.src.cpu().numpy(), r.dst.cpu().numpy()), weight)
    return out


def _laplacian(g: DGLGraph) -> np.ndarray:
    adjacency = _dense(g, None)
    root = adjacency.sum(0).clip(min=1) ** -0.5
    out: np.ndarray = np.eye(len(adjacency)) - root[:, None] * adjacency * root
    return out
