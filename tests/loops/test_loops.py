"""Functions written in loops mean what their loops mean: values and gradients over the awkward graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave import loops
from graphweave.core.settings import override
from tests.loops.loops_literal import LiteralGraph, Rows, Weights, literally
from tests.loops.loops_programs import SETS, SQUARE, TYPES, WIDTH, arguments
from tests.programs.compare import assert_close
from tests.programs.graphs import EdgeList, zoo

ZOO = {e.name: e for e in zoo()}
COMPILED = {program: loops.compile(program) for program in SETS}


class Case:
    """One graph with its fields, as tensors, and everything that receives gradients."""

    def __init__(self, edges: EdgeList, both: bool) -> None:
        generator = torch.Generator().manual_seed(7)
        self.edges, num_edges = edges, edges.src.numel()
        self.sizes: Any = edges.num_src if both else (edges.num_src, edges.num_dst)

        def leaf(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

        types = torch.randint(TYPES, (64,), generator=generator)
        self.sources = {"feature": leaf(edges.num_src, WIDTH), "q": leaf(edges.num_src)}
        self.destinations = self.sources if both else {"feature": leaf(edges.num_dst, WIDTH), "q": leaf(edges.num_dst)}
        self.sources["_TYPE"] = types[: edges.num_src]
        self.edata = {"x": leaf(num_edges), "_TYPE": types[:num_edges]}
        self.arguments = arguments((edges.num_src, edges.num_dst), num_edges)
        parts = (self.sources, self.destinations, self.edata, self.arguments)
        self.leaves = list({id(x): x for d in parts for x in d.values() if x.requires_grad}.values())

    def graph(self, index: torch.dtype = torch.int64) -> loops.TypedEdges:
        edge_index = torch.stack([self.edges.src, self.edges.dst]).to(index)
        if isinstance(self.sizes, int):
            return loops.TypedEdges(edge_index, self.sizes, ndata=self.sources, edata=self.edata)
        return loops.TypedEdges(
            edge_index, self.sizes, srcdata=self.sources, dstdata=self.destinations, edata=self.edata
        )

    def literal(self) -> LiteralGraph:
        return LiteralGraph(self.edges.src, self.edges.dst, self.sizes, self.sources, self.edata, self.destinations)


def results(g: Any, program: Callable[..., Any]) -> list[Tensor]:
    at = (g.srcdata, g.dstdata, g.edata)
    return [fields[name] for fields, names in zip(at, SETS[program], strict=True) for name in names]


def gradients(out: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(11)
    total: Any = 0.0
    for x in out:
        weight = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        if x.is_floating_point():
            total = total + (torch.where(x.isfinite(), x, 0.0) * weight).sum()
    if not isinstance(total, Tensor) or not total.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(x) if d is None else d for x, d in zip(leaves, found, strict=True)]


def like(literal: Tensor, got: Tensor) -> Tensor:
    """The results of literal loops, in the feature shape of `got`, because loops over no rows know no shape."""
    assert literal.shape[0] == got.shape[0]
    if not literal.shape[0]:
        return torch.zeros_like(got)
    features = literal.shape[1:]
    spread = literal.reshape(literal.shape[0], *(1,) * (got.dim() - literal.dim()), *features).to(got.dtype)
    return spread.expand(got.shape) if literal.dim() < got.dim() else spread


def check(program: Callable[..., Any], case: Case, index: torch.dtype = torch.int64) -> None:
    g, reference = case.graph(index), case.literal()
    COMPILED[program](g, case.arguments)
    # Hector's rule multiplies by W only
    kinds = {"W": Weights, "w": Weights, "x": Rows, "y": Rows}
    literally(program, reference, {name: kinds[name](x) if name in kinds else x for name, x in case.arguments.items()})
    got, want = results(g, program), results(reference, program)
    want = [like(b, a) for a, b in zip(got, want, strict=True)]
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, reduction_length=64, floor=1.0)
    for a, b in zip(gradients(got, case.leaves), gradients(want, case.leaves), strict=True):
        assert_close(a, b, reduction_length=64, floor=1.0)


@pytest.mark.parametrize("program", SETS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", ZOO)
def test_as_the_loops_stand(program: Callable[..., Any], name: str) -> None:
    edges = ZOO[name]
    if program in SQUARE and not edges.square:
        pytest.skip("the program is for one set of nodes")
    with override(eager_kernels=False):
        check(program, Case(edges, edges.square))


@pytest.mark.parametrize("program", [p for p in SETS if p not in SQUARE], ids=lambda p: p.__name__)
def test_as_the_loops_stand_between_two_sets_of_nodes(program: Callable[..., Any]) -> None:
    """There are as many sources as destinations, but they are different nodes."""
    with override(eager_kernels=False):
        check(program, Case(ZOO["unsorted"], False))


COMPILED_BY_DEFAULT = ("extremes", "inside")
"""Programs compiled by default. The kernels of the others also occur in models of tests/loops/test_loops_models.py."""


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, id=p.__name__, marks=() if p.__name__ in COMPILED_BY_DEFAULT else pytest.mark.slow) for p in SETS],
)
def test_kernels(program: Callable[..., Any], fresh_compiler: None) -> None:
    """Compiled once for graphs of all sizes, without a break or anything left to Python."""
    compilations = []
    for name in ("hub_dst", "power_law"):
        check(program, Case(ZOO[name], True))
        compilations.append(graphweave.counters()["compilations"])
    counts = graphweave.counters()
    assert compilations[0] == compilations[1] > 0
    assert counts["kernel_launches"] > 0
    assert counts["graph_breaks"] == counts["eager_fallbacks"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("program", SETS, ids=lambda p: p.__name__)
def test_kernels_over_the_zoo(program: Callable[..., Any], fresh_compiler: None) -> None:
    for edges in ZOO.values():
        if edges.square:
            check(program, Case(edges, True))
    assert graphweave.counters()["graph_breaks"] == graphweave.counters()["eager_fallbacks"] == 0


def test_indices_of_32_bits(fresh_compiler: None) -> None:
    check(next(p for p in SETS if p.__name__ == "inside"), Case(ZOO["hub_dst"], True), torch.int32)
