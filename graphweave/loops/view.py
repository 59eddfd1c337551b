"""`GraphView`, the graph as functions written in loops see it. It is made from a graph or from tensors."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import torch
from torch import Tensor

from graphweave.core.errors import DataError, LoopError
from graphweave.graph.frame import ETYPE, NTYPE
from graphweave.graph.graph import Graph
from graphweave.loops.rows import Edge, Node
from graphweave.loops.scope import Loop, LoopGraph, Once, RowFields
from graphweave.loops.source import check_code


class LoopEdges:
    """Edges src[e] -> dst[e], and tensors of shape [nodes, 0] for sources and for destinations.

    The last two are one object if sources and destinations are the same nodes.
    """

    def __init__(self, src: Tensor, dst: Tensor, sources: Tensor, destinations: Tensor) -> None:
        self.src, self.dst, self.sources, self.destinations = src, dst, sources, destinations


class LoopFields:
    """Fields [rows, ...] of sources, destinations (one object if they are the same nodes) and edges."""

    def __init__(self, sources: dict[str, Tensor], destinations: dict[str, Tensor], edges: dict[str, Tensor]) -> None:
        self.sources, self.destinations, self.edges = sources, destinations, edges


class GraphView:
    """The graph `g` inside a function written in loops.

    Loops run over `g.edges()`, `g.nodes()`, `g.dst_nodes()` and `g.src_nodes()`. Outside of loops, the fields in
    `g.ndata`, `g.edata`, `g.srcdata` and `g.dstdata` may be read and set as tensors.
    """

    def __init__(self, ends: LoopEdges, fields: LoopFields, checked: bool) -> None:
        rows = ends.src.new_empty((ends.src.shape[0], 0))
        same = ends.sources is ends.destinations
        sources = RowFields("n", "ndata" if same else "srcdata", "nodes", ends.sources, fields.sources)
        destinations = sources
        if not same:
            destinations = RowFields("n", "dstdata", "nodes", ends.destinations, fields.destinations)
        edges = RowFields("e", "edata", "edges", rows, fields.edges)
        self._structure = LoopGraph(ends.src, ends.dst, sources, destinations, edges, checked)

    def edges(self) -> Once:
        """A loop over all edges."""
        return self._over(self._structure.edges)

    def nodes(self) -> Once:
        """A loop over all nodes. LoopError in a bipartite graph, where `dst_nodes` and `src_nodes` are different
        nodes."""
        return self._over(self._only())

    def dst_nodes(self) -> Once:
        """A loop over the nodes at which edges may end."""
        return self._over(self._structure.destinations)

    def src_nodes(self) -> Once:
        """A loop over the nodes at which edges may start."""
        return self._over(self._structure.sources)

    @property
    def ndata(self) -> FieldView:
        return FieldView(self._structure, self._only())

    @property
    def srcdata(self) -> FieldView:
        return FieldView(self._structure, self._structure.sources)

    @property
    def dstdata(self) -> FieldView:
        return FieldView(self._structure, self._structure.destinations)

    @property
    def edata(self) -> FieldView:
        return FieldView(self._structure, self._structure.edges)

    def num_nodes(self) -> int:
        return self._only().num_rows()

    def num_edges(self) -> int:
        return self._structure.src.shape[0]

    def results(self) -> LoopFields:
        """The fields that were set. LoopError if a loop was left before its end."""
        s = self._structure
        if s.current is not None:
            raise LoopError(
                "a loop over edges or nodes was left by break or return: its body is run once, for all rows."
                " Let the loop run to its end."
            )
        sources = s.sources.results()
        same = s.destinations is s.sources
        return LoopFields(sources, sources if same else s.destinations.results(), s.edges.results())

    def _only(self) -> RowFields:
        s = self._structure
        if s.sources is not s.destinations:
            raise LoopError(
                "the graph is bipartite: say whose nodes are meant, g.src_nodes(), g.dst_nodes(), g.srcdata, g.dstdata."
                " Write one of these."
            )
        return s.sources

    def _over(self, store: RowFields) -> Once:
        if not torch.compiler.is_compiling():
            check_code(sys._getframe(2).f_code)
        loop = Loop(self._structure, store)
        return Once(loop, Edge(loop) if loop.over_edges else Node(loop))


class FieldView(MutableMapping[str, Tensor]):
    """Fields of all nodes or edges, name -> [rows, ...], which may be read and set outside of loops."""

    def __init__(self, structure: LoopGraph, store: RowFields) -> None:
        self._structure, self._store = structure, store

    def __getitem__(self, name: str) -> Tensor:
        self._check(name)
        return self._store.tensor(name)

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._check(name)
        self._store.replace(name, value)

    def __delitem__(self, name: str) -> None:
        raise LoopError("fields are not deleted inside a function written in loops. Delete it outside.")

    def __contains__(self, name: object) -> bool:
        return name in self._store.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.names())

    def __len__(self) -> int:
        return len(self._store.names())

    def _check(self, name: str) -> None:
        if self._structure.current is not None:
            where, row = self._store.where, self._store.one
            raise LoopError(f"g.{where}[{name!r}] is the data of all rows: inside a loop use {row}[{name!r}].")


# ---------------------------------------------------------------- graphs


class TypedEdges:
    """A graph for functions written in loops, made of plain tensors.

    `edge_index` is [2, edges], as in PyG. `num_nodes` is a number, or (sources, destinations) of a bipartite graph; the
    default is the number of rows of the first tensor in `ndata`. `etype` [edges] and `ntype` [nodes] are integers.
    `ndata` (or `srcdata` and `dstdata`) and `edata` hold tensors with a row for each node and each edge. After a call,
    the attributes of these names hold the fields that the function has set. A field with a wrong number of rows raises
    DataError.
    """

    def __init__(
        self, edge_index: Tensor, num_nodes: int | tuple[int, int] | None = None, *, etype: Tensor | None = None,
        ntype: Tensor | None = None, ndata: Mapping[str, Tensor] | None = None,
        edata: Mapping[str, Tensor] | None = None, srcdata: Mapping[str, Tensor] | None = None,
        dstdata: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.dtype not in (torch.int32, torch.int64):
            raise DataError(
                f"edge_index must be [2, edges] of whole numbers (got {edge_index.dtype}, {list(edge_index.shape)})."
                " Convert it with .long()."
            )
        self.ndata: dict[str, Tensor] = dict(ndata or {})
        self.srcdata = dict(srcdata or {}) if isinstance(num_nodes, tuple) else self.ndata
        self.dstdata = dict(dstdata or {}) if isinstance(num_nodes, tuple) else self.ndata
        self.edata: dict[str, Tensor] = dict(edata or {})
        if ntype is not None:
            self.ndata[NTYPE] = ntype
        if etype is not None:
            self.edata[ETYPE] = etype
        if num_nodes is None:
            if not self.ndata:
                raise DataError("TypedEdges: give num_nodes, or a tensor of nodes in ndata. Pass one of them.")
            num_nodes = next(iter(self.ndata.values())).shape[0]
        sizes = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        self._rows = [torch.empty((n, 0), device=edge_index.device) for n in sizes]
        if not isinstance(num_nodes, tuple):
            self._rows[1] = self._rows[0]
        self._edge_index = edge_index

    def parts(self) -> tuple[LoopEdges, LoopFields]:
        return LoopEdges(self._edge_index[0], self._edge_index[1], *self._rows), LoopFields(
            self.srcdata, self.dstdata, self.edata
        )

    def store(self, fields: LoopFields) -> None:
        self.srcdata.update(fields.sources)
        if self.dstdata is not self.srcdata:
            self.dstdata.update(fields.destinations)
        self.edata.update(fields.edges)


class _Plain:
    """The source of a `Graph` with one relation whose nodes are all of the types at its ends."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def parts(self) -> tuple[LoopEdges, LoopFields]:
        g, r = self._graph, self._graph.relation()
        src, dst = g.node_frame(r.srctype), g.node_frame(r.dsttype)
        sources = src.take(None)
        destinations = sources if src is dst else dst.take(None)
        return LoopEdges(r.src, r.dst, src.rows, dst.rows), LoopFields(sources, destinations, g.edge_frame().take(None))

    def store(self, fields: LoopFields) -> None:
        g, r = self._graph, self._graph.relation()
        g.node_frame(r.srctype).update(fields.sources)
        if r.srctype != r.dsttype:
            g.node_frame(r.dsttype).update(fields.destinations)
        g.edge_frame().update(fields.edges)


