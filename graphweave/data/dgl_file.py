"""Reads the binary files that DGL's `save_graphs` and `save_tensors` write, without DGL.

A file of graphs (version 2, which DGL 0.5 and later write) has a header of 4,096 bytes, where the graphs begin, the
labels, the graphs, and at its end where each graph begins. All numbers are little-endian. A text and a list begin with
their length in 8 bytes; an array has its device, type and shape before its bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError

T = TypeVar("T")

_GRAPHS, _TENSORS = 0xDD2E4FF046B4A13F, 0xDD5A9FBE3FA2443F
"""The first 8 bytes of a file of graphs, and of one of tensors."""
_VERSION, _TYPED_GRAPHS = 2, 2
_HEADER_BYTES = 4096
_ARRAY, _COO, _CSR = 0xDD5E40F096B4A13F, 0xDD61FFD305DFF127, 0xDD6CD31205DFF127
_TYPED_GRAPH, _RELATION, _TYPES = 0xDD589FBE35224ABF, 0xDD2E60F0F6B4A127, 0xDD3C5FFE20046ABF
"""Numbers that stand before each array, matrix, graph, relation, and graph of types."""

_IN_COO, _IN_CSR, _IN_CSC = 1, 2, 4
"""Bits of the matrices that a relation is stored as, in the order in which they follow each other."""

_BY_NUMBER = {1: _IN_COO, 2: _IN_CSR, 3: _IN_CSC}
"""Older files name the only matrix of a relation by a number."""

_DTYPES = {
    (0, 8): "<i1", (0, 16): "<i2", (0, 32): "<i4", (0, 64): "<i8", (1, 8): "<u1",
    (2, 16): "<f2", (2, 32): "<f4", (2, 64): "<f8", (4, 16): "<i2",
}  # fmt: skip
"""(kind, bits) -> NumPy's type; NumPy lacks bfloat16, (4, 16), whose bits are read as int16."""

Fields = dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class StoredGraph:
    """A graph of a file: the number of nodes of each type, the ends [2, E] of each relation's edges, and the fields of
    nodes and edges, of which bool is stored as uint8."""

    num_nodes: dict[str, int]
    ends: dict[tuple[str, str, str], Tensor]
    node_fields: dict[str, Fields]
    edge_fields: dict[tuple[str, str, str], Fields]


def is_dgl_file(path: Path) -> bool:
    """Whether DGL's `save_graphs` or `save_tensors` wrote the file, by its first bytes."""
    with path.open("rb") as stream:
        return int.from_bytes(stream.read(8), "little") in (_GRAPHS, _TENSORS)


def read_dgl_graphs(path: Path, numbers: Sequence[int] | None = None) -> tuple[list[StoredGraph], Fields]:
    """The graphs of a file (those with these numbers, in this order), and its labels. DataError if it is damaged."""
    with _opened(path) as file:
        count = _header(file)
        wanted = range(count) if numbers is None else numbers
        wrong = [number for number in wanted if not 0 <= number < count]
        if wrong:
            raise DataError(f"{path} holds graphs 0..{count} (asked for {wrong[0]}). Ask for one of them.")
        labels = _fields(file)
        file.go_to(file.size - 8)
        file.go_to(file.size - 8 - file.number())
        begins = file.many(file.number)
        file.check(len(begins) == count, f"{len(begins)} of {count} graphs are listed")
        graphs = []
        for number in wanted:
            file.go_to(begins[number])
            graphs.append(_graph(file))
        return graphs, labels


def read_dgl_tensors(path: Path) -> Fields:
    """The labels of a file of graphs, or the tensors of a file of `save_tensors`. DataError if it is damaged."""
    with _opened(path) as file:
        if file.number() == _TENSORS:
            file.number()
        else:
            file.go_to(0)
            _header(file)
        return _fields(file)


