"""The arguments that DGL's functions take for the edges of a relation, as a pair of index tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.argument_types import Device

if TYPE_CHECKING:
    import networkx
    from scipy.sparse import coo_matrix

_INDEX_DTYPES = (torch.int32, torch.int64)


class GivenEdges(NamedTuple):
    """Edges src[e] -> dst[e], [num_edges] each, and the numbers of nodes at both ends, as far as the form says them."""

    src: Tensor
    dst: Tensor
    num_src: int | None = None
    num_dst: int | None = None


def given_edges(data: object, idtype: torch.dtype | None, device: Device | None) -> GivenEdges:
    """Edges from (src, dst), ("coo", (src, dst)), ("csr" or "csc", (indptr, indices, edge ids)), a list of pairs, a
    SciPy matrix or a NetworkX graph.

    Ids of `idtype`, else of the dtype of the tensors that are given, else int64. DataError for any other form, for ids
    that are not integers, and for lengths that differ.
    """
    if idtype not in (None, *_INDEX_DTYPES):
        raise DataError(f"idtype must be torch.int32 or torch.int64 (got {idtype}). Pass one of them.")
    if hasattr(data, "tocoo"):
        coo = data.tocoo()
        return _checked(_of_matrix(coo, idtype or torch.int64, device))
    if hasattr(data, "nodes") and hasattr(data, "edges"):
        return _of_networkx(data, idtype or torch.int64, device)
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], str):
        return _checked(_formatted(data[0], data[1], idtype, device))
    if isinstance(data, tuple) and len(data) == 2:
        return _checked(_pair(data[0], data[1], idtype, device))
    if isinstance(data, Iterable) and not isinstance(data, (Tensor, np.ndarray, str)):
        pairs = [tuple(pair) for pair in data]
        if all(len(pair) == 2 for pair in pairs):
            return _checked(_pair([u for u, _ in pairs], [v for _, v in pairs], idtype, device))
    raise DataError(
        "expected edges as (src, dst), ('coo', (src, dst)), ('csr' or 'csc', (indptr, indices, edge ids)) or a list of"
        f" pairs (got {type(data).__name__}). Pass one of these."
    )


def _of_matrix(coo: coo_matrix, idtype: torch.dtype, device: Device | None) -> GivenEdges:
    rows, columns = coo.shape
    return GivenEdges(_index(coo.row, idtype, device), _index(coo.col, idtype, device), rows, columns)


def _pair(src: object, dst: object, idtype: torch.dtype | None, device: Device | None) -> GivenEdges:
    given = [x.dtype for x in (src, dst) if isinstance(x, Tensor)]
    if idtype is None and len(set(given)) > 1:
        raise DataError(
            f"expected sources and destinations of one dtype (got {given[0]} and {given[1]}). Pass idtype=."
        )
    devices = {x.device for x in (src, dst) if isinstance(x, Tensor)}
    if device is None and len(devices) > 1:
        raise DataError(f"expected sources and destinations on one device (got {devices}). Pass device=.")
    return GivenEdges(_index(src, idtype, device), _index(dst, idtype, device))


def _formatted(form: str, arrays: Any, idtype: torch.dtype | None, device: Device | None) -> GivenEdges:
    if form == "coo" and len(arrays) == 2:
        return _pair(arrays[0], arrays[1], idtype, device)
    if form not in ("csr", "csc") or len(arrays) != 3:
        raise DataError(
            f"expected ('coo', (src, dst)) or ('csr' or 'csc', (indptr, indices, edge ids)) (got {form!r} with"
            f" {len(arrays)} arrays). Pass one of these."
        )
    indptr, indices, eids = (_index(x, idtype, device) for x in arrays)
    rows = torch.arange(indptr.shape[0] - 1, dtype=indptr.dtype, device=indptr.device)
    if int(indptr[-1]) != indices.shape[0] or eids.shape[0] not in (0, indices.shape[0]):
        raise DataError(
            f"{form}: expected indptr to end with the number of indices, and as many edge ids or none (got"
            f" {int(indptr[-1])}, {indices.shape[0]} and {eids.shape[0]}). Correct them."
        )
    rows, indices = torch.repeat_interleave(rows, indptr.diff().long()), indices.to(indptr.dtype)
    if eids.shape[0]:
        order = torch.empty_like(eids, dtype=torch.int64)
        order[eids.long()] = torch.arange(eids.shape[0], device=eids.device)
        rows, indices = rows[order], indices[order]
    size = indptr.shape[0] - 1
    return GivenEdges(rows, indices, size, None) if form == "csr" else GivenEdges(indices, rows, None, size)


def _of_networkx(graph: networkx.Graph, idtype: torch.dtype, device: Device | None) -> GivenEdges:
    directed = graph if graph.is_directed() else graph.to_directed()
    place = {node: i for i, node in enumerate(sorted(graph.nodes))}
    ends = [place[edge[0]] for edge in directed.edges], [place[edge[1]] for edge in directed.edges]
    return GivenEdges(_index(ends[0], idtype, device), _index(ends[1], idtype, device), len(place), len(place))


def _index(value: Any, idtype: torch.dtype | None, device: Device | None) -> Tensor:
    """`value` as ids [num_edges]."""
    if not isinstance(value, (Tensor, np.ndarray)):
        value = list(value)
        value = torch.stack(value) if value and isinstance(value[0], Tensor) else np.asarray(value)
    index = torch.as_tensor(value, device=device)
    if index.numel() == 0 and index.dtype.is_floating_point:
        index = index.to(torch.int64)
    if index.dtype.is_floating_point or index.dtype == torch.bool or index.dim() != 1:
        raise DataError(
            f"expected ids, integers of shape [num_edges] (got {index.dtype} of shape {list(index.shape)})."
            " Pass such ids."
        )
    return index.to(idtype or (index.dtype if index.dtype in _INDEX_DTYPES else torch.int64))


def _checked(edges: GivenEdges) -> GivenEdges:
    if edges.src.shape != edges.dst.shape:
        raise DataError(
            f"expected as many sources as destinations (got {edges.src.shape[0]} and {edges.dst.shape[0]})."
            " Pass as many of each."
        )
    return edges
