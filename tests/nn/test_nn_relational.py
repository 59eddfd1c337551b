"""Relational layers equal references edge by edge, forward and every gradient, in float64; eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave as gw
from graphweave.core.settings import override
from tests.relational_cases import CASES, Typed
from tests.support import assert_matches, by_default

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo looks for gradients of what it traces, and hides this warning in a way that errors do not respect
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

MANY = ("empty_types", "one_a_type", "nearly_all", "duplicates", "isolated", "hub_dst", "bipartite")
FEW = ("no_edges", "one_node_loop")
"""Graphs that need a compilation of their own, because they have no edges or one node."""
DEFAULT_MANY = ("rgcn-mean", "rgat-within")
DEFAULT_FEW = ("rgcn-mean",)


def check(name: str, layer: Any, runner: Callable[..., Any], typed: Typed) -> None:
    case, graph = CASES[name], typed.graph()

    def ours(*tensors: Tensor) -> Any:
        return case.call(runner, graph, typed, *tensors)

    def theirs(*tensors: Tensor) -> Any:
        return case.reference(layer, typed, *tensors)

    assert_matches(ours, theirs, *case.tensors(typed), module=layer, label=f"{name} on {typed.name}")


@pytest.mark.parametrize("name", CASES)
def test_as_plain_pytorch(name: str) -> None:
    case, layer = CASES[name], CASES[name].layer()
    with override(eager_kernels=False):
        for typed in case.graphs():
            check(name, layer, layer, typed)


@pytest.mark.parametrize("name", by_default(CASES, *DEFAULT_MANY))
def test_compiled(name: str) -> None:
    """The layer is one graph that serves graphs of all sizes; a second serves graphs with two types of nodes."""
    case, layer = CASES[name], CASES[name].layer()
    compiled = gw.compile(layer)
    for typed in case.graphs():
        if typed.name in MANY:
            check(name, layer, compiled, typed)
    counts = gw.counters()
    assert counts["compilations"] == (2 if case.pairs else 1)
    assert counts["graph_breaks"] == 0 and counts["eager_fallbacks"] == 0 and counts["bucketed_reductions"] == 0


@pytest.mark.parametrize("name", by_default(CASES, *DEFAULT_FEW))
def test_compiled_without_edges_and_of_one_node(name: str) -> None:
    case, layer = CASES[name], CASES[name].layer()
    compiled = gw.compile(layer)
    for typed in case.graphs():
        if typed.name in FEW:
            check(name, layer, compiled, typed)
    counts = gw.counters()
    assert counts["graph_breaks"] == 0 and counts["eager_fallbacks"] == 0 and counts["bucketed_reductions"] == 0


@pytest.mark.parametrize("name", by_default(("rgcn-mean", "rgat", "rgat-within", "hgt"), "rgcn-mean"))
def test_with_eager_kernels(name: str) -> None:
    case, layer = CASES[name], CASES[name].layer()
    for typed in case.graphs():
        if typed.name in MANY[:3]:
            check(name, layer, layer, typed)
    counts = gw.counters()
    assert counts["kernel_launches"] > 0 and counts["eager_fallbacks"] == 0 and counts["bucketed_reductions"] == 0


@pytest.mark.parametrize("name", CASES)
def test_representation_of_layers(name: str) -> None:
    layer = CASES[name].make()
    assert type(layer).__name__ in repr(layer)
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    torch.manual_seed(0)
    layer.reset_parameters()
    assert state.keys() == layer.state_dict().keys()
    assert all(bool(value.isfinite().all()) for value in layer.state_dict().values())


@pytest.mark.slow  # by default, tests/frontends/dynamo/test_relational_layers_match.py partitions HGT
def test_products_of_the_forward_do_not_become_one_with_those_of_the_backward() -> None:
    """Maps of keys, queries and values look like the gradients of the map of results: HGT could not be cut in two."""
    case, layer = CASES["hgt"], CASES["hgt"].layer()
    typed = next(typed for typed in case.graphs() if typed.name == "isolated")
    case.call(gw.compile(layer), typed.graph(), typed, *(x.requires_grad_() for x in case.tensors(typed)))
    assert gw.counters()["compilations"] == 1 and gw.counters()["eager_fallbacks"] == 0
