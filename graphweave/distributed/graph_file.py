"""Graphs in the layouts of docs/data.md, read in pieces: edges, and rows of data, stay in the file until needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive
from graphweave.data.edges import symmetrise
from graphweave.data.machine_memory import check_fits
from graphweave.data.mapped import mapped_archive
from graphweave.data.relational import OTHER_SIZES
from graphweave.data.split import mask_of, random_split
from graphweave.distributed.parts import EDGES, NODES, EdgeType
from graphweave.distributed.row_source import DenseRows, RowSource, SparseRows

_LAYOUT = (
    "src, dst or indptr, dst or edge_index, and num_nodes; or {train,valid,test}_{head,rel,tail} of a knowledge graph; "
    "head, rel and tail of RDF; or node_type_names, node_counts, edge_type_names, edge_NAME_src and edge_NAME_dst of a "
    "typed graph"
)
_REVERSED = "rev_"
"""The reverse of the relation NAME of a typed graph is the relation rev_NAME."""
_SPLITS = ("train", "val", "test")
_SPLIT_SIZE = re.compile(r"train_(\d+)_idx")
_PIECE = 1 << 22
"""Edges that are read at a time where all are read into memory."""


@dataclass(frozen=True, eq=False)
class EdgeStream:
    """The edges of one type. They are the concatenation of `segments`, pairs of arrays of sources and destinations; in
    place of sources, `indptr` may group the edges of one segment by source."""

    name: str
    """The name of the file in messages."""
    num_src: int
    num_dst: int
    segments: tuple[tuple[np.ndarray | None, np.ndarray], ...]
    indptr: np.ndarray | None = None
    data: dict[str, RowSource] = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        """The edges of all segments."""
        return sum(dst.size for _, dst in self.segments)

    def pieces(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Sources and destinations, int64, of the edges in order, at most `size` at a time. DataError for a node that
        there is not."""
        for src, dst in self.segments:
            for begin in range(0, dst.size, size):
                end = min(begin + size, dst.size)
                heads = self._grouped(begin, end) if src is None else _int64(src[begin:end])
                tails = _int64(dst[begin:end])
                self._check(heads, self.num_src, "src")
                self._check(tails, self.num_dst, "dst")
                yield heads, tails

    def _grouped(self, begin: int, end: int) -> Tensor:
        """The sources of edges begin..end-1 of the segment that `indptr` groups."""
        assert self.indptr is not None
        first, last = np.searchsorted(self.indptr, [begin, end], side="right")
        bounds = np.clip(self.indptr[first - 1 : last + 1].astype(np.int64), begin, end)
        return torch.from_numpy(np.repeat(np.arange(first - 1, first - 2 + bounds.size), np.diff(bounds)))

    def _check(self, ends: Tensor, count: int, word: str) -> None:
        if ends.numel() and (int(ends.min()) < 0 or int(ends.max()) >= count):
            bad = ends[(ends < 0) | (ends >= count)]
            raise DataError(
                f"{self.name}: node {int(bad[0])} in '{word}' is out of range: there are {count} nodes."
                " Correct the file."
            )


