"""`graph`, `heterograph` and the random graphs: DGL's functions that make a `DGLGraph` from edges."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphweave.core.errors import DataError
from graphweave.dgl.given_edges import given_edges
from graphweave.dgl.graph import DGLGraph
from graphweave.graph import build
from graphweave.graph.argument_types import Device
from graphweave.graph.relation import CanonicalEtype


def graph(
    data: object,
    *,
    num_nodes: int | None = None,
    idtype: torch.dtype | None = None,
    device: Device | None = None,
    row_sorted: bool = False,
    col_sorted: bool = False,
) -> DGLGraph:
    """A homogeneous graph with an edge src[e] -> dst[e] for every e, in this order.

    `data`: (src, dst), ("coo", (src, dst)), ("csr" or "csc", (indptr, indices, edge ids)), a list of pairs, a SciPy
    matrix or a NetworkX graph. `num_nodes`: one more than the largest id if None. `row_sorted` and `col_sorted` are not
    needed: what is sorted is found out. DataError for other forms, IndexRangeError for an id outside 0..num_nodes.
    """
    edges = given_edges(data, idtype, device)
    known = max([n for n in (edges.num_src, edges.num_dst) if n is not None], default=None)
    if num_nodes is None and known is not None:
        largest = max([int(ids.max()) + 1 for ids in edges[:2] if ids.numel()], default=0)
        num_nodes = max(known, largest)
    return DGLGraph.like(build.graph((edges.src, edges.dst), num_nodes))


def heterograph(
    data_dict: Mapping[CanonicalEtype, object],
    num_nodes_dict: Mapping[str, int] | None = None,
    idtype: torch.dtype | None = None,
    device: Device | None = None,
) -> DGLGraph:
    """A graph of several relations, (source type, name, destination type) -> edges in any form that `graph` takes.

    Node types and relations are sorted by name. `num_nodes_dict`: the number of nodes of every type; None: one more
    than the largest id of each. DataError if a type is missing there, or if relations differ in dtype or device.
    """
    found = {key: given_edges(data, idtype, device) for key, data in data_dict.items()}
    dtypes = {edges.src.dtype for edges in found.values() if edges.src.numel()}
    if len(dtypes) == 1:  # an empty list has no dtype of its own
        only = next(iter(dtypes))
        found = {key: edges._replace(src=edges.src.to(only), dst=edges.dst.to(only)) if not edges.src.numel()
                 else edges for key, edges in found.items()}  # fmt: skip
    sizes: dict[str, int] = {}
    for key, edges in found.items():
        for ntype, ids, num in ((key[0], edges.src, edges.num_src), (key[2], edges.dst, edges.num_dst)):
            needed = num if num is not None else int(ids.max()) + 1 if ids.numel() else 0
            sizes[ntype] = max(sizes.get(ntype, 0), needed)
    ends = {key: (edges.src, edges.dst) for key, edges in found.items()}
    return DGLGraph.like(build.heterograph(ends, sizes if num_nodes_dict is None else num_nodes_dict))


def rand_graph(num_nodes: int, num_edges: int, idtype: torch.dtype = torch.int64, device: Device = "cpu") -> DGLGraph:
    """A homogeneous graph of `num_edges` distinct edges, each drawn with equal probability. DataError if there are not
    as many. Random numbers are PyTorch's."""
    src, dst = _drawn(num_nodes, num_nodes, num_edges)
    return graph((src, dst), num_nodes=num_nodes, idtype=idtype, device=device)


def rand_bipartite(
    utype: str,
    etype: str,
    vtype: str,
    num_src_nodes: int,
    num_dst_nodes: int,
    num_edges: int,
    idtype: torch.dtype = torch.int64,
    device: Device = "cpu",
) -> DGLGraph:
    """Like `rand_graph`, with edges from nodes of `utype` to nodes of `vtype`."""
    ends = _drawn(num_src_nodes, num_dst_nodes, num_edges)
    sizes = {utype: num_src_nodes, vtype: num_dst_nodes}
    return heterograph({(utype, etype, vtype): ends}, sizes, idtype, device)


def _drawn(num_src: int, num_dst: int, num_edges: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct pairs, [num_edges] each."""
    total = num_src * num_dst
    if num_edges > total:
        raise DataError(f"expected at most {total} edges between these nodes (got {num_edges}). Ask for fewer.")
    if 2 * num_edges > total:
        pairs = torch.randperm(total)[:num_edges]
    else:
        pairs = torch.randint(total, (num_edges,)).unique()
        while pairs.shape[0] < num_edges:
            pairs = torch.cat([pairs, torch.randint(total, (num_edges,))]).unique()
        pairs = pairs[torch.randperm(pairs.shape[0])[:num_edges]]
    return torch.div(pairs, max(num_dst, 1), rounding_mode="floor"), pairs % max(num_dst, 1)
