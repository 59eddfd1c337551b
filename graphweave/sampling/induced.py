"""The edges between chosen nodes of a graph, and the subgraph that they are: a PyG `Data` or a `Graph`."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.assemble import assemble
from graphweave.graph.frame import EID, NID
from graphweave.graph.graph import Graph
from graphweave.graph.relation import Relation
from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.native_numbers import Int32, NativeNumbers
from graphweave.runtime.threads import num_threads
from graphweave.runtime.toolchain import toolchain
from graphweave.sampling.adjacency import Adjacency, adjacency
from graphweave.sampling.hops import HopEdges
from graphweave.sampling.native import address

if TYPE_CHECKING:
    from torch_geometric.data import Data

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


class _RawChosen(NativeNumbers):
    """The structure `Chosen` of `native/subgraphs.cpp`."""

    _fields_ = (
        *((name, _POINTER) for name in ("indptr", "sources", "edges", "numbers", "rows")),
        *((name, _I64) for name in ("count", "wide")),
    )


class Numbering:
    """The number of each chosen node among the chosen, looked up in a table of all nodes.

    Tables (8 bytes for each node) are kept between calls, one for each thread that calls at the same time.
    """

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._free: list[Tensor] = []

    @contextmanager
    def of(self, nodes: Tensor) -> Iterator[Tensor]:
        """int64 [num_nodes]: i for nodes[i], -1 for other nodes; valid within the `with`. `nodes` are distinct."""
        try:
            table = self._free.pop()
        except IndexError:
            with torch.inference_mode(False):
                table = torch.full((self._num_nodes,), -1, dtype=torch.int64, device="cpu")
        table[nodes] = torch.arange(nodes.numel(), device="cpu")
        try:
            yield table
        finally:
            table[nodes] = -1
            self._free.append(table)


def edges_between(graph: Adjacency, numbers: Tensor, rows: Tensor) -> HopEdges:
    """The edges that end in `rows` (int64 [k], distinct) and start at a node v with numbers[v] >= 0, row after row.

    `numbers`: int64 [num_src]. `src` of the result holds numbers[v], `dst` positions in `rows`, `edge` numbers in the
    graph.
    """
    raw = _RawChosen(
        *map(address, (graph.indptr, graph.sources, graph.edges, numbers, rows)), rows.numel(),
        graph.indptr.dtype == torch.int64,
    )  # fmt: skip
    offsets = torch.empty(rows.numel() + 1, dtype=torch.int64, device="cpu")
    threads = num_threads()
    total = _library(toolchain()).gw_between_count(raw, address(offsets), threads)
    src, dst, edge = torch.empty(3, total, dtype=torch.int64, device="cpu")
    _library(toolchain()).gw_between_fill(raw, address(offsets), *map(address, (src, dst, edge)), threads)
    return HopEdges(src, dst, edge)


@dataclass(frozen=True, eq=False)
class Whole:
    """A graph of one relation from which subgraphs are taken: a PyG `Data` or a `Graph`, on the CPU."""

    data: Any
    src: Tensor
    dst: Tensor
    num_nodes: int
    grouped: Adjacency
    numbering: Numbering

    def subgraph(
        self,
        nodes: Tensor,
        node_fields: Mapping[str, Tensor] | None = None,
        edge_fields: Mapping[str, Tensor] | None = None,
    ) -> Any:
        """The distinct `nodes`, int64 [k], and all edges between them, sorted by destination.

        The result is of the type of `data` and has the rows of its fields (`Data`: attributes of nodes and of edges).
        Numbers in the graph are `n_id` and `e_id` of a `Data`, and the field "_ID" of a `Graph`. `node_fields` and
        `edge_fields`: name -> [num_nodes] or [num_edges] of the whole graph, whose rows are added.
        """
        with self.numbering.of(nodes) as numbers:
            edges = edges_between(self.grouped, numbers, nodes)
        of_nodes = {name: rows[nodes] for name, rows in (node_fields or {}).items()}
        of_edges = {name: rows[edges.edge] for name, rows in (edge_fields or {}).items()}
        part = _graph_part if isinstance(self.data, Graph) else _data_part
        return part(self.data, nodes, edges, of_nodes, of_edges)


def whole(data: Graph) -> Whole:
    """`data` with its edges grouped by destination. DataError unless it is a PyG `Data` with `edge_index`, or a `Graph`
    of one node type and one relation, on the CPU; IndexRangeError for an index out of range."""
    if isinstance(data, Graph):
        if not data.is_homogeneous:
            raise DataError(
                f"expected a graph of one node type and one relation (got relations"
                f" {', '.join(map(str, data.canonical_etypes))}). Pass one of them: graph[relation], or"
                " graph.to_homogeneous()."
            )
        relation = data.relation()
        src, dst, num_nodes = relation.src, relation.dst, data.num_nodes()
    elif hasattr(data, "is_node_attr") and hasattr(data, "edge_index"):
        if data.edge_index is None or data.num_nodes is None:
            raise DataError("data: expected an edge_index and a number of nodes (got neither or one). Set both.")
        (src, dst), num_nodes = data.edge_index, int(data.num_nodes)
    else:
        raise DataError(f"expected a PyG Data or a graphweave Graph (got {type(data).__name__}). Pass one of these.")
    grouped = adjacency(src, dst, num_nodes, num_nodes)
    return Whole(data, src, dst, num_nodes, grouped, Numbering(num_nodes))


def _graph_part(
    graph: Graph, nodes: Tensor, edges: HopEdges, node_fields: Mapping[str, Tensor], edge_fields: Mapping[str, Tensor]
) -> Graph:
    (ntype,), (key,) = graph.ntypes, graph.canonical_etypes
    kept, chosen = nodes.to(graph.idtype), edges.edge.to(graph.idtype)
    relation = Relation(*key, edges.src.to(graph.idtype), edges.dst.to(graph.idtype))
    ndata = {**graph.node_frame().take(nodes), **node_fields, NID: kept}
    edata = {**graph.edge_frame().take(edges.edge), **edge_fields, EID: chosen}
    return assemble(Graph, {ntype: nodes.numel()}, {key: relation}, {ntype: ndata}, {key: edata})


def _data_part(
    data: Data, nodes: Tensor, edges: HopEdges, node_fields: Mapping[str, Tensor], edge_fields: Mapping[str, Tensor]
) -> object:
    out = copy.copy(data)
    for name, value in data.items():
        if name in ("edge_index", "num_nodes"):
            continue
        if data.is_node_attr(name):
            out[name] = _rows(value, nodes, data.__cat_dim__(name, value))
        elif data.is_edge_attr(name):
            out[name] = _rows(value, edges.edge, data.__cat_dim__(name, value))
    out.edge_index = torch.stack([edges.src, edges.dst])
    out.num_nodes = nodes.numel()
    for name, value in {**node_fields, **edge_fields, "n_id": nodes, "e_id": edges.edge}.items():
        out[name] = value
    return out


def _rows(value: Tensor, index: Tensor, dim: int) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(dim, index)
    if isinstance(value, (list, tuple)):
        return type(value)(value[i] for i in index.tolist())
    return value.take(index.numpy(), axis=dim)


@lru_cache(maxsize=8)
def _library(tools: object) -> ctypes.CDLL:
    """`tools` is only the key of the cache: other compiler settings give another library."""
    found = kernel_cache.library(sources.source("subgraphs.cpp"))
    chosen = ctypes.POINTER(_RawChosen)
    found.gw_between_count.argtypes = (chosen, _POINTER, Int32)
    found.gw_between_count.restype = _I64
    found.gw_between_fill.argtypes = (chosen, *(_POINTER,) * 4, Int32)
    found.gw_between_fill.restype = None
    return found
