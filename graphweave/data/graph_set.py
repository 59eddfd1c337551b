"""Sets of small graphs with a target for each graph: classes, or several numbers of which some may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.log import logger
from graphweave.data.archive import Archive, read_archive
from graphweave.data.node_data import check_edges, check_features
from graphweave.data.split import random_split
from graphweave.data.usual_names import FEATURES

_log = logger(__name__)

_CATEGORIES = ("node_label", "atom_feat")
"""Arrays whose columns are categories of nodes."""

LAYOUT = "src, dst or edge_index, num_nodes, graph_ptr or batch, and y of a set of graphs"


class GraphBatch(NamedTuple):
    """Some graphs as one: `x` [N, F], `edge_index` [2, E], `graph` [N] the number of each node's graph within the
    batch, `y` [G] or [G, T]."""

    x: Tensor
    edge_index: Tensor
    graph: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs side by side: graph i has the nodes from graph_ptr[i] to graph_ptr[i + 1], and the edges between these.

    `x` [N, F] floating. `edge_index` [2, E] int64, sorted by graph. `y` is [G] int64 in 0..num_classes-1, or
    [G, T] floating with NaN for what was not measured, and then `num_classes` is 0. The masks are [G] bool.
    """

    x: Tensor
    edge_index: Tensor
    graph_ptr: Tensor
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    name: str

    @property
    def num_graphs(self) -> int:
        return self.graph_ptr.numel() - 1

    @property
    def num_targets(self) -> int:
        """Numbers that a model has to predict for each graph."""
        return self.num_classes or self.y.size(1)

    @property
    def is_binary(self) -> bool:
        """Whether every target that is known is 0 or 1, so that it is a probability that is predicted."""
        known = self.y[~self.y.isnan()] if not self.num_classes else self.y
        return not self.num_classes and bool(((known == 0) | (known == 1)).all())

    @cached_property
    def _edge_ptr(self) -> Tensor:
        """Graph i has the edges from _edge_ptr[i] to _edge_ptr[i + 1]."""
        return torch.searchsorted(self.edge_index[0].contiguous(), self.graph_ptr)

    def batch(self, graphs: Tensor) -> GraphBatch:
        """The graphs with the numbers `graphs` [B], in this order."""
        nodes, edge_index, number = take_graphs(self.graph_ptr, self._edge_ptr, self.edge_index, graphs)
        return GraphBatch(self.x[nodes], edge_index, number, self.y[graphs])


def take_graphs(ptr: Tensor, edge_ptr: Tensor, edge_index: Tensor, graphs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nodes of some graphs in their order, edges by their places among these, and the number of each one's graph
    among `graphs`. Graph i has the nodes from ptr[i] to ptr[i + 1], and the edges between the same of edge_ptr."""
    sizes, counts = ptr.diff()[graphs], edge_ptr.diff()[graphs]
    nodes, edges = _ranges(ptr[graphs], sizes), _ranges(edge_ptr[graphs], counts)
    shift = (sizes.cumsum(0) - sizes - ptr[graphs]).repeat_interleave(counts)
    return nodes, edge_index[:, edges] + shift, torch.arange(graphs.numel()).repeat_interleave(sizes)


def _ranges(first: Tensor, counts: Tensor) -> Tensor:
    """first[i], first[i] + 1, ... up to counts[i] of them, one range after the other."""
    begins = counts.cumsum(0) - counts
    return torch.arange(int(counts.sum())) + (first - begins).repeat_interleave(counts)


def graph_set(path: str | Path, *, seed: int = 0) -> GraphSet:
    """A set of graphs from a file of named arrays, read without pickle.

    `src`, `dst`, `num_nodes`, and `graph_ptr` [G + 1]: graph i has the nodes from graph_ptr[i] to graph_ptr[i + 1].
    Features: numbers in `node_attr` or `feat`, and categories in `node_label` or in the columns of `atom_feat`, each as
    one column for each category; the degree if there are none. Targets: integers `y` [G], or numbers `y` [G] or [G, T],
    NaN where unknown. The graphs are split 60/20/20 at random, seeded by `seed`, unless the file has `train_idx`,
    `val_idx` and `test_idx`. DataError for anything else.
    """
    return graph_set_of(read_archive(path, LAYOUT), seed=seed)


def graph_set_of(file: Archive, *, seed: int = 0) -> GraphSet:
    """The set of graphs of named arrays, as `graph_set` reads it."""
    file.need("dst")
    num_nodes = file.count("num_nodes")
    ends = [file.numbers(key, num_nodes, "node", "the graph") for key in ("src", "dst")]
    if ends[0].numel() != ends[1].numel():
        raise DataError(
            f"{file.name}: 'src' and 'dst' must have one length (got {ends[0].numel()} and {ends[1].numel()})."
            " Correct the file."
        )
    y, num_classes = _targets(file)
    sizes = file.row_lengths("graph_ptr", y.size(0), num_nodes)
    graph = torch.arange(y.size(0)).repeat_interleave(sizes)
    if bool((graph[ends[0]] != graph[ends[1]]).any()):
        raise DataError(f"{file.name}: an edge joins two graphs of 'graph_ptr'. Correct the file.")
    edge_index = torch.stack(ends)[:, ends[0].argsort(stable=True)]
    x = _features(file, edge_index, num_nodes)
    check_features(file.name, x)
    check_edges(file.name, edge_index, num_nodes)
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    drawn = random_split(torch.zeros(y.size(0), dtype=torch.int64), seed)
    masks = file.split(y.size(0), "graph", "the file", drawn)
    file.tell_unused()
    return GraphSet(x, edge_index, ptr, y, *masks, num_classes, file.name)


def _targets(file: Archive) -> tuple[Tensor, int]:
    array = file.need("y")
    if array.ndim not in (1, 2) or array.size == 0:
        raise DataError(
            f"{file.name}: 'y' must be [graphs] or [graphs, targets] (got {list(array.shape)}). Correct the file."
        )
    if array.ndim == 1 and array.dtype.kind in "iu":
        y = file.labels(array.shape[0])
        if int(y.min()) < 0:
            raise DataError(f"{file.name}: every graph needs a class (got {int(y.min())}). Correct the file.")
        classes = file.num_classes(y)
        if int(y.max()) >= classes:
            raise DataError(
                f"{file.name}: class {int(y.max())} in 'y' is out of range: there are {classes} classes."
                " Correct the file."
            )
        return y, classes
    return file.real("y").reshape(array.shape[0], -1), 0


def _features(file: Archive, edge_index: Tensor, num_nodes: int) -> Tensor:
    numbers = [x for key in ("node_attr", "feat") if (x := file.features(key, num_nodes)) is not None]
    columns = []
    for key in _CATEGORIES:
        if key in file:
            found = file.real(key).long()
            columns += list(found.reshape(num_nodes, -1).unbind(1)) if found.numel() else []
    for column in columns:
        places = column.unique(return_inverse=True)[1]
        numbers.append(F.one_hot(places).float())
    if not numbers:
        _log.warning(
            "%s: no features were found (looked for %s), so the degree is the only feature of each node.",
            file.name, ", ".join(map(repr, ("node_attr", *FEATURES, *_CATEGORIES))),
        )  # fmt: skip
        numbers = [torch.bincount(edge_index[1], minlength=num_nodes).float().unsqueeze(1)]
    return torch.cat(numbers, 1)
