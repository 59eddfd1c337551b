"""Sizes of 0, 1 and 2 and equal sizes: the user's branches decide by the size at hand, through both doors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, degree, scatter

import graphweave
from graphweave.core.versions import TESTED, is_release
from graphweave.frontends.tracing.size_assumptions import NEUTRAL
from tests.support import assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Tensor]]] = {
    "compile": graphweave.compile,
    "plain": lambda fn: torch.compile(fn, backend="graphweave", dynamic=True),
}
SIZES = ((5, 9), (5, 0), (5, 1), (5, 2), (1, 0), (1, 1), (0, 0), (4, 4), (7, 20), (2, 2), (3, 1))
"""(nodes, edges) of the calls of one compiled function, in this order."""


def _sum(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, index[1], x[index[0]].tanh())


def edges_are_none(x: Tensor, index: Tensor) -> Tensor:
    return x * 2 if index.size(1) == 0 else _sum(x, index)


def elements_are_none(x: Tensor, index: Tensor) -> Tensor:
    return _sum(x, index) if index.numel() else x * 3


def length_is_none(x: Tensor, index: Tensor) -> Tensor:
    return x[index[0]].mean(0) if len(index[0]) else x.sum(0)


def nodes_are_none(x: Tensor, index: Tensor) -> Tensor:
    return x.sum(0) + 7 if x.size(0) == 0 else x.sum(0)


def divided_by_at_least_1(x: Tensor, index: Tensor) -> Tensor:
    return x[index[0]].sum(0) / max(index.size(1), 1)


def one_or_two_or_equal(x: Tensor, index: Tensor) -> Tensor:
    if index.size(1) == 1:
        return x * 3
    if index.size(1) == 2:
        return x * 5
    return x * 7 if index.size(1) == x.size(0) else _sum(x, index)


def at_most_1(x: Tensor, index: Tensor) -> Tensor:
    return x * 3 if index.size(1) <= 1 else _sum(x, index)


def as_often_as_edges(x: Tensor, index: Tensor) -> Tensor:
    for _ in range(min(index.size(1), 3)):
        x = x * 1.5
    return x


def numbers_of_rows(x: Tensor, index: Tensor) -> Tensor:
    return x * (index.size(1) % 2) + index.size(1) // 2 + x.numel() / max(x.numel(), 1)


def relations_that_are_not_empty(x: Tensor, index: Tensor) -> Tensor:
    parts = [index[:, :2], index[:, 2:6], index[:, 6:]]
    sent = [_sum(x, part) for part in parts if part.size(1) > 0]
    return x if not sent else x + torch.stack(sent).sum(0) / len(sent)


def degrees(x: Tensor, index: Tensor) -> Tensor:
    return degree(index[0], dtype=x.dtype) + x.sum()


def scattered(x: Tensor, index: Tensor) -> Tensor:
    return scatter(x[index[0]], index[1])


def self_loops(x: Tensor, index: Tensor) -> Tensor:
    both, _ = add_self_loops(index)
    return x[both[0]].sin().sum(0)


def squeezed(x: Tensor, index: Tensor) -> Tensor:
    return x[index[0]].squeeze()


def squeezed_by_dim(x: Tensor, index: Tensor) -> Tensor:
    return x[index[0]].sum(1, keepdim=True).squeeze(0).cos()


def squeezed_selection(x: Tensor, index: Tensor) -> Tensor:
    return x[x[:, 0] > 0].squeeze(0).sin()


def slices(x: Tensor, index: Tensor) -> Tensor:
    return x[index[0, 1:]].sum(0) + x[2:].sum(0) + (x[1:] - x[:-1]).sum(0)


def halves(x: Tensor, index: Tensor) -> Tensor:
    return x[: x.size(0) // 2].sum(0) + x[x.size(0) // 2 :].mean(0)


def broadcast_rows(x: Tensor, index: Tensor) -> Tensor:
    return (x[index[0]] + x.sum(0, keepdim=True)).sum(0) + (x[:, None] * x[None]).sum((0, 1))


def contracted(x: Tensor, index: Tensor) -> Tensor:
    return torch.einsum("ef,nf->en", x[index[0]], x)


def softmax_over_edges(x: Tensor, index: Tensor) -> Tensor:
    return torch.softmax(x[index[0]], 0)


def products_and_running_sums(x: Tensor, index: Tensor) -> Tensor:
    return x[index[0]].prod(0) + x[index[0]].cumsum(0).sum(0)


def reshaped(x: Tensor, index: Tensor) -> Tensor:
    return x[index[0]].reshape(index.size(1), 2, 2).transpose(1, 2).reshape(-1, 4)


def similarity(x: Tensor, index: Tensor) -> Tensor:
    return F.cosine_similarity(x[index[0]], x[index[1]] + 1)  # of a row with itself it is 1, with no gradient


PROGRAMS = [
    edges_are_none, elements_are_none, length_is_none, nodes_are_none, divided_by_at_least_1, one_or_two_or_equal,
    at_most_1, as_often_as_edges, numbers_of_rows, relations_that_are_not_empty, degrees, scattered, self_loops,
    squeezed, squeezed_by_dim, squeezed_selection, slices, halves, broadcast_rows, contracted, softmax_over_edges,
    products_and_running_sums, reshaped, similarity,
]  # fmt: skip
BY_DEFAULT = (
    edges_are_none, divided_by_at_least_1, relations_that_are_not_empty, degrees, self_loops, squeezed, slices,
)  # fmt: skip


def _name(program: object) -> str:
    return getattr(program, "__name__", "")


@pytest.mark.parametrize("door", by_default(DOORS, "compile"))
@pytest.mark.parametrize("program", by_default(PROGRAMS, *BY_DEFAULT), ids=_name)
def test_small_sizes(program: Callable[..., Tensor], door: str) -> None:
    """Each size has eager mode's results and gradients, whatever sizes came before, and compiles nothing twice."""
    torch.manual_seed(0)
    compiled = DOORS[door](program)
    for nodes, edges in SIZES:
        x, index = features(nodes, 4, torch.float64), random_graph(nodes, nodes, edges)
        assert_matches(compiled, program, x, index, label=f"{nodes} nodes, {edges} edges:")
    compilations = graphweave.counters()["compilations"]
    for nodes, edges in SIZES:
        x, index = features(nodes, 4, torch.float64), random_graph(nodes, nodes, edges)
        assert_matches(compiled, program, x, index, label=f"{nodes} nodes, {edges} edges again:")
    assert graphweave.counters()["compilations"] == compilations
    assert graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.parametrize("door", by_default(DOORS, "compile"))
