"""The edges of a relation as matrices, and the types of a graph as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import query
from graphweave.graph.argument_types import Device
from graphweave.graph.relation import Etype, Relation
from graphweave.graph.structure import Structure

if TYPE_CHECKING:
    import networkx
    from scipy.sparse import spmatrix


def adj(g: Structure, etype: Etype | None = None, eweight_name: str | None = None) -> Tensor:
    """Sparse COO tensor [num_src, num_dst] with a 1, or the field `eweight_name`, for each edge; the sum for edges with
    the same ends."""
    r = g.relation(etype)
    values = torch.ones(r.num_edges, device=g.device)
    if eweight_name is not None:
        values = g.edge_frame(etype)[eweight_name]
    return _sparse(r.src, r.dst, values, (g.num_sources(r), g.num_destinations(r))).coalesce()


def adj_external(
    g: Structure,
    transpose: bool = False,
    ctx: Device = "cpu",
    scipy_fmt: str | None = None,
    etype: Etype | None = None,
) -> Tensor | spmatrix:
    """Like `adj`, on the device `ctx`, or as a SciPy matrix in the format "csr" or "coo"; transposed if wanted."""
    r = g.relation(etype)
    ends, shape = (r.src, r.dst), (g.num_sources(r), g.num_destinations(r))
    if transpose:
        ends, shape = ends[::-1], shape[::-1]
    if scipy_fmt is None:
        device = torch.device(ctx)
        return _sparse(ends[0].to(device), ends[1].to(device), torch.ones(r.num_edges, device=device), shape)
    if scipy_fmt not in ("coo", "csr"):
        raise DataError(f"expected the format 'coo' or 'csr' (got {scipy_fmt!r}). Pass one of them.")
    import numpy as np
    import scipy.sparse  # takes 0.2 s to load

    rows, columns = (x.cpu().numpy() for x in ends)
    if scipy_fmt == "coo":
        return scipy.sparse.coo_matrix((np.ones(r.num_edges), (rows, columns)), shape)
    indptr, indices, _ = _compressed(ends[0], ends[1], shape[0])
    return scipy.sparse.csr_matrix((np.ones(r.num_edges), indices.cpu().numpy(), indptr.cpu().numpy()), shape)


def adj_tensors(g: Structure, fmt: str, etype: Etype | None = None) -> tuple[Tensor, ...]:
    """(src, dst) for "coo", (indptr, indices, edge ids) for "csr" and "csc". No ids stand for 0, 1, 2, ..."""
    r = g.relation(etype)
    if fmt == "coo":
        return r.src, r.dst
    if fmt == "csr":
        return _compressed(r.src, r.dst, g.num_sources(r))
    if fmt == "csc":
        return _compressed(r.dst, r.src, g.num_destinations(r))
    raise DataError(f"expected the format 'coo', 'csr' or 'csc' (got {fmt!r}). Pass one of them.")


def inc(g: Structure, typestr: str, ctx: Device = "cpu", etype: Etype | None = None) -> Tensor:
    """The incidence matrix, sparse [num_nodes, num_edges]: 1 where a node is an edge's end ("in"), its start ("out"),
    or -1 at its start and 1 at its end ("both", without self-loops)."""
    r = g.relation(etype)
    device = torch.device(ctx)
    edges, src, dst = torch.arange(r.num_edges, device=device), r.src.to(device).long(), r.dst.to(device).long()
    one = torch.ones(r.num_edges, device=device)
    if typestr == "in":
        return _sparse(dst, edges, one, (g.num_destinations(r), r.num_edges))
    if typestr == "out":
        return _sparse(src, edges, one, (g.num_sources(r), r.num_edges))
    if typestr == "both" and r.srctype == r.dsttype:
        proper = src != dst
        src, dst, edges, one = src[proper], dst[proper], edges[proper], one[proper]
        shape = (g.num_sources(r), r.num_edges)
        return _sparse(torch.cat([src, dst]), torch.cat([edges, edges]), torch.cat([-one, one]), shape)
    raise DataError(
        f"expected typestr 'in', 'out', or 'both' for a relation within one node type (got {typestr!r} for {r.key})."
        " Pass one of these."
    )


def metagraph(g: Structure) -> networkx.MultiDiGraph:
    """networkx.MultiDiGraph with a node for each node type that has a relation, and an edge with the key `name` for
    each relation."""
    import networkx  # optional

    out = networkx.MultiDiGraph()
    for src, name, dst in g.canonical_etypes:
        out.add_edge(src, dst, name)
    return out


def has_parallel_edges(g: Structure, r: Relation) -> bool:
    keys = r.src.long() * g.num_destinations(r) + r.dst.long()
    return torch.unique(keys).shape[0] < r.num_edges


def _compressed(rows: Tensor, columns: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """(indptr [num_rows + 1], columns and numbers of the edges, grouped by row and increasing within one). No numbers
    where each edge is at the position of its number."""
    indptr, perm = query.grouped(rows, num_rows)
    if perm is None:
        return indptr.to(rows.dtype), columns, rows.new_empty(0)
    return indptr.to(rows.dtype), columns[perm.long()], perm.to(rows.dtype)


def _sparse(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    size = (*shape, *values.shape[1:])
    return torch.sparse_coo_tensor(torch.stack([rows.long(), columns.long()]), values, size, check_invariants=False)
