"""Transforms that add or remove edges by a rule, or make another graph of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from graphweave.dgl.construct import heterograph
from graphweave.dgl.distinct import to_simple
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import khop_graph, line_graph, metapath_reachable_graph, one_relation
from graphweave.dgl.transforms.base import BaseTransform
from graphweave.graph import transform
from graphweave.graph.assemble import counts
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.graph.transform import add_self_loop, remove_self_loop

_SELF, _REVERSED = "self", "rev_"


class AddSelfLoop(BaseTransform):
    """An edge v -> v for each node, in each relation within one node type.

    Existing self-loops are removed first, unless `allow_duplicate`. With `new_etypes` each node type also gets a
    relation (type, "self", type) of its loops. `edge_feat_names` and `fill_data` as in `add_self_loop`.
    """

    def __init__(
        self,
        allow_duplicate: bool = False,
        new_etypes: bool = False,
        edge_feat_names: list[str] | None = None,
        fill_data: float | str = 1.0,
    ) -> None:
        self.allow_duplicate, self.new_etypes = allow_duplicate, new_etypes
        self.edge_feat_names, self.fill_data = edge_feat_names, fill_data

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for key in g.canonical_etypes:
            if key[0] == key[2]:
                cleared = g if self.allow_duplicate else remove_self_loop(g, key)
                g = add_self_loop(cleared, self.edge_feat_names, self.fill_data, key)
        if not self.new_etypes:
            return g
        loops = {}
        for t, num in counts(g).items():
            nodes = torch.arange(num, dtype=g.idtype, device=g.device)
            loops[t, _SELF, t] = Relation(t, _SELF, t, nodes, nodes)
        return _with_relations(g, loops, {})


class RemoveSelfLoop(BaseTransform):
    """No edges v -> v in any relation."""

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for key in g.canonical_etypes:
            if key[0] == key[2]:
                g = remove_self_loop(g, key)
        return g


class AddReverse(BaseTransform):
    """An edge v -> u for each edge u -> v: in a relation "rev_NAME", or, within one node type, after the other edges of
    the relation, unless `sym_new_etype`. With `copy_edata` it has the fields of its edge, else zeros, or in a new
    relation none."""

    def __init__(self, copy_edata: bool = False, sym_new_etype: bool = False) -> None:
        self.copy_edata, self.sym_new_etype = copy_edata, sym_new_etype

    def __call__(self, g: DGLGraph) -> DGLGraph:
        relations: dict[CanonicalEtype, Relation] = {}
        edata: dict[CanonicalEtype, dict[str, torch.Tensor]] = {}
        for key, r in g.relations.items():
            own = g.edge_frames[key].take(None)
            if key[0] == key[2] and not self.sym_new_etype:
                relations[key] = replace(r, src=torch.cat([r.src, r.dst]), dst=torch.cat([r.dst, r.src]))
                edata[key] = {
                    name: torch.cat([x, x if self.copy_edata else torch.zeros_like(x)]) for name, x in own.items()
                }
                continue
            relations[key], edata[key] = r, own
            back = (key[2], f"{_REVERSED}{key[1]}", key[0])
            relations[back], edata[back] = Relation(*back, r.dst, r.src), dict(own) if self.copy_edata else {}
        return _with_relations(g, relations, edata)


class ToSimple(BaseTransform):
    """`to_simple` with edge fields."""

    def __init__(self, return_counts: str | None = "count", aggregator: str = "arbitrary") -> None:
        self.return_counts, self.aggregator = return_counts, aggregator

    def __call__(self, g: DGLGraph) -> DGLGraph:
        return to_simple(g, return_counts=self.return_counts, copy_edata=True, aggregator=self.aggregator)


class LineGraph(BaseTransform):
    """`line_graph`, whose nodes have the fields of the edges."""

    def __init__(self, backtracking: bool = True) -> None:
        self.backtracking = backtracking

    def __call__(self, g: DGLGraph) -> DGLGraph:
        return line_graph(g, backtracking=self.backtracking, shared=True)


class KHopGraph(BaseTransform):
    """`khop_graph`."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, g: DGLGraph) -> DGLGraph:
        return khop_graph(g, self.k)


class AddMetaPaths(BaseTransform):
    """A relation (start, name, end) for each metapath, name -> canonical relations: one edge where a walk along them
    leads. Without `keep_orig_edges` only these relations stay."""

    def __init__(self, metapaths: Mapping[str, Sequence[CanonicalEtype]], keep_orig_edges: bool = True) -> None:
        self.metapaths, self.keep_orig_edges = metapaths, keep_orig_edges

    def __call__(self, g: DGLGraph) -> DGLGraph:
        added = {}
        for name, path in self.metapaths.items():
            key = (path[0][0], name, path[-1][2])
            (r,) = metapath_reachable_graph(g, path).relations.values()
            added[key] = Relation(*key, r.src, r.dst)
        return _with_relations(g, added, {}, self.keep_orig_edges)


class ToLevi(BaseTransform):
    """The graph with a node "edge" for each edge, between "node"s: relations "n2e" from the start of each, and "e2n" to
    its end. Both kinds of nodes have the fields that nodes and edges had."""

    def __call__(self, g: DGLGraph) -> DGLGraph:
        r = one_relation(g, "ToLevi")
        edges = torch.arange(r.num_edges, dtype=g.idtype, device=g.device)
        out = heterograph(
            {("node", "n2e", "edge"): (r.src, edges), ("edge", "e2n", "node"): (edges, r.dst)},
            {"node": g.num_nodes(), "edge": r.num_edges},
        )
        for kind, frame in (("node", g.node_frames[r.srctype]), ("edge", g.edge_frames[r.key])):
            for name, x in frame.items():
                out.nodes[kind].data[name] = x
        return out


def _with_relations(
    g: DGLGraph,
    relations: Mapping[CanonicalEtype, Relation],
    edata: Mapping[CanonicalEtype, Mapping[str, torch.Tensor]],
    keep: bool = True,
) -> DGLGraph:
    """g with these relations, in place of those of the same name, together with the others (`keep`)."""
    others = {key: r for key, r in g.relations.items() if key not in relations} if keep else {}
    fields = {key: g.edge_frames[key].take(None) for key in others}
    every = (
        dict(sorted({**others, **relations}.items())) if len(others) + len(relations) > 1 else {**others, **relations}
    )
    return transform.replace_edges(g, every, {**fields, **edata})