@pytest.mark.parametrize("first", by_default(((5, 0), (5, 1), (0, 0), (1, 1)), (5, 0)), ids=str)
@pytest.mark.parametrize("program", by_default([edges_are_none, squeezed, slices], squeezed), ids=_name)
def test_a_first_call_of_almost_nothing(program: Callable[..., Tensor], first: tuple[int, int], door: str) -> None:
    compiled = DOORS[door](program)
    for nodes, edges in (first, (9, 30), (5, 1), (4, 11), (5, 0)):
        x, index = features(nodes, 4, torch.float64), random_graph(nodes, nodes, edges)
        assert_matches(compiled, program, x, index, label=f"{nodes} nodes, {edges} edges:")


def test_a_branch_costs_one_compilation() -> None:
    compiled = graphweave.compile(edges_are_none)
    for edges in (9, 0, 20, 0, 3, 2):
        assert_matches(compiled, edges_are_none, features(5, 4), random_graph(5, 5, edges))
    assert graphweave.counters()["compilations"] == 2


@dataclass
class Holder:
    index: Tensor


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "dataclass": Holder,
    "list": lambda index: [Holder(index)],
    "data of pyg": lambda index: Data(index=index),
}


@pytest.mark.parametrize("holder", by_default(HOLDERS, "dataclass"))
@pytest.mark.parametrize("counts", by_default([(9, 0, 7, 0), (0, 9, 0, 7)], (9, 0, 7, 0)))
def test_an_index_without_edges_inside_an_object(holder: str, counts: tuple[int, ...]) -> None:
    """PyTorch writes strides of 1 for it, whatever the formula for edges gives. It stays the object's own."""

    def fn(x: Tensor, held: Any) -> Tensor:
        held = held[0] if isinstance(held, list) else held
        return _sum(x, (held.index + 1) % 5)

    compiled = graphweave.compile(fn)
    for count in counts:
        index = random_graph(5, 5, count)
        held = HOLDERS[holder](index)
        assert_matches(lambda x, held=held: compiled(x, held), lambda x, held=held: fn(x, held), features(5, 3))
        inside = held[0].index if isinstance(held, list) else held.index
        assert inside is index
        assert inside.stride() == (max(count, 1), 1)
    counted = graphweave.counters()
    assert counted["graph_breaks"] == 0
    assert counted["compilations"] == (1 if counts[0] else 2)