class _DGLReader:
    """Takes values from a file one after the other."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self.stream, self.path = stream, path
        self.size = os.fstat(stream.fileno()).st_size

    def check(self, holds: bool, reason: str) -> None:
        """Raise DataError for a damaged file, of which `reason` says what is wrong, unless the condition `holds`."""
        if not holds:
            raise DataError(f"{self.path}: not a whole file of DGL's save_graphs ({reason}). Write it again.")

    def go_to(self, place: int) -> None:
        self.check(0 <= place <= self.size, f"byte {place} is to follow, of {self.size}")
        self.stream.seek(place)

    def check_left(self, nbytes: int) -> None:
        self.check(
            nbytes <= self.size - self.stream.tell(),
            f"{nbytes} bytes are to follow byte {self.stream.tell()}, of {self.size}",
        )

    def number(self, nbytes: int = 8) -> int:
        self.check_left(nbytes)
        return int.from_bytes(self.stream.read(nbytes), "little")

    def expect(self, magic: int, what: str) -> None:
        before = self.stream.tell()
        self.check(self.number() == magic, f"no {what} begins at byte {before}")

    def text(self) -> str:
        length = self.number()
        self.check_left(length)
        return self.stream.read(length).decode(errors="replace")

    def many(self, one: Callable[[], T]) -> list[T]:
        count = self.number()
        self.check_left(8 * count)  # nothing that is listed takes less
        return [one() for _ in range(count)]

    def array(self) -> Tensor:
        self.expect(_ARRAY, "array")
        self.number()  # reserved
        self.number()  # the device, which is the CPU in files
        dims = self.number(4)
        kind, bits, lanes = self.number(1), self.number(1), self.number(2)
        self.check((kind, bits) in _DTYPES and lanes == 1, f"an array has the unknown type {kind}, {bits} bits")
        dtype = np.dtype(_DTYPES[kind, bits])
        self.check_left(8 * dims)
        shape = [self.number() for _ in range(dims)]
        nbytes = self.number()
        count = nbytes // dtype.itemsize
        self.check(math.prod(shape) * dtype.itemsize == nbytes, f"an array of {dtype} {shape} has {nbytes} bytes")
        self.check_left(nbytes)
        values = torch.from_numpy(np.fromfile(self.stream, dtype, count).reshape(shape))
        return values.view(torch.bfloat16) if kind == 4 else values

    def indices(self) -> Tensor:
        """An array of whole numbers in one dimension."""
        found = self.array()
        self.check(
            found.dim() == 1 and found.dtype in (torch.int32, torch.int64),
            f"indices are {found.dtype} {list(found.shape)}",
        )
        return found


@contextmanager
def _opened(path: Path) -> Iterator[_DGLReader]:
    if not path.is_file():
        raise DataError(f"{path}: no such file. Check the path.")
    with path.open("rb") as stream:
        yield _DGLReader(stream, path)


def _header(file: _DGLReader) -> int:
    """The number of graphs. What follows are the labels."""
    magic, version, kind, count = (file.number() for _ in range(4))
    file.check(magic == _GRAPHS, "it does not begin as such files do")
    if (version, kind) != (_VERSION, _TYPED_GRAPHS):
        raise DataError(
            f"{file.path}: expected version {_VERSION} of DGL's files (got version {version}, kind {kind} of graphs)."
            " Read and write it with DGL 0.5 or newer."
        )
    file.go_to(_HEADER_BYTES + 8)  # beyond where the graphs begin
    return count


def _fields(file: _DGLReader) -> Fields:
    return dict(file.many(lambda: (file.text(), file.array())))


def _graph(file: _DGLReader) -> StoredGraph:
    file.expect(_TYPED_GRAPH, "graph")
    file.expect(_TYPES, "graph of types")
    types = _edges_by_row(file)
    relations = file.many(lambda: _relation(file))
    counts = file.many(file.number)
    node_fields = file.many(lambda: _fields(file))
    edge_fields = file.many(lambda: _fields(file))
    node_types, names = file.many(file.text), file.many(file.text)
    if len(set(node_types)) < len(node_types):
        raise DataError(f"{file.path}: expected graphs (got a block). Convert it with DGL's block_to_graph.")
    lengths = {len(relations), types.size(1), len(edge_fields), len(names)}
    file.check(
        len(lengths) == 1 and len({len(counts), len(node_fields), len(node_types)}) == 1,
        "the numbers of its types differ",
    )
    file.check(max(counts, default=0) < 1 << 63, f"it has {max(counts, default=0)} nodes of a type")
    _check_range(file, types, len(node_types), len(node_types))
    keys = [(node_types[s], name, node_types[d]) for (s, d), name in zip(types.T.tolist(), names, strict=True)]
    for (src, _, dst), ends in zip(keys, relations, strict=True):
        _check_range(file, ends, counts[node_types.index(src)], counts[node_types.index(dst)])
    num_edges = [ends.size(1) for ends in relations]
    for rows, fields in zip([*counts, *num_edges], [*node_fields, *edge_fields], strict=True):
        for name, field in fields.items():
            file.check(
                field.dim() > 0 and field.size(0) == rows,
                f"the field {name} has the shape {list(field.shape)} for {rows} rows",
            )
    return StoredGraph(
        dict(zip(node_types, counts, strict=True)), dict(zip(keys, relations, strict=True)),
        dict(zip(node_types, node_fields, strict=True)), dict(zip(keys, edge_fields, strict=True)),
    )  # fmt: skip


def _relation(file: _DGLReader) -> Tensor:
    """Ends [2, E] of a relation's edges, in the order of their numbers."""
    file.expect(_RELATION, "relation")
    stored = file.number()
    matrices = stored & 0xFFFFFFFF if stored >> 32 else _BY_NUMBER.get(stored, 0)
    file.number()  # the formats that the graph may take
    found = []
    for bit, read in ((_IN_COO, _edges), (_IN_CSR, _edges_by_row), (_IN_CSC, _edges_by_column)):
        if matrices & bit:
            file.expect(_TYPES, "graph of types")
            _edges_by_row(file)  # of the types that the relation joins, which the graph says too
            found.append(read(file))
    file.check(bool(found), "a relation has no edges in any format")
    return found[0]


