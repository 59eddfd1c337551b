"""Writes the parts of a graph to disk, with memory for a piece of the edges and a few numbers a node."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.mapped import mapped_array
from graphweave.distributed import marks
from graphweave.distributed.array_file import ArrayFile, write_array
from graphweave.distributed.graph_file import EdgeStream, GraphFile
from graphweave.distributed.manifest import (
    MANIFEST,
    NODE_ARRAYS,
    PART,
    PART_FILES,
    PARTITION,
    Manifest,
    StoredArray,
    StoredPart,
    digest_of,
    part_folder,
    write_manifest,
)
from graphweave.distributed.marks import MARK
from graphweave.distributed.methods import METHODS, READ_ALL_EDGES, assigned, stretches
from graphweave.distributed.numbers import Ownership, SourceNumbers, ownership, part_nodes, readers
from graphweave.distributed.parts import EdgeType
from graphweave.distributed.row_source import RowSource
from graphweave.distributed.spill import Buckets, sorted_rows

PIECE = 1 << 22
"""Edges that are read and sorted at a time by default; about 100 bytes of memory for each."""
_MOST_PARTS = 1 << 31
"""Numbers of parts have 32 bits in native code."""
_DATA_BYTES = 1 << 26
"""Bytes of rows of data that are copied at a time, about."""
_SPILL, _SPILLED = ".spill", "folder of a partition for the time of its writing"
"""A folder next to the parts for files that are deleted again, and what its mark says."""
_OURS = re.compile(rf"{re.escape(MANIFEST)}(\.\d+\.part)?|{re.escape(MARK)}")
"""Files in the folder of a partition, even of an unfinished one."""
_PART_NAME = re.compile(r"part_\d+")


def write_partition(
    graph: GraphFile, num_parts: int, folder: str | Path, *, method: str = "metis", seed: int = 0, piece: int = PIECE
) -> Manifest:
    """Partitions a graph and writes each part into a folder of its own, and the manifest last, whole.

    The parts are those of `parts_of` for the same owners. `folder` is new or empty, or holds a partition, even an
    unfinished one, which is replaced; nothing else is ever deleted (`marks.py`). `piece`: edges that are read and
    sorted at a time. Memory is about 100 bytes for each of these, 40 bytes a node and 24 for each relation into it;
    METIS also reads all edges.

    DataError for an unknown method, fewer parts than 1, another folder, and what is wrong in the graph's file.
    """
    folder = Path(folder)
    if num_parts >= _MOST_PARTS:
        raise DataError(f"num_parts must be below {_MOST_PARTS} (got {num_parts}). Pass a smaller number.")
    if num_parts < 1 or piece < 1:
        raise DataError(f"num_parts and piece must be at least 1 (got {num_parts} and {piece}). Pass such numbers.")
    if method not in METHODS:
        raise DataError(f"method must be one of {', '.join(METHODS)} (got {method!r}). Pass one of these.")
    _make_room(folder)
    try:
        degrees = _in_degrees(graph, piece)
        totals = {kind: _total(of, graph.num_nodes[kind]) for kind, of in _by_target(graph, degrees).items()}
        owners = assigned(graph, totals, num_parts, method, seed, piece, folder / _SPILL)
        reading = readers(_edges(graph, piece), owners)
        owned = {kind: ownership(owner, num_parts, reading[kind]) for kind, owner in owners.items()}
        manifest = _PartWriter(graph, owned, degrees, folder, piece).write(method, seed)
    finally:
        shutil.rmtree(folder / _SPILL, ignore_errors=True)
    write_manifest(folder, manifest)
    return manifest


def _make_room(folder: Path) -> None:
    """Leaves the folder with nothing but its mark and an empty `_SPILL`. DataError if it holds something that is not of
    a partition that was written here; then nothing is deleted."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} must be a folder (got a file). Name another.")
    there = sorted(folder.iterdir()) if folder.exists() else []
    why = next(filter(None, map(_not_of_a_partition, there)), None)
    if why is None and there and not marks.is_marked(folder, PARTITION):
        why = f"{there[0].name} in it, and no file {MARK} that says that it is a partition"
    if why is not None:
        raise DataError(f"{folder} must be new, or hold a partition (got {why}). Name another folder.")
    (folder / MANIFEST).unlink(missing_ok=True)  # first, so that a reader never sees it with new parts
    for path in there:
        if path.name == _SPILL:
            shutil.rmtree(path)
        elif _PART_NAME.fullmatch(path.name):
            marks.remove(path, PART, PART_FILES)
        elif path.name != MARK:
            path.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    if not there:
        marks.mark(folder, PARTITION)
    (folder / _SPILL).mkdir()
    marks.mark(folder / _SPILL, _SPILLED)


