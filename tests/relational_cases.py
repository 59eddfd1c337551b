"""Relational layers beside references that take one edge after the other, on graphs with types.

A reference reads the parameters of our layer, so that gradients of both end up at the same leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import graphweave as gw
from graphweave import nn as gnn
from tests.programs.graphs import EdgeList, zoo

R, W, OUT = 4, 6, 4


class Typed(NamedTuple):
    """Edges of the awkward zoo with a relation each, one of R, and a type for each node, one of 3."""

    edges: EdgeList
    etypes: Tensor
    ntypes: Tensor

    @property
    def name(self) -> str:
        return self.edges.name

    def graph(self) -> Any:
        edges = self.edges
        if edges.square:
            return gw.graph((edges.src, edges.dst), num_nodes=edges.num_src)
        counts = {"left": edges.num_src, "right": edges.num_dst}
        return gw.heterograph({("left", "to", "right"): (edges.src, edges.dst)}, counts)

    def by_relation(self) -> list[Any]:
        """A graph for each relation, over the same nodes."""
        edges = self.edges
        kept = [self.etypes == r for r in range(R)]
        return [gw.graph((edges.src[mask], edges.dst[mask]), num_nodes=edges.num_src) for mask in kept]

    def triples(self) -> list[tuple[int, int, int, int]]:
        """(number, source, destination, relation) of each edge."""
        return [
            (e, int(s), int(d), int(r))
            for e, (s, d, r) in enumerate(zip(self.edges.src, self.edges.dst, self.etypes, strict=True))
        ]


def typed_zoo() -> list[Typed]:
    """The zoo with random types; relations 1 and 3 alone; one edge a relation; one relation with nearly all edges."""
    generator = torch.Generator().manual_seed(11)

    def types(count: int, of: int) -> Tensor:
        return torch.randint(of, (count,), generator=generator)

    graphs = [Typed(edges, types(edges.src.shape[0], R), types(edges.num_src, 3)) for edges in zoo()]
    by_name = {typed.name: typed for typed in graphs}
    unsorted, hub = by_name["unsorted"], by_name["hub_dst"]
    some = unsorted.edges
    nearly = torch.full_like(unsorted.etypes, 2)
    nearly[[3, 17]] = torch.tensor([0, 3])
    return [
        *graphs,
        Typed(some._replace(name="empty_types"), unsorted.etypes % 2 * 2 + 1, torch.ones_like(unsorted.ntypes)),
        Typed(
            some._replace(name="one_a_type", src=some.src[:R], dst=some.dst[:R]),
            torch.tensor([2, 0, 3, 1]), unsorted.ntypes,
        ),
        Typed(some._replace(name="nearly_all"), nearly, unsorted.ntypes),
        Typed(hub.edges._replace(name="sorted_types"), hub.etypes.sort().values, hub.ntypes.sort().values),
    ]  # fmt: skip


ZOO = typed_zoo()
SQUARE = [typed for typed in ZOO if typed.edges.square]


@dataclass(frozen=True)
class Case:
    """`make` gives our layer, `call(layer, graph, typed, *tensors)` runs it, `reference(layer, typed, *tensors)` is
    what it is to equal. `widths`: of node features, two for a pair. `edge`: shapes behind E of arguments on edges."""

    make: Callable[[], nn.Module]
    call: Callable[..., Any]
    reference: Callable[..., Any]
    widths: tuple[int, ...] = (W,)
    edge: tuple[tuple[int, ...], ...] = ()
    pairs: bool = False

    def graphs(self) -> list[Typed]:
        return ZOO if self.pairs else SQUARE

    def layer(self) -> nn.Module:
        """The layer in float64 with signed and spread parameters: no bias is 0, no scale 1."""
        layer = self.make().double()
        generator = torch.Generator().manual_seed(5)
        for parameter in layer.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.7 + 0.1
        return layer

    def tensors(self, typed: Typed) -> list[Tensor]:
        """Features of nodes, then of edges."""
        generator = torch.Generator().manual_seed(6)
        rows = (typed.edges.num_src, typed.edges.num_dst)
        shapes = [(count, width) for count, width in zip(rows, self.widths, strict=False)]
        shapes += [(typed.etypes.shape[0], *shape) for shape in self.edge]
        return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def relation_weights(linear: Any) -> list[Tensor]:
    """Dense W_t of a `TypedLinear`, [in, out] each, put together in the slow way."""
    match linear.regularizer:
        case "basis":
            return [sum(c * w for c, w in zip(row, linear.W, strict=True)) for row in linear.coeff]  # type: ignore
        case "bdd":
            shape = (linear.num_bases, linear.submat_in, linear.submat_out)
            return [torch.block_diag(*w.view(shape)) for w in linear.W]
    return list(linear.W)


def rows_of(received: list[list[Tensor]], like: Tensor) -> Tensor:
    """The sum of each list, [lists, *like.shape]; an empty list gives 0."""
    sums = [sum(found, torch.zeros_like(like)) for found in received]
    return torch.stack(sums) if sums else like.new_zeros(0, *like.shape)


# ---------------------------------------------------------------- R-GCN


def rgcn(layer: Any, typed: Typed, *tensors: Tensor, norm: str | None = None, weighted: bool = False) -> Tensor:
    src, dst = tensors[0], tensors[1] if len(tensors) - weighted == 2 else tensors[0]
    weights = relation_weights(layer.linear_r)
    count: dict[tuple[int, int], int] = {}
    for _, _, d, r in typed.triples():
        count[d, r] = count.get((d, r), 0) + 1
    received: list[list[Tensor]] = [[] for _ in range(typed.edges.num_dst)]
    for e, s, d, r in typed.triples():
        factor = tensors[-1][e] if weighted else 1 / count[d, r] if norm == "mean" else 1.0
        received[d].append(factor * (src[s] @ weights[r]))
    x = rows_of(received, src.new_zeros(layer.out_feat))
    if layer.layer_norm_weight is not None:
        x = layer.layer_norm_weight(x)
    x = x if layer.h_bias is None else x + layer.h_bias
    x = x if layer.loop_weight is None else x + dst @ layer.loop_weight
    return x if layer.activation is None else layer.activation(x)


def _rgcn_case(
    *options: Any, norm: str | None = None, weighted: bool = False, widths: tuple[int, ...] = (W,), **more: Any
) -> Case:
    pair = len(widths) == 2

    def call(layer: Any, graph: Any, typed: Typed, *tensors: Tensor) -> Tensor:
        feat = tensors[:2] if pair else tensors[0]
        out: Tensor = layer(graph, feat, typed.etypes, tensors[-1] if weighted else norm)
        return out

    def reference(layer: Any, typed: Typed, *tensors: Tensor) -> Tensor:
        return rgcn(layer, typed, *tensors, norm=norm, weighted=weighted)

    width = widths if pair else widths[0]
    return Case(
        lambda: gnn.RelGraphConv(width, OUT, R, *options, **more), call, reference, widths,
        ((),) if weighted else (), pair,
    )  # fmt: skip


# ---------------------------------------------------------------- attention


def normalized(scores: list[Tensor], groups: list[Any]) -> list[Tensor]:
    """Softmax of each score over those of its group."""
    sums: dict[Any, Tensor] = {}
    for score, group in zip(scores, groups, strict=True):
        sums[group] = sums.get(group, torch.zeros_like(score)) + score.exp()
    return [score.exp() / sums[group] for score, group in zip(scores, groups, strict=True)]


def rgat(layer: Any, typed: Typed, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    src, dst = tensors[0], tensors[-1]
    heads, out = layer.num_heads, layer.out_feats
    weights = relation_weights(layer.linear_r)
    left, right = ([s[r] for r in range(R)] if layer.scores == "typed" else s for s in (layer.attn_l, layer.attn_r))
    scores, groups, sent = [], [], []
    for _, s, d, r in typed.triples():
        z_src, z_dst = src[s] @ weights[r], dst[d] @ weights[r]
        if layer.scores == "typed":
            score = (z_src.view(heads, out) * left[r] + z_dst.view(heads, out) * right[r]).sum(-1)
        else:
            score = z_src @ left + z_dst @ right
        scores.append(nn.functional.leaky_relu(score, layer.negative_slope))
        groups.append((d, r) if layer.attention == "within-relation" else d)
        sent.append(z_src.view(heads, out))
    attention = normalized(scores, groups)
    received: list[list[Tensor]] = [[] for _ in range(typed.edges.num_dst)]
    for (_, _, d, _), a, z in zip(typed.triples(), attention, sent, strict=True):
        received[d].append(a.unsqueeze(-1) * z)
    x = rows_of(received, src.new_zeros(heads, out))
    if layer.res_fc is not None:
        x = x + layer.res_fc(dst).view(-1, heads, out)
    x = x if layer.bias is None else x + layer.bias.view(heads, out)
    return x, torch.stack(attention).unsqueeze(-1) if attention else x.new_zeros(0, heads, 1)


def _rgat_case(*options: Any, get_attention: bool = False, widths: tuple[int, ...] = (W,), **more: Any) -> Case:
    def call(layer: Any, graph: Any, typed: Typed, *tensors: Tensor) -> Any:
        return layer(graph, tensors if len(widths) == 2 else tensors[0], typed.etypes, get_attention)

    def reference(layer: Any, typed: Typed, *tensors: Tensor) -> Any:
        out = rgat(layer, typed, *tensors)
        return out if get_attention else out[0]

    return Case(lambda: gnn.RGATConv(W, OUT, R, 2, *options, **more), call, reference, widths, pairs=len(widths) == 2)


def hgt(layer: Any, typed: Typed, *tensors: Tensor) -> Tensor:
    src, dst, types = tensors[0], tensors[-1], typed.ntypes
    heads, size = layer.num_heads, layer.head_size
    k, v = ([row @ m.W[t] for row, t in zip(src, types, strict=True)] for m in (layer.linear_k, layer.linear_v))
    q = [row @ layer.linear_q.W[t] for row, t in zip(dst, dst_types(typed), strict=True)]
    scores, groups, sent = [], [], []
    for _, s, d, r in typed.triples():
        k_s, v_s, q_d = (x.view(heads, size) for x in (k[s], v[s], q[d]))
        of_head = [
            (k_s[h] @ layer.relation_att[h].W[r]) @ q_d[h] * layer.relation_pri[h][r] / size**0.5 for h in range(heads)
        ]
        scores.append(torch.stack(of_head))
        sent.append(torch.stack([v_s[h] @ layer.relation_msg[h].W[r] for h in range(heads)]))
        groups.append(d)
    received: list[list[Tensor]] = [[] for _ in range(typed.edges.num_dst)]
    for d, a, m in zip(groups, normalized(scores, groups), sent, strict=True):
        received[d].append((a.unsqueeze(-1) * m).flatten())
    x = rows_of(received, src.new_zeros(heads * size))
    x = x if layer.activation is None else layer.activation(x)
    own = dst if layer.residual_w is None else dst @ layer.residual_w
    rows = []
    for row, h, t in zip(x, own, dst_types(typed), strict=True):
        alpha = layer.skip[t].sigmoid()
        rows.append(row @ layer.linear_a.W[t] * alpha + h * (1 - alpha))
    out = torch.stack(rows) if rows else own
    return out if layer.norm is None else layer.norm(out)


def dst_types(typed: Typed) -> Tensor:
    """Types of destinations; on a bipartite graph 2, 1, 0, 2 ..."""
    return typed.ntypes if typed.edges.square else (2 - torch.arange(typed.edges.num_dst)) % 3


def _hgt_case(size: int, *options: Any, widths: tuple[int, ...] = (W,), **more: Any) -> Case:
    def call(layer: Any, graph: Any, typed: Typed, *tensors: Tensor) -> Any:
        if len(widths) == 2:
            return layer(graph, tensors, (typed.ntypes, dst_types(typed)), typed.etypes)
        return layer(graph, tensors[0], typed.ntypes, typed.etypes)

    return Case(lambda: gnn.HGTConv(W, size, 2, 3, R, 0.0, *options, **more), call, hgt, widths, pairs=len(widths) == 2)


def simple_hgn(layer: Any, typed: Typed, *tensors: Tensor, mixed: bool) -> tuple[Tensor, Tensor]:
    src, dst = tensors[0], tensors[-1 - mixed]
    heads, out = layer.num_heads, layer.out_feats
    z, z_dst = (fc(x).view(-1, heads, out) for fc, x in ((layer.fc, src), (layer.fc_dst, dst)))
    u = layer.fc_e(layer.edge_emb).view(-1, heads, layer.edge_feats)
    scores = [
        nn.functional.leaky_relu(
            (z[s] * layer.attn_l[0] + z_dst[d] * layer.attn_r[0]).sum(-1) + (u[r] * layer.attn_e[0]).sum(-1), 0.2
        )
        for _, s, d, r in typed.triples()
    ]
    attention = [a.unsqueeze(-1) for a in normalized(scores, [d for _, _, d, _ in typed.triples()])]
    if mixed:
        attention = [(1 - layer.beta) * a + layer.beta * b for a, b in zip(attention, tensors[-1], strict=True)]
    received: list[list[Tensor]] = [[] for _ in range(typed.edges.num_dst)]
    for (_, s, d, _), a in zip(typed.triples(), attention, strict=True):
        received[d].append(a * z[s])
    x = rows_of(received, z.new_zeros(heads, out))
    x = x if layer.res_fc is None else x + layer.res_fc(dst).view(-1, heads, out)
    x = x if layer.bias is None else x + layer.bias.view(heads, out)
    x = x if layer.activation is None else layer.activation(x)
    if layer.normalize:
        x = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return x, torch.stack(attention) if attention else x.new_zeros(0, heads, 1)


def _simple_hgn_case(
    mixed: bool = False, get_attention: bool = False, widths: tuple[int, ...] = (W,), **more: Any
) -> Case:
    pair = len(widths) == 2

    def call(layer: Any, graph: Any, typed: Typed, *tensors: Tensor) -> Any:
        feat = tensors[:2] if pair else tensors[0]
        return layer(graph, feat, typed.etypes, tensors[-1] if mixed else None, get_attention)

    def reference(layer: Any, typed: Typed, *tensors: Tensor) -> Any:
        out = simple_hgn(layer, typed, *tensors, mixed=mixed)
        return out if get_attention else out[0]

    width = widths if pair else widths[0]
    return Case(
        lambda: gnn.SimpleHGNConv(width, OUT, 2, R, 3, **more), call, reference, widths,
        ((2, 1),) if mixed else (), pair,
    )  # fmt: skip


def han(layer: Any, typed: Typed, x: Tensor) -> Tensor:
    """Relations as meta-paths."""
    heads, out = layer.num_heads, layer.out_feats
    z = layer.fc[0](x).view(-1, heads, out)
    paths = []
    for path in range(R):
        edges = [(s, d) for _, s, d, r in typed.triples() if r == path]
        scores = [(z[s] * layer.attn_l[path]).sum(-1) + (z[d] * layer.attn_r[path]).sum(-1) for s, d in edges]
        scores = [nn.functional.leaky_relu(score, layer.negative_slope) for score in scores]
        received: list[list[Tensor]] = [[] for _ in range(typed.edges.num_dst)]
        for (s, d), a in zip(edges, normalized(scores, [d for _, d in edges]), strict=True):
            received[d].append((a.unsqueeze(-1) * z[s]).flatten())
        paths.append(layer.activation(rows_of(received, x.new_zeros(heads * out))))
    if x.shape[0] == 0:
        return sum(paths)  # type: ignore[return-value]
    worth = [(torch.tanh(layer.semantic_fc(p)) @ layer.semantic_q[0]).mean() for p in paths]
    return sum(p * w for p, w in zip(paths, torch.stack(worth).softmax(0), strict=True))  # type: ignore[return-value]


def _han_case() -> Case:
    def call(layer: Any, graph: Any, typed: Typed, x: Tensor) -> Tensor:
        out: Tensor = layer(typed.by_relation(), x)
        return out

    return Case(lambda: gnn.HANConv(W, OUT, 2, R, semantic_size=5), call, han)


CASES: dict[str, Case] = {
    "rgcn": _rgcn_case(),
    "rgcn-mean": _rgcn_case(norm="mean"),
    "rgcn-basis": _rgcn_case("basis", 2, norm="mean", activation=torch.tanh),
    "rgcn-bdd": _rgcn_case("bdd", 2, norm="mean", self_loop=False),
    "rgcn-weights": _rgcn_case(weighted=True, layer_norm=True, bias=False),
    "rgcn-pair": _rgcn_case(norm="mean", widths=(W, 3)),
    "rgat": _rgat_case(),
    "rgat-typed": _rgat_case(scores="typed", residual=True),
    "rgat-typed-bdd": _rgat_case("bdd", 2, scores="typed", bias=False),
    "rgat-basis": _rgat_case("basis", 2, get_attention=True),
    "rgat-within": _rgat_case(attention="within-relation"),
    "rgat-within-bdd": _rgat_case("bdd", 2, "within-relation", get_attention=True),
    "rgat-pair": _rgat_case(scores="typed", widths=(W, W)),
    "hgt": _hgt_case(4),
    "hgt-norm": _hgt_case(3, True, activation=nn.functional.gelu),
    "hgt-pair": _hgt_case(4, widths=(W, W)),
    "hgn": _simple_hgn_case(residual=True),
    "hgn-mixed": _simple_hgn_case(mixed=True, get_attention=True, bias=True, beta=0.3, activation=torch.tanh),
    "hgn-normalize": _simple_hgn_case(mixed=True, normalize=True, bias=True),
    "hgn-pair": _simple_hgn_case(widths=(W, 3), get_attention=True),
    "han": _han_case(),
}