def _edges(file: _DGLReader) -> Tensor:
    file.expect(_COO, "matrix")
    file.number(), file.number()  # columns, rows
    src, dst, numbers = file.indices(), file.indices(), file.indices()
    file.number(1), file.number(1)  # whether it is sorted, by row and by column
    return _by_number(file, src, dst, numbers)


def _edges_by_row(file: _DGLReader) -> Tensor:
    file.expect(_CSR, "matrix")
    _, rows = file.number(), file.number()
    indptr, columns, numbers = file.indices(), file.indices(), file.indices()
    file.number(1)  # whether columns are sorted
    lengths = indptr.long().diff()
    file.check(
        indptr.numel() == rows + 1 and bool((lengths >= 0).all()) and int(lengths.sum()) == columns.numel(),
        f"a matrix of {rows} rows and {columns.numel()} entries has other rows",
    )
    return _by_number(file, torch.arange(rows, dtype=columns.dtype).repeat_interleave(lengths), columns, numbers)


def _edges_by_column(file: _DGLReader) -> Tensor:
    return _edges_by_row(file).flip(0)


def _by_number(file: _DGLReader, rows: Tensor, columns: Tensor, numbers: Tensor) -> Tensor:
    """[2, E]: entry i belongs to edge numbers[i], or to edge i where there are no numbers."""
    file.check(rows.shape == columns.shape, f"its edges have {rows.numel()} sources and {columns.numel()} destinations")
    ends = torch.stack([rows, columns])
    if not numbers.numel():
        return ends
    in_some_order = numbers.sort().values.equal(torch.arange(len(rows), dtype=numbers.dtype))
    file.check(in_some_order, "the numbers of its edges are not 0, 1, ... in some order")
    return ends[:, numbers.long().argsort()]


def _check_range(file: _DGLReader, ends: Tensor, sources: int, destinations: int) -> None:
    for row, count in zip(ends, (sources, destinations), strict=True):
        if row.numel():
            low, high = int(row.min()), int(row.max())
            file.check(low >= 0 and high < count, f"an edge ends at node {low if low < 0 else high} of {count}")
