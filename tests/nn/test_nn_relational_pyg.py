"""Relational layers and decoders equal PyG's with the same weights, forward and every gradient, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.settings import override
from tests.nn_cases import call, index
from tests.relational_cases import OUT, SQUARE, Case, R, Typed, W
from tests.support import assert_matches

HEADS = 2


def layer_of(make: Any) -> Any:
    return Case(make, None, None).layer()  # type: ignore[arg-type]


def check(layer: Any, typed: Typed, ours: Any, theirs: Any) -> None:
    x = Case(layer, None, None).tensors(typed)[0]  # type: ignore[arg-type]
    with override(eager_kernels=False):
        assert_matches(ours, theirs, x, module=layer, label=typed.name)


def tied(layer: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """W of our layer under PyG's name, and the option that selects this form."""
    linear = layer.linear_r
    match linear.regularizer:
        case "basis":
            return {"weight": linear.W, "comp": linear.coeff}, {"num_bases": linear.num_bases}
        case "bdd":
            return {"weight": linear.get_weight()}, {"num_blocks": linear.num_bases}
    return {"weight": linear.W}, {}


@pytest.mark.parametrize("kind", [pyg.RGCNConv, pyg.FastRGCNConv])
@pytest.mark.parametrize("options", [(), ("basis", 2), ("bdd", 2)])
@pytest.mark.parametrize("typed", SQUARE, ids=lambda typed: typed.name)
def test_rgcn(typed: Typed, options: tuple[Any, ...], kind: Any) -> None:
    layer = layer_of(lambda: gnn.RelGraphConv(W, OUT, R, *options))
    parameters, more = tied(layer)
    parameters |= {"root": layer.loop_weight, "bias": layer.h_bias}
    reference = kind(W, OUT, R, **more)
    check(
        layer, typed,
        lambda x: layer(typed.graph(), x, typed.etypes, "mean"),
        lambda x: call(reference, parameters, x, index(typed.edges), typed.etypes),
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("basis", 2)])
def test_rgcn_of_numbers_of_nodes(options: tuple[Any, ...]) -> None:
    """Weights serve as embeddings of nodes: of given node numbers, and of all nodes in order."""
    for typed in SQUARE:
        count = max(typed.edges.num_src, 1)
        layer = layer_of(lambda count=count: gnn.RelGraphConv(count, OUT, R, *options))
        parameters, more = tied(layer)
        parameters |= {"root": layer.loop_weight, "bias": layer.h_bias}
        reference, own = pyg.RGCNConv(count, OUT, R, **more), torch.arange(typed.edges.num_src)
        for given, ids in ((None, own), (own.flip(0), own.flip(0))):
            with override(eager_kernels=False):
                assert_matches(
                    lambda ids=given, layer=layer, typed=typed: layer(typed.graph(), ids, typed.etypes, "mean"),
                    lambda ids=ids, p=parameters, typed=typed, reference=reference: call(
                        reference, p, ids, index(typed.edges), typed.etypes
                    ),
                    module=layer, label=typed.name,
                )  # fmt: skip


@pytest.mark.parametrize("attention", ["across-relation", "within-relation"])
@pytest.mark.parametrize("options", [(), ("basis", 2), ("bdd", 2)])
@pytest.mark.parametrize("typed", SQUARE, ids=lambda typed: typed.name)
def test_rgat(typed: Typed, options: tuple[Any, ...], attention: Any) -> None:
    layer = layer_of(lambda: gnn.RGATConv(W, OUT, R, HEADS, *options, attention=attention))
    parameters, more = tied(layer)
    if "comp" in parameters:
        parameters = {"basis": parameters["weight"], "att": parameters["comp"]}
    parameters |= {"k": layer.attn_l, "q": layer.attn_r, "bias": layer.bias}
    reference = pyg.RGATConv(W, OUT, R, heads=HEADS, attention_mechanism=attention, **more)
    check(
        layer, typed,
        lambda x: layer(typed.graph(), x, typed.etypes).flatten(1),
        lambda x: call(reference, parameters, x, index(typed.edges), typed.etypes),
    )  # fmt: skip


NTYPES = ("a", "b", "c")


