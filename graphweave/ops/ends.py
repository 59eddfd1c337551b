"""The graphs that operators on edges take, as two index tensors, the rows at both ends, and values of the edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from graphweave.core.edge_functions import Features, fields_of, wrong_rows
from graphweave.core.errors import DataError
from graphweave.core.ranges import position, range_error
from graphweave.frontends.sparse.sparse_arguments import is_sparse
from graphweave.frontends.sparse.sparse_matrix import SparseMatrix, col_of, expanded, stand_in
from graphweave.graph.structure import Structure
from graphweave.runtime.memo import memo
from graphweave.runtime.unseen_edits import watch
from graphweave.udf.arguments import fix_sizes

_INDEX_DTYPES = (torch.int32, torch.int64)
_FORMS = (
    "a graphweave.Graph, an edge_index [2, num_edges], a pair (src, dst) of index tensors, a sparse CSR, CSC or COO "
    "matrix, or PyG's EdgeIndex"
)


@dataclass(frozen=True)
class Ends:
    """Edges src[e] -> dst[e]. `src_rows` [sources, 0] and `dst_rows` [destinations, 0] carry numbers of rows, which
    are symbols under tracing; None where nothing says them. `values` [num_edges, ...] are those of a sparse matrix."""

    src: Tensor
    dst: Tensor
    src_rows: Tensor | None
    dst_rows: Tensor | None
    values: Tensor | None = None

    def explained(self) -> IndexError | None:
        """The error about an index out of range that names the argument and its row; None where all are in range."""
        for row, (index, rows, of) in enumerate(
            ((self.src, self.src_rows, "sources"), (self.dst, self.dst_rows, "destinations"))
        ):
            if rows is not None and position(index, rows.shape[0]) is not None:
                return range_error(index, rows.shape[0], what=f"graph[{row}]", of=of)
        return None


def ends_of(graph: object, src: Features, dst: Features, edge: Features, num_dst: int | None) -> Ends:
    """The two ends of `graph`, checked against the features. A DataError names what does not fit."""
    found = _taken_apart(graph)
    _check_indices(found)
    src_rows = _rows("src", src, found.src, found.src_rows)
    dst_rows = _rows("dst", dst, found.src, found.dst_rows)
    if num_dst is not None:
        dst_rows = _agreed(num_dst, found.src, dst_rows)
    elif dst_rows is None:
        dst_rows = src_rows
    if edge is not None:
        _rows("edge", edge, found.src, found.src.new_empty((found.src.shape[0], 0)))
    return Ends(found.src, found.dst, src_rows, dst_rows, found.values)


# ---------------------------------------------------------------- forms of graphs


def _taken_apart(graph: Any) -> Ends:
    if isinstance(graph, Structure):
        return _of_graph(graph)
    if isinstance(graph, SparseMatrix) or is_sparse(graph):
        return _of_matrix(graph)
    if isinstance(graph, (Tensor, SizedIndex)):
        return _of_edge_index(unwrapped(graph))
    if isinstance(graph, (tuple, list)) and len(graph) == 2 and all([isinstance(end, Tensor) for end in graph]):
        return Ends(graph[0], graph[1], None, None)
    raise DataError(f"graph must be {_FORMS} (got {type(graph).__name__}). Pass one of these.")


def _of_graph(graph: Structure) -> Ends:
    relation = graph.only_relation()
    rows = graph.node_frame(relation.srctype).rows, graph.node_frame(relation.dsttype).rows
    return Ends(relation.src, relation.dst, *rows)


class SizedIndex(NamedTuple):
    """An edge_index [2, edges] with the numbers of its sources and destinations, None where it does not know them."""

    edges: Tensor
    sizes: tuple[int | None, int | None]


def unwrapped(graph: Any) -> Any:
    """PyG's EdgeIndex as a SizedIndex; another graph as it is. (PyG need not be installed.)"""
    return SizedIndex(graph.as_tensor(), graph.sparse_size()) if type(graph).__name__ == "EdgeIndex" else graph


def _of_edge_index(given: Tensor | SizedIndex) -> Ends:
    graph, sizes = given if isinstance(given, SizedIndex) else (given, (None, None))
    if graph.dim() != 2 or graph.shape[0] != 2:
        raise DataError(
            f"graph must be an edge_index of shape [2, num_edges] (got {list(graph.shape)})."
            " Transpose it, if it is [num_edges, 2]; make a dense matrix sparse with .to_sparse_csr()."
        )
    rows = [None if size is None else graph.new_empty((size, 0)) for size in sizes]
    return Ends(graph[0], graph[1], *rows)