def _not_of_a_partition(path: Path) -> str | None:
    """Why `path`, which lies in a folder, must not be deleted; None for what the folder of a partition holds."""
    if path.name == _SPILL:
        return None if marks.is_marked(path, _SPILLED) else f"{path.name} without a file {MARK} in it"
    if _PART_NAME.fullmatch(path.name):
        return marks.not_ours(path, PART, PART_FILES)
    return None if _OURS.fullmatch(path.name) and path.is_file() else f"{path.name} in it"


def _in_degrees(graph: GraphFile, piece: int) -> dict[EdgeType, Tensor]:
    """The number of edges into each node, int64 [destinations] by edge type."""
    found = {}
    for name, stream in graph.edges.items():
        found[name] = torch.zeros(stream.num_dst, dtype=torch.int64)
        for _, dst in stream.pieces(piece):
            found[name] += torch.bincount(dst, minlength=stream.num_dst)
    return found


def _edges(graph: GraphFile, piece: int) -> Iterator[tuple[EdgeType, Tensor, Tensor]]:
    for name, stream in graph.edges.items():
        for src, dst in stream.pieces(piece):
            yield name, src, dst


def _by_target(graph: GraphFile, degrees: dict[EdgeType, Tensor]) -> dict[str, list[Tensor]]:
    return {kind: [of for name, of in degrees.items() if name[2] == kind] for kind in graph.num_nodes}


def _total(degrees: list[Tensor], num_nodes: int) -> Tensor:
    return sum(degrees, torch.zeros(num_nodes, dtype=torch.int64))


class _PlacedEdges:
    """The edges of one type, sorted into stretches of destinations; each stretch is of one part."""

    def __init__(self, stream: EdgeStream, owned: tuple[Ownership, Ownership], degrees: Tensor, piece: int) -> None:
        self.stream, (self._sources, self._destinations) = stream, owned
        by_place = degrees[self._destinations.order]
        self._indptr = torch.zeros(degrees.numel() + 1, dtype=torch.int64)
        self._indptr[1:] = by_place.cumsum(0)
        begins = torch.tensor(self._destinations.begins)
        self._bounds = torch.cat([begins, stretches(by_place, piece)]).unique()
        self._piece = piece

    def sort(self, spill: Path | None) -> None:
        """Reads all edges. They lie in `spill`, a new folder, or for None in memory."""
        self._buckets = Buckets(self._bounds.numel() - 1, 3, spill)
        first = 0
        for src, dst in self.stream.pieces(self._piece):
            place = self._destinations.place[dst]
            bucket = torch.bucketize(place, self._bounds[1:], right=True)
            ids = torch.arange(first, first + dst.numel())
            self._buckets.add(bucket, self._sources.place[src], place, ids)
            first += dst.numel()

    def num_edges(self, rank: int) -> int:
        """The edges into a part's nodes."""
        begin, end = self._destinations.begins[rank : rank + 2]
        return int(self._indptr[end] - self._indptr[begin])

    def of_part(self, rank: int) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """In order of destination, pieces of a part's edges: the first one's position among them, places of sources,
        places of destinations, numbers of edges. Each piece comes once."""
        begin, end = self._destinations.begins[rank : rank + 2]
        of_part = torch.searchsorted(self._bounds, torch.tensor([begin, end])).tolist()
        for number in range(*of_part):
            src, dst, ids = sorted_rows(self._buckets.take(number), 1)
            yield int(self._indptr[self._bounds[number]] - self._indptr[begin]), src, dst, ids


