"""Graph-only work: what is kept from call to call, and that it is done once per graph and never for another."""

from __future__ import annotations

import pytest
import torch_geometric.nn as pyg
from support import features, random_graph

import graphweave
from graphweave.analysis.hoist import hoisted
from graphweave.ir.message.nodes import Pointwise, Type
from graphweave.ir.message.parse import parse

MEAN = """\
space V = s0
space E = s1
%0: V[64] f32 = input x
%1: E[] i64 = input src
%2: E[] i64 = input dst
%3: E -> V = map %1 to V
%4: E -> V = map %2 to V
%5: E[] f32 = const 1.0
%6: V[] f32 = push.sum %5, %4
%7: unit[] f32 = const 1.0
%8: V[] f32 = maximum %6, %7
%9: V[1] f32 = reshape %8 [1]
%10: V[64] f32 = broadcast %9 [64]
%11: V[64] f32 = div %7, %10
%12: E[64] f32 = pull %0, %3
%13: V[64] f32 = push.sum %12, %4
%14: V[64] f32 = mul %13, %11
%15: V[64] f32 = div %13, %10
return %14, %15
"""


def test_of_what_only_widens_the_value_beneath_is_kept() -> None:
    program = parse(MEAN)
    kept = [program.nodes[r] for r in hoisted(program)]
    assert [n for n in kept if isinstance(n, Pointwise)] == [program.nodes[8]]
    assert all(isinstance(t := program.types[r], Type) and t.shape == () for r in hoisted(program))


def test_an_output_is_kept_as_it_is() -> None:
    program = parse(MEAN.replace("return %14, %15", "return %11"))
    assert 11 in hoisted(program)


@pytest.mark.usefixtures("fresh_compiler")
def test_degrees_of_a_mean_are_one_number_a_node() -> None:
    layer = pyg.SAGEConv(16, 8)
    told = graphweave.explain(layer, features(20, 16).requires_grad_(), random_graph(20, 20, 90))
    saved = [value.split(": ")[1] for value in told.graphs[0].saved]
    assert saved.count("V0[] f32") == 1  # the degrees
    assert saved.count("V0[16] f32") <= 2  # x and the aggregate
