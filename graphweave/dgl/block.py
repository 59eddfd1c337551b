"""`DGLBlock`: a bipartite graph whose destination types may have the names of its source types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.given_edges import GivenEdges, given_edges
from graphweave.dgl.graph import _SIDES, DGLGraph
from graphweave.graph import build
from graphweave.graph.argument_types import Device
from graphweave.graph.assemble import assemble
from graphweave.graph.frame import Frame, TypedFrames
from graphweave.graph.relation import CanonicalEtype, Etype, Relation

DST = "_dst"
"""The ending of names of destination types within the graph, which makes them differ from the sources' names."""


class DGLBlock(DGLGraph):
    """A graph whose edges run from `srctypes` to `dsttypes`, which are other nodes even where types have one name.

    Within the graph (`relations`, `node_frames`) names of destination types end in `DST`. Its methods take
    and return names without it, and a type that is on both sides means the side that the method is about: `srcnodes`,
    `srcdata`, `num_src_nodes`, or `dstnodes`, `dstdata`, `num_dst_nodes`. Where a method is about neither, it is the
    sources' side, "SRC/name" one and "DST/name" the other.
    """

    is_block = True

    @property
    def is_homogeneous(self) -> bool:
        return False

    @property
    def is_unibipartite(self) -> bool:
        return True

    def _sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        sources = tuple(t for t in self.node_frames if not t.endswith(DST))
        return sources, tuple(t for t in self.node_frames if t.endswith(DST))

    @property
    def ntypes(self) -> list[str]:
        """Names of the source types, then those of the destination types."""
        return [_plain(t) for t in self.node_frames]

    @property
    def srctypes(self) -> list[str]:
        return [_plain(t) for t in self._sides()[0]]

    @property
    def dsttypes(self) -> list[str]:
        return [_plain(t) for t in self._sides()[1]]

    @property
    def canonical_etypes(self) -> list[CanonicalEtype]:
        return [_outside(key) for key in self.relations]

    def to_canonical_etype(self, etype: Etype | None) -> CanonicalEtype:
        return _outside(self.relation_key(etype))

    def relation_key(self, etype: Etype | None) -> CanonicalEtype:
        if isinstance(etype, tuple) and len(etype) == 3 and etype not in self.relations:
            etype = (etype[0], etype[1], etype[2] + DST)
        return super().to_canonical_etype(etype)

    def to_ntype(self, ntype: str | None, among: tuple[str, ...] | None = None) -> str:
        types = tuple(self.node_frames) if among is None else among
        side, _, name = ntype.partition("/") if isinstance(ntype, str) else ("", "", "")
        if name and side in _SIDES:
            types, ntype = self._sides()[_SIDES.index(side)], name + DST * _SIDES.index(side)
            return super().to_ntype(ntype, types)
        if ntype is None or (ntype in types and (among is not None or ntype + DST not in types)):
            return super().to_ntype(ntype, types)
        found = [t for t in types if _plain(t) == ntype]
        if found:
            return found[0]  # the side of the sources
        raise DataError(f"the block has no node type {ntype!r}; it has {', '.join(self.ntypes)}. Name one of these.")

    def node_frame(self, ntype: str | None = None) -> Frame:
        return self.node_frames[ntype] if ntype in self.node_frames and ntype.endswith(DST) else super().node_frame(
            ntype
        )  # fmt: skip

    def num_nodes(self, ntype: str | None = None) -> int:
        if ntype is None or (ntype in self.node_frames and ntype.endswith(DST)):
            return super().num_nodes(ntype)
        if ntype.startswith(tuple(f"{side}/" for side in _SIDES)):
            return self.node_frames[self.to_ntype(ntype)].num_rows
        return sum([frame.num_rows for t, frame in self.node_frames.items() if _plain(t) == self.checked(ntype)])

    def checked(self, ntype: str) -> str:
        """`ntype`, if it is a type of the block: DataError otherwise."""
        if ntype not in self.ntypes:
            raise DataError(f"the block has no node type {ntype!r}; it has {', '.join(self.ntypes)}. Name one of them.")
        return ntype

    def _node_data(self, where: str, types: tuple[str, ...]) -> Frame | TypedFrames:
        if len(types) == 1:
            return self.node_frames[types[0]]
        names = types if where == "ndata" else tuple(map(_plain, types))
        return TypedFrames(where, {name: self.node_frames[t] for name, t in zip(names, types, strict=True)})

    @property
    def edata(self) -> Any:
        if len(self.edge_frames) == 1:
            return self.edge_frame()
        return TypedFrames("edata", {_outside(key): frame for key, frame in self.edge_frames.items()})

    def __repr__(self) -> str:
        src = {t: self.num_src_nodes(t) for t in self.srctypes}
        dst = {t: self.num_dst_nodes(t) for t in self.dsttypes}
        edges = {_outside(key): r.num_edges for key, r in self.relations.items()}
        if len(src) == len(dst) == len(edges) == 1:
            return (
                f"Block(num_src_nodes={self.num_src_nodes()}, num_dst_nodes={self.num_dst_nodes()},"
                f" num_edges={self.num_edges()})"
            )
        return (
            f"Block(num_src_nodes={src},\n      num_dst_nodes={dst},\n      num_edges={edges},\n"
            f"      metagraph={self._named_ends()})"
        )