class _PartWriter:
    """Writes the parts of `graph`, whose nodes `owned` gives to the ranks."""

    def __init__(
        self,
        graph: GraphFile,
        owned: dict[str, Ownership],
        degrees: dict[EdgeType, Tensor],
        folder: Path,
        piece: int,
    ) -> None:
        self._graph, self._owned, self._folder, self._piece = graph, owned, folder, piece
        self._num_parts = next((of.num_parts for of in owned.values()), 0)
        self._cut = dict.fromkeys(graph.edges, 0)
        self._placed = {
            name: _PlacedEdges(stream, (owned[name[0]], owned[name[2]]), degrees[name], piece)
            for name, stream in graph.edges.items()
        }

    def write(self, method: str, seed: int) -> Manifest:
        """Writes all parts. Returns the manifest, which is not yet written."""
        in_memory = self._graph.num_edges <= self._piece or method in READ_ALL_EDGES
        for number, placed in enumerate(self._placed.values()):
            placed.sort(None if in_memory else self._folder / _SPILL / f"edges{number}")
        for rank in range(self._num_parts):
            part_folder(self._folder, rank).mkdir()
            marks.mark(part_folder(self._folder, rank), PART)
            self._write_edges(rank)
        for rank in range(self._num_parts):
            self._write_nodes(rank)
        graph = self._graph
        return Manifest(
            graph.name, method, seed, graph.num_classes, dict(graph.num_nodes),
            [list(graph.node_data.get(kind, {})) for kind in graph.num_nodes], list(graph.edges),
            [stream.num_edges for stream in graph.edges.values()],
            [list(stream.data) for stream in graph.edges.values()], list(self._cut.values()),
            [self._stored(rank) for rank in range(self._num_parts)],
        )  # fmt: skip

    def _write_edges(self, rank: int) -> None:
        """Writes the edges of a part, and keeps the places of its halo rows in the spill folder."""
        folder = part_folder(self._folder, rank)
        numbers = {kind: SourceNumbers(of, rank) for kind, of in self._owned.items()}
        files = {}
        for i, (name, placed) in enumerate(self._placed.items()):
            size = placed.num_edges(rank)
            files[name] = ArrayFile(folder / f"edges{i}.index.npy", np.dtype(np.int64), (2, size))
            begin, end = self._owned[name[0]].begins[rank : rank + 2]
            first = self._owned[name[2]].begins[rank]
            with ArrayFile(folder / f"edges{i}.ids.npy", np.dtype(np.int64), (size,)) as all_ids:
                for at, src, dst, ids in placed.of_part(rank):
                    numbers[name[0]].mark(src)
                    self._cut[name] += int(((src < begin) | (src >= end)).sum())
                    files[name].write(at, src.numpy())
                    files[name].write(size + at, (dst - first).numpy())
                    all_ids.write(at, ids.numpy())
        for i, one in enumerate(numbers.values()):
            np.save(self._halo_file(rank, i), one.halo().numpy())
        for i, (name, index) in enumerate(files.items()):
            with index:
                size = index.shape[1]
                for at in range(0, size, self._piece):
                    places = torch.from_numpy(index.read(at, min(self._piece, size - at)))
                    index.write(at, numbers[name[0]].local(places).numpy())
            numbered = mapped_array(folder / f"edges{i}.ids.npy")
            for key, source in self._graph.edges[name].data.items():
                _copy_rows(folder / f"edges{i}.data.{key}.npy", source, numbered)

    def _write_nodes(self, rank: int) -> None:
        folder = part_folder(self._folder, rank)
        for i, (kind, of) in enumerate(self._owned.items()):
            halos = [torch.from_numpy(mapped_array(self._halo_file(q, i), "c")) for q in range(self._num_parts)]
            nodes = part_nodes(of, rank, halos, {})
            for key in NODE_ARRAYS:
                write_array(folder / f"nodes{i}.{key}.npy", getattr(nodes, key).numpy())
            for key, source in self._graph.node_data.get(kind, {}).items():
                room = nodes.num_halo if np.issubdtype(source.dtype, np.floating) else 0
                _copy_rows(folder / f"nodes{i}.data.{key}.npy", source, nodes.own.numpy(), room)

    def _halo_file(self, rank: int, number: int) -> Path:
        return self._folder / _SPILL / f"halo{number}_{rank}.npy"

    def _stored(self, rank: int) -> StoredPart:
        arrays = {}
        for file in sorted(part_folder(self._folder, rank).glob("*.npy")):
            array = mapped_array(file)
            arrays[file.stem] = StoredArray(array.dtype.str, list(array.shape), digest_of(file))
        kinds, names = range(len(self._owned)), range(len(self._placed))
        return StoredPart(
            [arrays[f"nodes{i}.own"].shape[0] for i in kinds], [arrays[f"nodes{i}.halo"].shape[0] for i in kinds],
            [arrays[f"edges{i}.ids"].shape[0] for i in names], arrays,
        )  # fmt: skip


def _copy_rows(path: Path, source: RowSource, index: np.ndarray, room: int = 0) -> None:
    """Writes the rows of `source` at `index`, and leaves a hole for `room` halo rows behind them."""
    row = source.shape[1:]
    width = int(np.prod(row, dtype=np.int64))
    most = max(_DATA_BYTES // max(width * source.dtype.itemsize, 1), 1)
    with ArrayFile(path, source.dtype, (index.size + room, *row)) as file:
        for at in range(0, index.size, most):
            file.write(at * width, source.rows(np.asarray(index[at : at + most])))
