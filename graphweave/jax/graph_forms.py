"""Sparse matrices and edge indices with sizes as graphs: those of JAX, SciPy and PyTorch, and PyG's EdgeIndex.

A matrix A is read as in A @ x: rows are destinations, columns sources, and entries the values of edges, in the order in
which A stores them. Neither SciPy nor PyG is imported: their classes are recognised by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental.sparse import BCOO, BCSR
from torch import Tensor

from graphweave.core.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class SizedEdges:
    """Edges src[e] -> dst[e], numbers of rows, None where they are not known, and values of the edges, if any."""

    src: Any
    dst: Any
    num_src: int | None
    num_dst: int | None
    values: Any = None


def sized_edges(graph: Any) -> SizedEdges | None:
    """The edges and sizes of `graph`, or None if it is neither a sparse matrix nor an EdgeIndex. Raises DataError for a
    matrix with batches, and for a compressed one whose indices JAX traces."""
    if type(graph).__name__ == "EdgeIndex":
        index, (num_src, num_dst) = known("graph", graph.as_tensor()), graph.sparse_size()
        return SizedEdges(index[0], index[1], num_src, num_dst)
    if isinstance(graph, BCOO):
        return _of_bcoo(graph)
    if isinstance(graph, BCSR):
        if graph.n_batch:
            raise _batched(graph.shape, "BCSR")
        return _compressed(
            known("graph.indptr", graph.indptr), known("graph.indices", graph.indices), graph, graph.data
        )
    if type(graph).__module__.startswith("scipy.sparse"):
        return _of_scipy(graph)
    if isinstance(graph, Tensor) and graph.layout is not torch.strided:
        return _of_torch(graph)
    return None


def is_traced(index: object) -> bool:
    """Whether JAX traces `index`, so that its numbers are not known."""
    return isinstance(index, jax.core.Tracer)


def known(name: str, index: Any) -> Any:
    """`index` as an array of NumPy. DataError for one that JAX traces."""
    if is_traced(index):
        raise DataError(
            f"{name} must be known when JAX traces (got a traced {index.aval.str_short()}). Close over the graph, or"
            " pass its edges as a pair (src, dst) of arrays, which may be traced."
        )
    return index.detach().cpu().numpy() if isinstance(index, Tensor) else np.asarray(index)


def _of_bcoo(graph: BCOO) -> SizedEdges:
    if graph.n_batch or graph.n_sparse != 2:
        raise _batched(graph.shape, "BCOO")
    num_dst, num_src = graph.shape[:2]
    if is_traced(graph.indices):
        return SizedEdges(graph.indices[:, 1], graph.indices[:, 0], num_src, num_dst, graph.data)
    index = known("graph.indices", graph.indices)
    padding = int(((index[:, 0] >= num_dst) | (index[:, 1] >= num_src)).sum())
    if padding:
        raise DataError(
            f"graph must be a matrix of as many entries as it stores (got {padding} of {len(index)} whose index is out"
            " of range, which is BCOO's padding). Remove them with graph.sum_duplicates()."
        )
    return SizedEdges(index[:, 1], index[:, 0], num_src, num_dst, graph.data)


def _of_scipy(graph: Any) -> SizedEdges:
    if len(graph.shape) != 2:
        raise _batched(graph.shape, "array")
    if graph.format in ("csr", "csc"):
        return _compressed(graph.indptr, graph.indices, graph, jnp.asarray(graph.data), graph.format == "csc")
    entries = graph.tocoo()
    return SizedEdges(entries.col, entries.row, graph.shape[1], graph.shape[0], jnp.asarray(entries.data))


def _of_torch(graph: Tensor) -> SizedEdges:
    if graph.layout is torch.sparse_coo and graph.sparse_dim() == 2:
        graph = graph.detach()
        index = graph._indices().cpu().numpy()
        return SizedEdges(index[1], index[0], graph.shape[1], graph.shape[0], _array(graph._values()))
    if graph.layout is torch.sparse_csr and graph.crow_indices().dim() == 1:
        pointer, indices = known("graph", graph.crow_indices()), known("graph", graph.col_indices())
        return _compressed(pointer, indices, graph, _array(graph.values()))
    if graph.layout is torch.sparse_csc and graph.ccol_indices().dim() == 1:
        pointer, indices = known("graph", graph.ccol_indices()), known("graph", graph.row_indices())
        return _compressed(pointer, indices, graph, _array(graph.values()), columns=True)
    raise _batched(tuple(graph.shape), str(graph.layout))


def _compressed(pointer: Any, indices: Any, matrix: Any, values: Any, columns: bool = False) -> SizedEdges:
    """The edges of a compressed matrix, whose rows (or `columns`) have their entries one behind the other."""
    lines = np.repeat(np.arange(len(pointer) - 1, dtype=indices.dtype), np.diff(pointer))
    src, dst = (lines, indices) if columns else (indices, lines)
    return SizedEdges(src, dst, matrix.shape[1], matrix.shape[0], values)


def _array(values: Tensor) -> Any:
    return jnp.asarray(values.detach().cpu().numpy())


def _batched(shape: tuple[int, ...], form: str) -> DataError:
    return DataError(
        f"graph must be a sparse matrix without batches (got a {form} of shape {list(shape)}). Pass one matrix."
    )
