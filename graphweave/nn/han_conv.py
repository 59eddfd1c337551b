"""Heterogeneous graph attention: over neighbours, then over meta-paths (HAN)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.graph.relation import CanonicalEtype
from graphweave.nn.ends import reset_glorot
from graphweave.udf.arguments import EdgeBatch, NodeBatch


class HANConv(nn.Module):
    """Heterogeneous graph attention: Wang et al., "Heterogeneous Graph Attention Network", WWW 2019
    (https://arxiv.org/abs/1903.07293).

    For each path p (a meta-path, or a relation) and head, with z = W_t h + b_t for nodes of type t:
    a_ji = softmax of leaky_relu(l_p . z_j + r_p . z_i) over the edges j -> i of p,
    z_i^p = activation(sum over these edges of a_ji z_j), heads joined.
    Over paths: w_p = mean over nodes of q . tanh(S z_i^p + s), h'_i = sum over p of (softmax over p of w_p) z_i^p.

    `in_feats`: a number, or type of nodes -> number. `out_feats`: features of each of `num_heads` heads. `paths`: the
    number of meta-paths, each of which is a graph over the same nodes, or the relations of a heterogeneous graph as
    (source type, name, destination type). `semantic_size`: features of q. `feat_drop`, `attn_drop`: rates of the
    dropout of features and of attention over edges. `negative_slope`: of the leaky ReLU. `activation`: function of z^p.

    Nodes without incoming edges of p have z^p = activation(0). A node attends to itself only through a self-loop; in
    the paper, every node is its own neighbour along each meta-path.

    >>> graphs = [gw.graph(([0, 1, 2], [1, 2, 2])), gw.graph(([0, 1], [2, 0]), num_nodes=3)]
    >>> HANConv(5, 4, num_heads=2, paths=2)(graphs, torch.randn(3, 5)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self, in_feats: int | Mapping[str, int], out_feats: int, num_heads: int, paths: int | Sequence[CanonicalEtype],
        semantic_size: int = 128, feat_drop: float = 0.0, attn_drop: float = 0.0, negative_slope: float = 0.2,
        activation: Callable[[Tensor], Tensor] | None = functional.elu,
    ) -> None:  # fmt: skip
        super().__init__()
        self.out_feats, self.num_heads, self.negative_slope = out_feats, num_heads, negative_slope
        self.relations = None if isinstance(paths, int) else list(paths)
        self.num_paths = paths if isinstance(paths, int) else len(paths)
        if self.relations is None and not isinstance(in_feats, int):
            raise DataError(
                f"graphs over the same nodes have one number of features (got in_feats={in_feats}). Pass one number."
            )
        ends = {ntype for source, _, target in self.relations or [("", "", "")] for ntype in (source, target)}
        self.ntypes = sorted(ends)
        widths = [in_feats if isinstance(in_feats, int) else in_feats[ntype] for ntype in self.ntypes]
        width = num_heads * out_feats
        # This is a list, not a dict, because names of node types may not be valid names of modules.
        self.fc = nn.ModuleList([nn.Linear(own, width) for own in widths])
        self.attn_l = nn.Parameter(torch.empty(self.num_paths, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(self.num_paths, num_heads, out_feats))
        self.semantic_fc = nn.Linear(width, semantic_size)
        self.semantic_q = nn.Parameter(torch.empty(1, semantic_size))
        self.feat_drop, self.attn_drop, self.activation = nn.Dropout(feat_drop), nn.Dropout(attn_drop), activation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights are drawn from Glorot's normal distribution with the gain of a ReLU; biases are 0."""
        reset_glorot(self, self.attn_l, self.attn_r, self.semantic_q)
        reset_glorot(self.fc)

    def forward(self, graphs: Graph | Sequence[Graph], feat: object, get_attention: bool = False) -> Any:
        """A list of graphs over N nodes and [N, in] -> [N, heads * out].

        For a heterogeneous graph, `feat` is a dict, node type -> [N_t, in_t], and the result is a dict of the types at
        which a path ends, type -> [N_t, heads * out]. With `get_attention` the result is a pair: the features and the
        attention over paths, [paths], or type -> [paths].
        """
        paths, z = self._paths(graphs), self._projected(feat)
        found: dict[str, list[Tensor]] = {}
        for path, (graph, relation) in enumerate(paths):
            source, _, target = relation if self.relations is not None else ("", "", "")
            found.setdefault(target, []).append(self._along(graph, relation, path, z[source], z[target]))
        out = {ntype: self._over_paths(zs) for ntype, zs in found.items()}
        if self.relations is None:
            return out[""] if get_attention else out[""][0]
        results = {ntype: x for ntype, (x, _) in out.items()}
        return (results, {ntype: beta for ntype, (_, beta) in out.items()}) if get_attention else results

    def _paths(self, graphs: Graph | Sequence[Graph]) -> list[tuple[Graph, CanonicalEtype]]:
        if self.relations is not None:
            if not isinstance(graphs, Graph):
                raise DataError("the layer was made for relations of one graph: give that graph, not a list. Pass it.")
            return [(graphs, graphs.to_canonical_etype(relation)) for relation in self.relations]
        if isinstance(graphs, Graph) or len(graphs) != self.num_paths:
            got = "one graph" if isinstance(graphs, Graph) else f"{len(graphs)}"
            raise DataError(
                f"expected a list of {self.num_paths} graphs, one for each meta-path (got {got}). Pass such a list."
            )
        return [(graph, graph.to_canonical_etype(None)) for graph in graphs]

    def _projected(self, feat: Any) -> dict[str, Tensor]:
        """z of each type of nodes, [N_t, heads, out]."""
        feats = {"": feat} if self.relations is None else feat
        shape = (-1, self.num_heads, self.out_feats)
        return {t: fc(self.feat_drop(feats[t])).view(shape) for t, fc in zip(self.ntypes, self.fc, strict=True)}

    def _along(self, graph: Graph, relation: CanonicalEtype, path: int, z_src: Tensor, z_dst: Tensor) -> Tensor:
        """z^p of the destinations of a path, [N, heads * out]."""
        source, _, target = relation
        with graph.local_scope():
            graph.nodes[source].data["z"] = z_src
            graph.nodes[source].data["el"] = (z_src * self.attn_l[path]).sum(-1, keepdim=True)
            graph.nodes[target].data["er"] = (z_dst * self.attn_r[path]).sum(-1, keepdim=True)
            graph.update_all(self._message, self._reduce, etype=relation)
            x: Tensor = graph.nodes[target].data["h"].flatten(1)
        return x if self.activation is None else self.activation(x)

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        score = functional.leaky_relu(edges.src["el"] + edges.dst["er"], self.negative_slope)
        return {"z": edges.src["z"], "e": score}

    def _reduce(self, nodes: NodeBatch) -> dict[str, Tensor]:
        a = nodes.mailbox["e"].softmax(1)
        a = self.attn_drop(a) if self.attn_drop.p > 0 else a
        return {"h": (a * nodes.mailbox["z"]).sum(1)}

    def _over_paths(self, zs: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The sum of z^p [N, F] weighted by the attention over paths, and this attention [paths]."""
        count = zs[0].new_ones(zs[0].shape[0]).sum().clamp(min=1)  # the mean is 0 if there are no nodes
        scores = [(torch.tanh(self.semantic_fc(z)) * self.semantic_q).sum() / count for z in zs]
        beta = torch.stack(scores).softmax(0)
        x = zs[0] * beta[0]
        for path in range(1, len(zs)):
            x = x + zs[path] * beta[path]
        return x, beta

    def extra_repr(self) -> str:
        return f"out_feats={self.out_feats}, num_heads={self.num_heads}, num_paths={self.num_paths}"