def test_relations_skipped_for_having_no_edges_have_no_gradient() -> None:
    weights = [features(4, 4, torch.float64).requires_grad_() for _ in range(3)]

    def layer(x: Tensor, *edges: Tensor) -> Tensor:
        return x + sum(_sum(x @ w, e) for w, e in zip(weights, edges, strict=True) if e.size(1))

    compiled = graphweave.compile(layer)
    for counts in ((6, 5, 4), (6, 0, 4), (0, 0, 3)):
        x, edges = features(5, 4, torch.float64), [random_graph(5, 5, n) for n in counts]
        torch.testing.assert_close(compiled(x, *edges), layer(x, *edges))
        found = torch.autograd.grad(compiled(x, *edges).sum(), weights, allow_unused=True)
        assert [g is None for g in found] == [n == 0 for n in counts]


@pytest.mark.parametrize("door", DOORS)
def test_a_selection_of_one_row_is_squeezed(door: str) -> None:
    """PyTorch would keep the dim of a size that data decides, also where it is 1."""

    def chosen(x: Tensor) -> Tensor:
        return x * (x[:, 0] > 0).nonzero().squeeze().sum() + x[(x[:, 1] > 0)].squeeze(0).sum(0).sum()

    compiled = DOORS[door](chosen)
    for rows in (3, 1, 2, 0):
        x = features(5, 4, torch.float64).abs()
        x[rows:] *= -1
        assert_matches(compiled, chosen, x, label=f"{rows} rows:")


def test_a_dense_matrix_of_nodes_compiles_twice() -> None:
    def layer(x: Tensor, adjacency: Tensor) -> Tensor:
        return torch.relu(adjacency @ x) / adjacency.sum(1, keepdim=True).clamp(min=1)

    compiled = graphweave.compile(layer)
    for nodes in (5, 9, 12, 4, 30, 2):
        assert_matches(compiled, layer, features(nodes, 8), (features(nodes, nodes) > 0).float())
    assert graphweave.counters()["compilations"] == 2
    assert graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.skipif(
    not is_release(torch.__version__, TESTED["torch"].checked), reason="other releases lack some of the functions"
)
def test_neutral_places_are_in_this_pytorch() -> None:
    for place, functions in NEUTRAL.items():
        if place.endswith(".py"):
            module = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            source = inspect.getsource(import_module(module))
            for function in functions or ():
                assert re.search(rf"def {function}\(", source), f"{place} has no function {function}"


@pytest.mark.parametrize("door", DOORS)
def test_gradients_of_normalised_rows_are_zeros_where_there_are_none(door: str) -> None:
    """PyTorch's formula of layer norm's gradient makes zeros of nothing, which depend on no tangent."""

    def normalised(x: Tensor, index: Tensor) -> Tensor:
        return F.layer_norm(_sum(x, index), (4,))

    x = torch.zeros(0, 4, requires_grad=True)
    out = DOORS[door](normalised)(x, torch.zeros(2, 0, dtype=torch.int64))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.shape == (0, 4)