def hgt_parameters(layer: Any, relations: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Parameters of PyG's HGTConv: relation matrices of all heads and relations are one typed map there."""
    width = layer.num_heads * layer.head_size
    out: dict[str, Any] = {}
    for t, ntype in enumerate(NTYPES):
        joined = torch.cat([layer.linear_k.W[t], layer.linear_q.W[t], layer.linear_v.W[t]], 1)
        out[f"kqv_lin.lins.{ntype}.weight"] = joined.t()
        out[f"kqv_lin.lins.{ntype}.bias"] = torch.zeros(3 * width, dtype=torch.float64)
        out[f"out_lin.lins.{ntype}.weight"] = layer.linear_a.W[t].t()
        out[f"out_lin.lins.{ntype}.bias"] = torch.zeros(width, dtype=torch.float64)
        out[f"skip.{ntype}"] = layer.skip[t]
    for r, relation in enumerate(relations):
        out[f"p_rel.{'__'.join(relation)}"] = torch.stack([prior[r] for prior in layer.relation_pri]).unsqueeze(0)
    for name, linears in (("k_rel", layer.relation_att), ("v_rel", layer.relation_msg)):
        # heads are the outer dim, relations the inner
        out[f"{name}.weight"] = torch.cat([linear.W[: len(relations)] for linear in linears])
    return out


def test_hgt() -> None:
    """There are three types of nodes; one of the two relations joins the same types as the other."""
    relations = [("a", "r", "b"), ("a", "s", "b"), ("c", "t", "a")]
    ends = [torch.tensor([[0, 1, 2, 2], [0, 0, 1, 1]]), torch.tensor([[3, 0], [0, 1]]), torch.tensor([[0, 1], [3, 3]])]
    counts, starts = {"a": 4, "b": 2, "c": 2}, {"a": 0, "b": 4, "c": 6}
    layer = layer_of(lambda: gnn.HGTConv(8, 4, HEADS, 3, 3, 0.0, activation=functional.gelu))
    src, dst, etypes = [], [], []
    for r, ((source, _, target), (u, v)) in enumerate(zip(relations, ends, strict=True)):
        src.append(u + starts[source])
        dst.append(v + starts[target])
        etypes.append(torch.full_like(u, r))
    ntypes = torch.repeat_interleave(torch.arange(3), torch.tensor(list(counts.values())))
    graph = gw.graph((torch.cat(src), torch.cat(dst)), num_nodes=8)
    reference = pyg.HGTConv(8, 8, (list(NTYPES), relations), heads=HEADS)
    parameters = hgt_parameters(layer, relations)
    x = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def ours(x: Tensor) -> Tensor:
        return layer(graph, x, ntypes, torch.cat(etypes))[:6]  # PyG gives nothing for types without relations to them

    def theirs(x: Tensor) -> Tensor:
        feats = dict(zip(NTYPES, x.split(list(counts.values())), strict=True))
        out = call(reference, parameters, feats, dict(zip(relations, ends, strict=True)))
        return torch.cat([out["a"], out["b"]])

    with override(eager_kernels=False):
        assert_matches(ours, theirs, x, module=layer)


def test_han() -> None:
    """Two types of nodes, three relations, two of which end at the same type."""
    relations = [("a", "r", "b"), ("b", "s", "a"), ("b", "t", "b")]
    ends = [torch.tensor([[0, 1, 2, 2], [0, 0, 1, 1]]), torch.tensor([[0, 2], [0, 3]]), torch.tensor([[0, 1], [1, 1]])]
    graph = gw.heterograph(
        {relation: tuple(index) for relation, index in zip(relations, ends, strict=True)}, {"a": 4, "b": 3}
    )
    layer = layer_of(
        lambda: gnn.HANConv({"a": 5, "b": 3}, OUT, HEADS, relations, HEADS * OUT, activation=functional.relu)
    )
    reference = pyg.HANConv({"a": 5, "b": 3}, HEADS * OUT, (["a", "b"], relations), heads=HEADS)
    parameters = {"k_lin.weight": layer.semantic_fc.weight, "k_lin.bias": layer.semantic_fc.bias}
    parameters["q"] = layer.semantic_q
    for ntype, fc in zip(("a", "b"), layer.fc, strict=True):
        parameters |= {f"proj.{ntype}.weight": fc.weight, f"proj.{ntype}.bias": fc.bias}
    for path, relation in enumerate(relations):
        name = "__".join(relation)
        parameters |= {f"lin_src.{name}": layer.attn_l[path], f"lin_dst.{name}": layer.attn_r[path]}

    def ours(a: Tensor, b: Tensor) -> list[Tensor]:
        out, attention = layer(graph, {"a": a, "b": b}, get_attention=True)
        return [out["a"], out["b"], attention["a"], attention["b"]]

    def theirs(a: Tensor, b: Tensor) -> list[Tensor]:
        theirs = functional_call(
            reference.double(), parameters, ({"a": a, "b": b}, dict(zip(relations, ends, strict=True))),
            {"return_semantic_attention_weights": True},
        )  # fmt: skip
        return [theirs[0]["a"], theirs[0]["b"], theirs[1]["a"], theirs[1]["b"]]

    x = [
        torch.randn(n, w, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n, w in ((4, 5), (3, 3))
    ]
    with override(eager_kernels=False):
        assert_matches(ours, theirs, *x, module=layer)