def joined_pieces(pieces: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Sources and destinations of all pieces, int64."""
    none = torch.empty(0, dtype=torch.int64)
    found = [(none, none), *pieces]
    return torch.cat([src for src, _ in found]), torch.cat([dst for _, dst in found])


@dataclass(frozen=True, eq=False)
class GraphFile:
    """A graph whose edges and data are read in pieces. A graph without types has the types "_N" and ("_N", "_E", "_N").

    `num_classes` is None where there are no labels.
    """

    name: str
    num_nodes: dict[str, int]
    edges: dict[EdgeType, EdgeStream]
    node_data: dict[str, dict[str, RowSource]]
    num_classes: int | None = None

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(stream.num_edges for stream in self.edges.values())


def graph_file(path: str | Path, *, symmetric: bool = False, seed: int = 0) -> GraphFile:
    """The graph of an `.npz` file, or of a folder of `.npy` files with the same names, in a layout of docs/data.md.

    Arrays that are not compressed stay on disk. Features are `feat` (float32), labels `y`, and a split the masks
    `train_mask`, `val_mask` and `test_mask`, drawn 60/20/20 over the labelled nodes by `seed` where the file has labels
    and no split; what the file does not have is left out. RDF and knowledge graphs have one node type, and one edge
    type with the relation of each edge as `etype`, inverse relations behind the others; edges of a knowledge graph are
    its training triples. In a typed graph, the reverse of the relation NAME is the relation rev_NAME. `symmetric` reads
    the edges of a graph without relations into memory, adds their reverses, and drops duplicates and self-loops.

    DataError, as one line that begins with the file's name, for what is missing or wrong.
    """
    file = mapped_archive(path, _LAYOUT)
    typed = "node_type_names" in file
    triples = "head" in file or "train_head" in file
    if symmetric and (typed or triples):
        raise DataError(f"{file.name}: relations have reverses already, without --symmetric. Leave it out.")
    if typed:
        graph = _typed(file, seed)
    elif triples:
        graph = _triples(file, seed)
    else:
        graph = _homogeneous(file, symmetric, seed)
    file.tell_unused(key for key in file.arrays if OTHER_SIZES.fullmatch(key))
    return graph


def _homogeneous(file: Archive, symmetric: bool, seed: int) -> GraphFile:
    num_nodes = file.count("num_nodes", 8)
    dst, src, indptr = _integers(file, "dst"), None, None
    if "src" in file:
        src = _integers(file, "src", dst.size, "'dst'")
    else:
        file.row_lengths("indptr", num_nodes, dst.size)
        indptr = _integers(file, "indptr")
    stream = EdgeStream(file.name, num_nodes, num_nodes, ((src, dst),), indptr)
    if symmetric:
        both = symmetrise(*joined_pieces(stream.pieces(_PIECE)), num_nodes).numpy()
        stream = EdgeStream(file.name, num_nodes, num_nodes, ((both[0], both[1]),))
    rows = _features(file, "feat", num_nodes)
    labels, classes = _labels(file, num_nodes, seed)
    return GraphFile(file.name, {NODES: num_nodes}, {EDGES: stream}, {NODES: {**rows, **labels}}, classes)


def _triples(file: Archive, seed: int) -> GraphFile:
    """RDF, or the training triples of a knowledge graph, with inverse relations."""
    prefix = "" if "head" in file else "train_"
    nodes, rels = file.count("num_nodes", 8), file.count("num_relations")
    head = _integers(file, f"{prefix}head")
    tail = _integers(file, f"{prefix}tail", head.size, f"'{prefix}head'")
    _integers(file, f"{prefix}rel", head.size, f"'{prefix}head'")
    of = file.numbers(f"{prefix}rel", rels, "relation", "the graph").numpy()
    etype = DenseRows(np.concatenate([of, of + rels]), np.dtype(np.int64))
    stream = EdgeStream(file.name, nodes, nodes, ((head, tail), (tail, head)), data={"etype": etype})
    labels, classes = _labels(file, nodes, seed)
    return GraphFile(file.name, {NODES: nodes}, {EDGES: stream}, {NODES: labels}, classes)


def _typed(file: Archive, seed: int) -> GraphFile:
    names, counts = file.texts("node_type_names"), file.integers("node_counts").tolist()
    if len(names) != len(counts) or min(counts, default=-1) < 0 or len({*names}) != len(names):
        raise DataError(
            f"{file.name}: 'node_counts' must be {len(names)} numbers of nodes, one a type (got {counts})."
            " Correct the file."
        )
    count = dict(zip(names, counts, strict=True))
    check_fits(8 * sum(counts), f"{file.name}: 'node_counts' = {counts}")
    edges: dict[EdgeType, EdgeStream] = {}
    for text in file.texts("edge_type_names"):
        parts = text.split("|")
        if len(parts) != 3 or parts[0] not in count or parts[2] not in count:
            raise DataError(
                f"{file.name}: 'edge_type_names' must be source|relation|target, of types {', '.join(count)} (got"
                f" {text!r}). Correct the file."
            )
        source, relation, target = parts
        src = _integers(file, f"edge_{relation}_src")
        dst = _integers(file, f"edge_{relation}_dst", src.size, f"'edge_{relation}_src'")
        name = f"{file.name}: edge_{relation}"
        both = (source, relation, target), (target, _REVERSED + relation, source)
        if any(one in edges for one in both):
            raise DataError(f"{file.name}: 'edge_type_names' has {text!r} or its reverse twice. Rename a relation.")
        edges[both[0]] = EdgeStream(name, count[source], count[target], ((src, dst),))
        edges[both[1]] = EdgeStream(name, count[target], count[source], ((dst, src),))
    rows = {kind: _features(file, f"feat_{kind}", count[kind]) for kind in names}
    if "target" not in file:
        return GraphFile(file.name, count, edges, rows)
    labelled = file.texts("target")[0]
    if labelled not in count:
        raise DataError(
            f"{file.name}: 'target' must be one of {', '.join(names)} (got {labelled!r}). Correct the file."
        )
    labels, classes = _labels(file, count[labelled], seed)
    rows[labelled] |= labels
    return GraphFile(file.name, count, edges, rows, classes)


def _integers(file: Archive, key: str, length: int | None = None, like: str = "") -> np.ndarray:
    """A one-dimensional integer array as it lies in the file, of the `length` of the array called `like`."""
    array = file.need(key)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"{file.name}: {file.named(key)} must be a one-dimensional integer array (got {array.dtype}"
            f" {list(array.shape)}). Correct the file."
        )
    if length is not None and array.size != length:
        raise DataError(
            f"{file.name}: {like} and '{key}' must have one length (got {length} and {array.size}). Correct the file."
        )
    return array


def _int64(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array).astype(np.int64))


def _features(file: Archive, prefix: str, rows: int) -> dict[str, RowSource]:
    """`feat`: the rows of '`prefix`', or of the CSR matrix `prefix`_{indptr,indices,data,shape}; nothing if absent."""
    what = f"{file.name}: features {file.named(prefix)}"
    if prefix in file:
        array = file.need(prefix)
        if array.ndim != 2 or array.shape[0] != rows or array.dtype.kind not in "fiub":
            raise DataError(
                f"{what} must be numbers [{rows}, features] (got {array.dtype} {list(array.shape)}). Correct the file."
            )
        return {"feat": DenseRows(array, np.dtype(np.float32), what)}
    if f"{prefix}_indptr" not in file:
        return {}
    shape = file.integers(f"{prefix}_shape").tolist()
    if len(shape) != 2 or shape[0] != rows or shape[1] < 0:
        raise DataError(f"{file.name}: '{prefix}_shape' must be [{rows}, features] (got {shape}). Correct the file.")
    columns = file.numbers(f"{prefix}_indices", shape[1], "feature column", "the matrix").numpy()
    file.row_lengths(f"{prefix}_indptr", rows, columns.size)
    values = file.real(f"{prefix}_data").numpy()
    if values.ndim != 1 or values.size not in (1, columns.size):
        raise DataError(
            f"{file.name}: '{prefix}_data' must have length {columns.size} or 1 (got {list(values.shape)})."
            " Correct the file."
        )
    indptr = file.integers(f"{prefix}_indptr").numpy()
    return {"feat": SparseRows(indptr, columns, values, (shape[0], shape[1]), what)}


def _labels(file: Archive, rows: int, seed: int) -> tuple[dict[str, RowSource], int | None]:
    """Labels and masks of the split, and the number of classes; nothing and None without labels."""
    if "y" not in file:
        return {}, None
    y = file.labels(rows)
    found: dict[str, RowSource] = {"y": DenseRows(y.numpy(), np.dtype(np.int64))}
    for part, mask in zip(_SPLITS, _masks(file, rows, lambda: random_split(y, seed)), strict=True):
        found[f"{part}_mask"] = DenseRows(mask.numpy(), np.dtype(np.bool_))
    return found, file.num_classes(y)


def _masks(file: Archive, rows: int, otherwise: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The masks of `{train,val,test}_idx`, or of `{train,val,test}_N_idx` for the largest N; val may be absent."""
    sizes = [int(found[1]) for key in file.arrays if (found := _SPLIT_SIZE.fullmatch(key))]
    middle = "" if "train_idx" in file or not sizes else f"{max(sizes)}_"
    if f"train_{middle}idx" not in file:
        return otherwise()
    masks = []
    for part in _SPLITS:
        key = f"{part}_{middle}idx"
        absent = part == "val" and key not in file
        index = torch.empty(0, dtype=torch.int64) if absent else file.numbers(key, rows, "node", "the labelled type")
        masks.append(mask_of(index, rows))
    return tuple(masks)