_joined: weakref.WeakKeyDictionary[Graph, tuple[LoopEdges, Tensor, Tensor]] = weakref.WeakKeyDictionary()
"""For each graph of several types, the graph with all its types joined into one, and the types of its nodes and
edges."""


class _Typed:
    """The source of a `Graph` of several types, joined type after type, in the order of `ntypes` and of relations.

    The joined graph has those fields that every type has, with features of the same shape and dtype.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = list(graph.node_frames.values())
        self._edges = list(graph.edge_frames.values())

    def parts(self) -> tuple[LoopEdges, LoopFields]:
        joined = None if torch.compiler.is_compiling() else _joined.get(self._graph)
        if joined is None:
            joined = self._join()
            if not torch.compiler.is_compiling():
                _joined[self._graph] = joined
        ends, ntype, etype = joined
        nodes, edges = _common(self._nodes), _common(self._edges)
        nodes[NTYPE], edges[ETYPE] = ntype, etype
        return ends, LoopFields(nodes, nodes, edges)

    def _join(self) -> tuple[LoopEdges, Tensor, Tensor]:
        offset, start = {}, 0
        for name, frame in self._graph.node_frames.items():
            offset[name] = start
            start = start + frame.num_rows
        relations = list(self._graph.relations.values())
        src = torch.cat([r.src + offset[r.srctype] for r in relations])
        dst = torch.cat([r.dst + offset[r.dsttype] for r in relations])
        rows = torch.cat([frame.rows for frame in self._nodes])
        return (
            LoopEdges(src, dst, rows, rows),
            _numbered([f.rows for f in self._nodes]),
            _numbered([r.src for r in relations]),
        )

    def store(self, fields: LoopFields) -> None:
        for frames, values in ((self._nodes, fields.sources), (self._edges, fields.edges)):
            for name, value in values.items():
                for frame, part in zip(frames, value.split([f.num_rows for f in frames]), strict=True):
                    frame[name] = part


def _numbered(parts: Sequence[Tensor]) -> Tensor:
    """0 for each row of the first part, 1 for each row of the second, and so on."""
    return torch.cat([torch.full((x.shape[0],), i, dtype=torch.int64, device=x.device) for i, x in enumerate(parts)])


def _common(frames: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    out = {}
    for name in frames[0] if frames else ():
        if all(name in frame for frame in frames):
            values = [frame[name] for frame in frames]
            if len({(x.shape[1:], x.dtype) for x in values}) == 1:
                out[name] = torch.cat(values)
    return out


def source_of(graph: object) -> TypedEdges | _Plain | _Typed:
    """The object that provides the edges and fields of `graph`, and stores the fields that a function sets."""
    if isinstance(graph, TypedEdges):
        return graph
    if not isinstance(graph, Graph):
        raise DataError(
            "a function written in loops takes a graphweave graph or graphweave.loops.TypedEdges first "
            f"(got {type(graph).__name__})."
            " Pass one of them."
        )
    relations = graph.canonical_etypes
    if len(relations) == 1 and set(graph.ntypes) == {relations[0][0], relations[0][2]}:
        return _Plain(graph)
    return _Typed(graph)
