"""`DGLGraph`: a graph as DGL has it, whose structure may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl import matrices, messages, mutate, select, slices
from graphweave.dgl.formats import FormattedGraph
from graphweave.dgl.given_edges import given_edges
from graphweave.graph import build, query, transform
from graphweave.graph.argument_types import Device
from graphweave.graph.frame import Frame
from graphweave.graph.graph import Graph
from graphweave.graph.messaging import EdgeFunction, NodeFunction
from graphweave.graph.relation import CanonicalEtype, Etype
from graphweave.graph.structure import Structure

_FUNCTIONS = frozenset({
    "add_reverse_edges", "edge_type_subgraph", "khop_adj", "khop_graph", "laplacian_lambda_max", "line_graph",
    "node_type_subgraph", "norm_by_dst", "reorder_graph", "to_bfloat16", "to_block", "to_cugraph", "to_double",
    "to_float", "to_half", "to_simple",
})  # fmt: skip
"""Functions of the package that are methods of graphs, too: `g.to_simple()` is `dgl.to_simple(g)`."""


_SIDES = ("SRC", "DST")
"""Words that may stand, with "/" behind them, in front of the name of a node type."""


class Scheme(NamedTuple):
    """The shape of a field's rows, and their dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class DGLGraph(FormattedGraph):
    """A `graphweave.Graph` with the rest of DGL's methods. What changes its structure replaces its relations."""

    is_block = False
    """Whether the nodes at which edges end are other nodes than those of the same type at which they start."""

    def __init__(
        self,
        relations: Any = (),
        node_frames: Mapping[str, Frame] | None = None,
        edge_frames: Mapping[CanonicalEtype, Frame] | None = None,
        batch: tuple[dict[str, Tensor], dict[CanonicalEtype, Tensor]] | None = None,
    ) -> None:
        """Called as `graphweave.Graph` by the functions that make graphs. `DGLGraph(edges)`, which DGL calls old, is
        `dgl.graph(edges)`; `DGLGraph()` is an empty graph."""
        if node_frames is None:
            edges = given_edges(relations if relations != () else ([], []), None, None)
            made = build.graph((edges.src, edges.dst), edges.num_src)
            relations, node_frames, edge_frames = made.relations, made.node_frames, made.edge_frames
        super().__init__(relations, node_frames, edge_frames or {}, batch)

    @classmethod
    def like(cls, graph: Structure) -> DGLGraph:
        """A graph of this class with the structure of `graph`. Fields are shared: set in one, they are set in both."""
        return transform.shared(cls, graph)

    def __getattr__(self, name: str) -> Any:
        if name not in _FUNCTIONS:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        function = getattr(import_module("graphweave.dgl"), name)
        return lambda *args, **options: function(self, *args, **options)

    # Types

    metagraph = matrices.metagraph

    def get_ntype_id(self, ntype: str | None) -> int:
        """The position of a node type in `ntypes`."""
        return list(self.node_frames).index(self.to_ntype(ntype))

    def get_etype_id(self, etype: Etype | None) -> int:
        """The position of a relation in `canonical_etypes`."""
        return list(self.relations).index(self.relation_key(etype))

    @property
    def is_multigraph(self) -> bool:
        """Whether a relation has two edges with the same ends."""
        return any(matrices.has_parallel_edges(self, relation) for relation in self.relations.values())

    @property
    def _etype2canonical(self) -> dict[str, object]:
        """Name -> canonical relation, or () where several relations have the name. (DGL's tests and scripts read
        it.)"""
        names = self.etypes
        return {key[1]: key if names.count(key[1]) == 1 else () for key in self.canonical_etypes}

    def to_ntype(self, ntype: str | None, among: tuple[str, ...] | None = None) -> str:
        """The name of a type, also with the side in front of it, "SRC/name" or "DST/name", if edges run one way."""
        if isinstance(ntype, str) and ntype not in self.node_frames and self.is_unibipartite:
            side, _, name = ntype.partition("/")
            if name and side in _SIDES:
                return super().to_ntype(name, self._sides()[_SIDES.index(side)])
        return super().to_ntype(ntype, among)

    number_of_nodes = Graph.num_nodes
    number_of_edges = Graph.num_edges
    number_of_src_nodes = Graph.num_src_nodes
    number_of_dst_nodes = Graph.num_dst_nodes

    # Queries that DGL knows by several names

    has_node = Graph.has_nodes
    has_edge_between = Graph.has_edges_between

    def in_degrees(self, v: object = query.ALL, etype: Etype | None = None) -> Any:
        """The number of edges that end in each node: [num_nodes], [k] for nodes v, an int for one integer."""
        self.require_format(("coo", "csc"), "in_degrees")
        return super().in_degrees(v, etype)

    def out_degrees(self, u: object = query.ALL, etype: Etype | None = None) -> Any:
        """The number of edges that start in each node: [num_nodes], [k] for nodes u, an int for one integer."""
        self.require_format(("coo", "csr"), "out_degrees")
        return super().out_degrees(u, etype)

    in_degree, out_degree = in_degrees, out_degrees

    __getitem__ = slices.take_relations

    # Structure that changes

    def add_nodes(self, num: int, data: Mapping[str, Tensor] | None = None, ntype: str | None = None) -> None:
        """Append `num` nodes of `ntype`, with the fields `data` [num, ...]. In other fields the new rows are zeros, and
        so are the old rows of a field that did not exist. DataError for a negative number."""
        self._become(mutate.with_nodes(self, num, data, ntype))

    def add_edges(
        self, u: object, v: object, data: Mapping[str, Tensor] | None = None, etype: Etype | None = None
    ) -> None:
        """Append the edges u[i] -> v[i], with the fields `data` [k, ...] as in `add_nodes`. If u or v is a single
        node, it is repeated. Nodes that do not exist yet are added."""
        self._become(mutate.with_edges(self, u, v, data, etype))

    def remove_edges(self, eids: object, etype: Etype | None = None, store_ids: bool = False) -> None:
        """Remove the edges `eids`. Others keep their order, and with `store_ids` their old numbers as the field
        '_ID'."""
        self._become(mutate.without_edges(self, eids, etype, store_ids))

    def remove_nodes(self, nids: object, ntype: str | None = None, store_ids: bool = False) -> None:
        """Remove the nodes `nids` and the edges that start or end there; `store_ids` as in `remove_edges`."""
        self._become(mutate.without_nodes(self, nids, ntype, store_ids))

    def _become(self, other: Structure) -> None:
        """Take over the structure and fields of a graph with the same types."""
        if other is self:
            return
        for mine, others in ((self.node_frames, other.node_frames), (self.edge_frames, other.edge_frames)):
            for key, frame in mine.items():
                others[key].initializers = frame.initializers  # type: ignore[index]
        self.relations, self.batch_counts = other.relations, other.batch_counts
        self.node_frames, self.edge_frames = other.node_frames, other.edge_frames
        self._created = ("coo",)

    def set_batch_num_nodes(self, val: object) -> None:
        """Say how many nodes each batched graph has: int [batch_size], or node type -> such numbers."""
        named = val if isinstance(val, Mapping) else {None: val}
        nodes = {self.to_ntype(t): torch.as_tensor(n).to(self.device) for t, n in named.items()}
        self.batch_counts = nodes, (self.batch_counts or ({}, {}))[1]

    def set_batch_num_edges(self, val: object) -> None:
        """Say how many edges each batched graph has: int [batch_size], or relation -> such numbers."""
        named = val if isinstance(val, Mapping) else {None: val}
        edges = {self.relation_key(e): torch.as_tensor(n).to(self.device) for e, n in named.items()}
        self.batch_counts = (self.batch_counts or ({}, {}))[0], edges

    def set_n_initializer(
        self, initializer: Callable[..., Tensor], field: str | None = None, ntype: str | None = None
    ) -> None:
        """Fill the rows of new nodes by `initializer(shape, dtype, device, range of ids)`, in `field` or (None) in all
        fields without one of their own. Without any they are zeros."""
        self.node_frame(ntype).initializers[field] = initializer

    def set_e_initializer(
        self, initializer: Callable[..., Tensor], field: str | None = None, etype: Etype | None = None
    ) -> None:
        """Like `set_n_initializer`, for new edges."""
        self.edge_frame(etype).initializers[field] = initializer

    # Messages

    def update_all(
        self,
        message_func: EdgeFunction,
        reduce_func: NodeFunction,
        apply_node_func: NodeFunction | None = None,
        etype: Etype | None = None,
    ) -> None:
        """`Graph.update_all`. With built-in functions and several relations and no `etype`, along all of them:
        `messages.update_all_relations`."""
        if etype is None and len(self.relations) > 1:
            messages.update_all_relations(self, message_func, reduce_func, apply_node_func)
        else:
            messages.update_all(self, message_func, reduce_func, apply_node_func, etype)

    def pull(
        self,
        v: object,
        message_func: EdgeFunction,
        reduce_func: NodeFunction,
        apply_node_func: NodeFunction | None = None,
        etype: Etype | None = None,
    ) -> None:
        """`Graph.pull`. Where no edge ends in any of the nodes v, only `apply_node_func` changes them."""
        if bool((torch.as_tensor(self.in_degrees(v, etype)) > 0).any()):
            super().pull(v, message_func, reduce_func, apply_node_func, etype=etype)
        elif apply_node_func is not None:
            self.apply_nodes(apply_node_func, v, self.relation(etype).dsttype)

    def apply_edges(self, func: EdgeFunction, edges: object = query.ALL, etype: Etype | None = None) -> None:
        """`Graph.apply_edges`. With a built-in function and several relations and no `etype`, on all of them."""
        if etype is None and len(self.relations) > 1:
            messages.apply_edges_of_relations(self, func, edges)
        else:
            super().apply_edges(func, edges, etype)

    prop_nodes = messages.prop_nodes
    prop_edges = messages.prop_edges
    filter_nodes = select.filter_nodes
    filter_edges = select.filter_edges

    # Fields

    def node_attr_schemes(self, ntype: str | None = None) -> dict[str, Scheme]:
        """Field -> (shape of a row, dtype)."""
        return {name: Scheme(*scheme) for name, scheme in self.node_frame(ntype).schemes().items()}

    def edge_attr_schemes(self, etype: Etype | None = None) -> dict[str, Scheme]:
        """Field -> (shape of a row, dtype)."""
        return {name: Scheme(*scheme) for name, scheme in self.edge_frame(etype).schemes().items()}

    # Matrices

    adj = adjacency_matrix = matrices.adj
    adj_external = matrices.adj_external
    adj_tensors = matrices.adj_tensors
    inc = incidence_matrix = matrices.inc

    # Graphs made from this one

    def astype(self, idtype: torch.dtype) -> DGLGraph:
        """The graph with ids of `idtype`."""
        return transform.with_idtype(self, idtype)

    def clone(self) -> DGLGraph:
        """A graph with the same structure and fields; changes of one do not change the other."""
        return self.local_var()

    def to(self: D, device: Device, **options: object) -> D:
        """The graph with structure and fields on `device`."""
        return super().to(device)

    def subgraph(
        self, nodes: object, *, relabel_nodes: bool = True, store_ids: bool = True, output_device: Device | None = None
    ) -> DGLGraph:
        """`Graph.subgraph`, on `output_device`."""
        return on_device(super().subgraph(nodes, relabel_nodes=relabel_nodes, store_ids=store_ids), output_device)

    def edge_subgraph(
        self, edges: object, *, relabel_nodes: bool = True, store_ids: bool = True, output_device: Device | None = None
    ) -> DGLGraph:
        """`Graph.edge_subgraph`, on `output_device`."""
        return on_device(super().edge_subgraph(edges, relabel_nodes=relabel_nodes, store_ids=store_ids), output_device)

    def in_subgraph(
        self, nodes: object, *, relabel_nodes: bool = False, store_ids: bool = True, output_device: Device | None = None
    ) -> DGLGraph:
        """`Graph.in_subgraph`, on `output_device`."""
        return on_device(super().in_subgraph(nodes, relabel_nodes=relabel_nodes, store_ids=store_ids), output_device)

    def out_subgraph(
        self, nodes: object, *, relabel_nodes: bool = False, store_ids: bool = True, output_device: Device | None = None
    ) -> DGLGraph:
        """`Graph.out_subgraph`, on `output_device`."""
        return on_device(super().out_subgraph(nodes, relabel_nodes=relabel_nodes, store_ids=store_ids), output_device)

    def is_pinned(self) -> bool:
        """False: nothing pins the memory of a graph."""
        return False

    def shared_memory(self, name: str, formats: object = None) -> DGLGraph:
        """DataError: graphs in named shared memory do not exist here."""
        raise DataError(
            f"shared_memory({name!r}): graphs are not kept in named shared memory. Pass the graph to the process, which"
            " shares its tensors (torch.multiprocessing)."
        )

    def __repr__(self) -> str:
        if self.is_homogeneous:
            return (
                f"Graph(num_nodes={self.num_nodes()}, num_edges={self.num_edges()},\n"
                f"      ndata_schemes={self.node_attr_schemes()}\n      edata_schemes={self.edge_attr_schemes()})"
            )
        nodes = {ntype: frame.num_rows for ntype, frame in self.node_frames.items()}
        edges = {key: relation.num_edges for key, relation in self.relations.items()}
        return f"Graph(num_nodes={nodes},\n      num_edges={edges},\n      metagraph={self._named_ends()})"

    def _named_ends(self) -> str:
        return str([(src, dst, name) for src, name, dst in self.canonical_etypes])


D = TypeVar("D", bound=DGLGraph)


def on_device(graph: D, device: Device | None) -> D:
    """The graph on `device`, or (None) where it is."""
    return graph if device is None else graph.to(device)
