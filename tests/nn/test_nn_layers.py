"""Layers equal PyG's with the same weights, forward and every gradient, in float64 over the awkward graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave as gw
from graphweave.core.settings import override
from tests.nn_cases import CASES, Case, graphs_of, reference
from tests.programs.graphs import EdgeList
from tests.support import assert_matches, by_default

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo looks for gradients of what it traces, and hides this warning in a way that errors do not respect
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def graph_of(edges: EdgeList, bipartite: bool) -> Any:
    if bipartite:
        counts = {"left": edges.num_src, "right": edges.num_dst}
        return gw.heterograph({("left", "to", "right"): (edges.src, edges.dst)}, counts)
    return gw.graph((edges.src, edges.dst), num_nodes=edges.num_src)


def made(case: Case) -> nn.Module:
    """Our layer in float64, all parameters signed and spread: no bias is 0, no scale 1."""
    layer = case.make().double()
    generator = torch.Generator().manual_seed(5)
    for parameter in layer.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = values * 0.7 if parameter.dim() > 1 else values * 0.7 + 0.1
    return layer


def arguments(case: Case, edges: EdgeList) -> tuple[list[Tensor], list[str]]:
    """Features, then arguments on edges and their names."""
    generator = torch.Generator().manual_seed(6)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rows = (edges.num_src, edges.num_dst)
    tensors = [draw(count, width) for count, width in zip(rows, case.widths, strict=False)]
    names = list(case.edge or {})
    for name in names:
        value = draw(edges.src.shape[0], *(case.edge or {})[name])
        tensors.append(value.abs() + 0.1 if case.positive else value)
    return tensors, names


def runs(
    case: Case, layer: nn.Module, runner: Callable[..., Any], edges: EdgeList, names: list[str]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(ours, reference) as functions of tensors."""
    pair = len(case.widths) == 2
    graph = graph_of(edges, pair)

    def split(tensors: tuple[Tensor, ...]) -> tuple[Any, dict[str, Tensor]]:
        feat = tensors[:2] if pair else tensors[0]
        return feat, dict(zip(names, tensors[len(case.widths) :], strict=True))

    def ours(*tensors: Tensor) -> Any:
        feat, more = split(tensors)
        return runner(graph, feat, **more)

    def theirs(*tensors: Tensor) -> Any:
        feat, more = split(tensors)
        return reference(case, layer, feat, edges, **more)

    return ours, theirs


def check(name: str, layer: nn.Module, runner: Callable[..., Any], edges: EdgeList) -> None:
    case = CASES[name]
    tensors, names = arguments(case, edges)
    ours, theirs = runs(case, layer, runner, edges, names)
    assert_matches(ours, theirs, *tensors, module=layer, label=f"{name} on {edges.name}")


IN_BUCKETS = "ignore:graphweave.*cannot reduce all mailboxes at once:UserWarning"


@pytest.mark.filterwarnings(IN_BUCKETS)
@pytest.mark.parametrize("name", CASES)
def test_as_plain_pytorch(name: str) -> None:
    case, layer = CASES[name], made(CASES[name])
    with override(eager_kernels=False):
        for edges in graphs_of(case):
            check(name, layer, layer, edges)


DEFAULT_EAGER = ("graph-both", "gat", "sage-pool", "edge")
DEFAULT_COMPILED = ("graph-both-weights", "sage-mean-pair", "gat", "gin-sum")
MANY = ("hub_dst", "duplicates", "power_law", "isolated", "bipartite")
FEW = ("no_edges", "one_edge", "one_node_loop", "no_edges_no_src")


def named(case: Case, names: tuple[str, ...]) -> list[EdgeList]:
    return [edges for edges in graphs_of(case) if edges.name in names]


@pytest.mark.filterwarnings(IN_BUCKETS)
@pytest.mark.parametrize("name", by_default(CASES, *DEFAULT_EAGER))
def test_with_eager_kernels(name: str) -> None:
    case, layer = CASES[name], made(CASES[name])
    for edges in named(case, MANY + FEW):
        check(name, layer, layer, edges)
    counts = gw.counters()
    assert counts["kernel_launches"] > 0
    assert counts["eager_fallbacks"] == 0 or "lstm" in name  # over as many steps as a node has edges, it is PyTorch's
    assert counts["bucketed_reductions"] == 0 or "lstm" in name


@pytest.mark.filterwarnings(IN_BUCKETS)
@pytest.mark.parametrize("name", by_default(CASES, *DEFAULT_COMPILED))
def test_compiled(name: str) -> None:
    """The layer is one graph that serves graphs of all sizes, and no work on edges is left to PyTorch."""
    case, layer = CASES[name], made(CASES[name])
    compiled = gw.compile(layer)
    for edges in named(case, MANY):
        check(name, layer, compiled, edges)
    counts = gw.counters()
    assert counts["compilations"] == 1 or "lstm" in name
    for edges in named(case, FEW):
        check(name, layer, compiled, edges)
    again = named(case, MANY)[0]
    check(name, layer, compiled, again)
    gw.reset_counters()
    check(name, layer, compiled, again)
    counts = {key: counts[key] + gw.counters()[key] for key in counts}
    assert counts["eager_fallbacks"] == 0 or "lstm" in name
    if "lstm" not in name:
        assert counts["graph_breaks"] == 0 and counts["bucketed_reductions"] == 0
        # EdgeConv's two biases have the same gradient, of which PyTorch makes a copy [out]
        left = 1 if name in ("edge", "edge-pair") else 0
        assert gw.counters()["fallback_calls"] == left, "a step on a graph seen before does no work in PyTorch"
