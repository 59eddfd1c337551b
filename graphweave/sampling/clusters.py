"""Batches of clusters: a graph is partitioned once, and a batch is some of its parts with all edges between them."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.whole_file import written_whole
from graphweave.graph.graph import Graph
from graphweave.sampling.hops import checked_nodes, checked_seed, fold_numbers
from graphweave.sampling.induced import Whole, whole
from graphweave.sampling.partition import found_clusters
from graphweave.sampling.undirected import undirected_of

if TYPE_CHECKING:
    from torch_geometric.data import Data

_UNREADABLE = (OSError, ValueError, TypeError, LookupError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error)
"""Errors of NumPy and of the archive for files that are damaged."""


class Partition(NamedTuple):
    """Which cluster each node belongs to."""

    labels: Tensor
    """int64 [num_nodes], below the number of clusters."""
    method: str
    """"metis" or "labels"."""


class ClusterSampler:
    """Induced subgraphs of clusters (Chiang et al., "Cluster-GCN: An Efficient Algorithm for Training Deep and Large
    Graph Convolutional Networks", 2019, section 3.2).

    The nodes are partitioned into clusters of about equal size with few edges between them. A batch of q clusters is
    the subgraph of their nodes, with the edges between different clusters of the batch. It takes the place of PyG's
    `ClusterData` and of DGL's `ClusterGCNSampler`:

        sampler = ClusterSampler(data, 1_000, path="clusters.npz")
        for batch in DataLoader(data, torch.arange(1_000), sampler, batch_size=20, shuffle=True):
            ...

    Clusters are METIS's where `pymetis` is installed, else those of multilevel label propagation; both are functions of
    the graph and of `seed`. A cluster may be empty where there are hardly more nodes than clusters.
    """

    def __init__(
        self,
        graph: Graph | Data,
        num_clusters: int,
        *,
        method: str | None = None,
        seed: int = 0,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """`graph`: a PyG `Data`, or a `Graph` of one relation, on the CPU; batches are of the same type. `method`:
        "metis", "labels" (label propagation), or None for the first of them that is installed. `path`: a file (.npz)
        that keeps the partition; it is read if it exists, and written if it does not.

        DataError for a graph that has fewer nodes than clusters, for another `method`, and for a file that is damaged,
        or of another graph, number of clusters or method.
        """
        self._whole: Whole = whole(graph)
        num_nodes = self._whole.num_nodes
        if not isinstance(num_clusters, int) or isinstance(num_clusters, bool) or not 1 <= num_clusters <= num_nodes:
            raise DataError(
                f"num_clusters must be an integer from 1 to the number of nodes, {num_nodes} (got {num_clusters!r})."
                " Pass such a number."
            )
        checked_seed(seed)
        kept = None if path is None else Path(path)
        if kept is not None and kept.exists():
            found = _read(kept, self._whole, num_clusters, method)
        else:
            joined = undirected_of(self._whole.src, self._whole.dst, num_nodes)
            found = Partition(*found_clusters(joined, num_clusters, method, seed))
            if kept is not None:
                _write(kept, self._whole, num_clusters, found)
        self.graph, self.num_clusters, self.method = graph, num_clusters, found.method
        self.labels = found.labels
        """int64 [num_nodes]: the cluster of each node."""
        self._order = found.labels.argsort(stable=True)
        self._begins = [0, *torch.bincount(found.labels, minlength=num_clusters).cumsum(0).tolist()]

    @property
    def edge_cut(self) -> int:
        """The number of edges that join different clusters."""
        src, dst = self._whole.src.long(), self._whole.dst.long()
        return int((self.labels[src] != self.labels[dst]).sum())

    def nodes(self, cluster: int) -> Tensor:
        """int64 [k]: the nodes of a cluster, in rising order."""
        return self._order[self._begins[cluster] : self._begins[cluster + 1]]

    def sample(self, clusters: object, epoch: int = 0) -> Any:
        """The batch of the distinct `clusters`, int64 [q]: their nodes, cluster after cluster, and every edge of the
        graph that joins two of these, sorted by destination.

        A `Data` has the rows of all attributes of nodes and of edges, masks of splits among them, `n_id` and `e_id`; a
        `Graph` has the rows of all fields, and numbers in the graph as the field "_ID". `epoch` changes nothing.

        DataError for no clusters and for duplicates, IndexRangeError for one that there is not.
        """
        chosen = checked_nodes(clusters, self.num_clusters, "clusters")
        if chosen.unique().numel() != chosen.numel():
            raise DataError(f"clusters must be different (got {chosen.tolist()}). Pass each one once.")
        return self._whole.subgraph(torch.cat([self.nodes(c) for c in chosen.tolist()]))


def _identity(of: Whole) -> int:
    """A number that depends on the number of nodes and on every edge."""
    sizes = [of.num_nodes, of.src.numel()]
    return fold_numbers(fold_numbers(fold_numbers(0, sizes), of.src.long()), of.dst.long())


def _digest(labels: Tensor, num_clusters: int, method: str) -> str:
    words = f"{num_clusters} {method} ".encode()
    return hashlib.sha256(words + labels.numpy().astype("<i8").tobytes()).hexdigest()


def _write(path: Path, of: Whole, num_clusters: int, found: Partition) -> None:
    content: dict[str, Any] = {
        "labels": found.labels.numpy(), "num_clusters": np.int64(num_clusters), "method": np.str_(found.method),
        "graph": np.int64(_identity(of)), "sha256": np.str_(_digest(found.labels, num_clusters, found.method)),
    }  # fmt: skip
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, **content)


def _read(path: Path, of: Whole, num_clusters: int, method: str | None) -> Partition:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            names = ("labels", "num_clusters", "method", "graph", "sha256")
            labels, k, how, graph, digest = (file[name] for name in names)
            of_graph, fine = int(graph), labels.dtype == np.int64 and not any(one.ndim for one in (k, how, digest))
            whole = fine and str(digest) == _digest(torch.from_numpy(labels), int(k), str(how))
    except _UNREADABLE as error:
        raise DataError(f"{path} holds no partition, or is damaged ({error}). Delete it, or name another.") from error
    if not whole:
        raise DataError(f"{path} is damaged: its digest is not that of its content. Delete it, or name another file.")
    if of_graph != _identity(of) or labels.shape != (of.num_nodes,):
        raise DataError(
            f"{path} holds a partition of another graph, which has {labels.size} nodes (got a graph of"
            f" {of.num_nodes} nodes and {of.src.numel()} edges). Delete it, or name another file."
        )
    if int(k) != num_clusters or method not in (None, str(how)):
        raise DataError(
            f"{path} holds {int(k)} clusters of method {str(how)!r} (asked for {num_clusters} of method"
            f" {method or 'any'!r}). Delete it, or name another file."
        )
    found = torch.from_numpy(labels)
    if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < num_clusters:
        raise DataError(f"{path} is damaged: it has clusters beyond {num_clusters}. Delete it, or name another file.")
    return Partition(found, str(how))