def _of_matrix(graph: Tensor) -> Ends:
    """Rows are destinations, columns are sources, as in A @ x."""
    matrix = stand_in(graph) if is_sparse(graph) else graph
    if not isinstance(matrix, SparseMatrix):
        raise DataError(
            f"graph must be a sparse matrix without batches (got {graph.layout} of shape {list(graph.shape)})."
            " Pass one matrix."
        )
    return Ends(_column(matrix), _row(matrix), matrix.gw_cols, matrix.gw_rows, matrix.gw_values)


def _row(a: SparseMatrix) -> Tensor:
    if a.gw_row is not None or a.gw_layout is torch.sparse_coo:
        return a.gw_given[0] if a.gw_row is None else a.gw_row  # type: ignore[index]
    return _one_a_value(a)


def _column(a: SparseMatrix) -> Tensor:
    if a.gw_col is None and a.gw_layout is torch.sparse_csc:
        return _one_a_value(a)
    return col_of(a)


def _one_a_value(a: SparseMatrix) -> Tensor:
    """Expands compressed indices to one index for each value. Outside of a trace this is done once for each matrix."""
    assert a.gw_given is not None
    if torch.compiler.is_compiling():
        return expanded(a.gw_given, a.gw_values.shape[0])
    watch(a.gw_given)
    return memo(_expanded, a.gw_given, a.gw_values.shape[0])[0]  # type: ignore[return-value]


def _expanded(pointer: Tensor, entries: int) -> tuple[Tensor | int, ...]:
    rows = torch.arange(pointer.shape[0] - 1, dtype=pointer.dtype, device=pointer.device)
    return (rows.repeat_interleave(pointer.diff(), output_size=entries),)


# ---------------------------------------------------------------- checks


def _check_indices(ends: Ends) -> None:
    for row, index in enumerate((ends.src, ends.dst)):
        if index.dtype not in _INDEX_DTYPES:
            raise DataError(f"graph[{row}] must be int32 or int64 (got {index.dtype}). Convert it with .long().")
        if index.dim() != 1:
            raise DataError(f"graph[{row}] must have shape [num_edges] (got {list(index.shape)}). Flatten it first.")
    if ends.src.device != ends.dst.device:
        raise DataError(
            f"graph[0] and graph[1] must lie on one device (got {ends.src.device} and {ends.dst.device})."
            " Move one of them with .to(...)."
        )
    if differ(ends.src.shape[0], ends.dst.shape[0]):
        raise DataError(
            f"graph[0] and graph[1] must have one length (got {ends.src.shape[0]} and {ends.dst.shape[0]}): they name"
            " the ends of the same edges. Pass such a pair."
        )


def _rows(name: str, x: Features, index: Tensor, known: Tensor | None) -> Tensor | None:
    """A tensor with as many rows as `x`. If `known` is given, its number of rows must be the same."""
    if x is not None and not isinstance(x, (Tensor, Mapping)):
        raise DataError(f"{name} must be a tensor or a dict of tensors (got {type(x).__name__}). Pass one of these.")
    for field, value in fields_of(x):
        what = f"{name}{field}"
        if not isinstance(value, Tensor) or value.dim() == 0:
            got = f"a scalar {value}" if isinstance(value, Tensor) else type(value).__name__
            raise DataError(f"{what} must be a tensor [rows, ...] (got {got}). Give it one row for each.")
        if value.device != index.device:
            raise DataError(
                f"{what} is on {value.device}, but the graph is on {index.device}. Move one of them with .to(...)."
            )
        if torch.compiler.is_compiling():
            fix_sizes(value)
        if known is None:
            known = index.new_empty((value.shape[0], 0))
        elif differ(value.shape[0], known.shape[0]):
            raise wrong_rows(name, field, value.shape, known.shape[0])
    return known


def _agreed(num_dst: int, index: Tensor, known: Tensor | None) -> Tensor:
    if not isinstance(num_dst, (int, torch.SymInt)) or isinstance(num_dst, bool) or num_dst < 0:
        raise DataError(f"num_dst must be a number of rows (got {num_dst!r}). Pass one.")
    if known is None:
        return index.new_empty((num_dst, 0))
    if differ(num_dst, known.shape[0]):
        raise DataError(f"num_dst is {num_dst}, but there are {known.shape[0]} destinations. Leave it out.")
    return known


def differ(one: int, other: int) -> bool:
    """Whether two numbers of rows are known to differ. Where they are known only when compiled code runs, that code
    fails."""
    return bool(guard_or_false(one != other))