def make_block(
    num_src: Mapping[str, int],
    num_dst: Mapping[str, int],
    edges: Mapping[CanonicalEtype, tuple[Tensor, Tensor]],
    srcdata: Mapping[str, Mapping[str, Tensor]] | None = None,
    dstdata: Mapping[str, Mapping[str, Tensor]] | None = None,
    edata: Mapping[CanonicalEtype, Mapping[str, Tensor]] | None = None,
) -> DGLBlock:
    """A block from numbers of nodes and fields by type, and edges (src, dst) by canonical relation. Nothing is
    checked."""
    inner = {key: (key[0], key[1], key[2] + DST) for key in edges}
    relations = {inner[key]: Relation(*inner[key], *ends) for key, ends in edges.items()}
    nodes = dict(num_src) | {t + DST: num for t, num in num_dst.items()}
    ndata = dict(srcdata or {}) | {t + DST: fields for t, fields in (dstdata or {}).items()}
    return assemble(DGLBlock, nodes, relations, ndata, {inner[key]: fields for key, fields in (edata or {}).items()})


def create_block(
    data_dict: object, num_src_nodes: object = None, num_dst_nodes: Any = None, idtype: torch.dtype | None = None,
    device: Device | None = None, node_count_check: bool = True,
) -> DGLBlock:  # fmt: skip
    """A block from edges in any form that `graph` takes, or relation -> edges. Without a dict its types are "_N" and
    its relation "_E".

    `num_src_nodes`, `num_dst_nodes`: one more than the largest id if None; with a dict of relations type -> number.
    DataError if only one of them is given, or IndexRangeError if an id is not below it.
    """
    if (num_src_nodes is None) != (num_dst_nodes is None):
        raise DataError("expected both numbers of nodes or none (got one). Pass num_src_nodes and num_dst_nodes.")
    if not isinstance(data_dict, Mapping):
        data_dict = {("_N", "_E", "_N"): data_dict}
        if num_src_nodes is not None and not isinstance(num_src_nodes, Mapping):
            num_src_nodes, num_dst_nodes = {"_N": num_src_nodes}, {"_N": num_dst_nodes}
    found = {key: given_edges(data_dict[key], idtype, device) for key in sorted(data_dict)}
    num_src = _sizes(found, 0, num_src_nodes, node_count_check)
    num_dst = _sizes(found, 1, num_dst_nodes, node_count_check)
    return make_block(num_src, num_dst, {key: (edges.src, edges.dst) for key, edges in found.items()})


def _sizes(found: Mapping[CanonicalEtype, GivenEdges], side: int, given: Any, check: bool) -> dict[str, int]:
    needed: dict[str, int] = {}
    for key, edges in found.items():
        ids, known = (edges.dst, edges.num_dst) if side else (edges.src, edges.num_src)
        ntype = key[2 * side]
        largest = build.nodes_needed([(f"relation {key}", ids)], None, "nodes") if ids.numel() else 0
        needed[ntype] = max(needed.get(ntype, 0), largest, known or 0)
    if given is None:
        return {t: needed[t] for t in sorted(needed)}
    missing = sorted(needed.keys() - given.keys())
    if missing:
        raise DataError(f"create_block: expected a number of nodes of {', '.join(missing)} (got none). Add them.")
    few = [t for t, num in needed.items() if check and num > given[t]]
    if few:
        raise DataError(
            f"create_block: node type {few[0]!r} must have {needed[few[0]]} nodes at least (got {given[few[0]]})."
            " Pass a larger number."
        )
    return {t: int(given[t]) for t in sorted(given)}


def block_to_graph(block: DGLBlock) -> DGLGraph:
    """A graph of the block's edges whose source types end in "_src" and whose destination types end in "_dst"."""
    names = {t: t[: -len(DST)] + "_dst" if t.endswith(DST) else t + "_src" for t in block.node_frames}
    relations, edata = {}, {}
    for key, r in block.relations.items():
        named = (names[key[0]], key[1], names[key[2]])
        relations[named] = Relation(*named, r.src, r.dst)
        edata[named] = block.edge_frames[key].take(None)
    sizes = {names[t]: frame.num_rows for t, frame in block.node_frames.items()}
    ndata = {names[t]: frame.take(None) for t, frame in block.node_frames.items()}
    return assemble(DGLGraph, {t: sizes[t] for t in sorted(sizes)}, relations, ndata, edata)


def _plain(ntype: str) -> str:
    return ntype[: -len(DST)] if ntype.endswith(DST) else ntype


def _outside(key: CanonicalEtype) -> CanonicalEtype:
    return key[0], key[1], _plain(key[2])
