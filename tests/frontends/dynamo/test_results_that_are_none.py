"""HANConv's results, which are None for types that no relation of a call leads to: one compilation for all sets of
relations, with eager mode's results, None included, keys and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import graphweave
from tests.frontends.dynamo.test_varying_keys import (
    CALLS,
    CYCLE,
    SIZES,
    Edges,
    Nodes,
    W,
    edges,
    hetero,
    once,
    sage,
)
from tests.frontends.dynamo.test_varying_keys import nodes as nodes_of_abc
from tests.support import by_default, features

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:There exist node types:UserWarning"),  # types that nobody sends to
]

Results = dict[str, Tensor | None]


def han() -> pyg.HANConv:
    """A layer for three types with relations, and one without any."""
    torch.manual_seed(0)
    made = pyg.HANConv(W, W, ([*SIZES, "d"], CYCLE), heads=2).double()
    nn.init.normal_(made.k_lin.bias)
    return made


def nodes(kinds: str = "abcd") -> Nodes:
    made = {**nodes_of_abc(), "d": features(2, W, torch.float64, seed=9)}
    return {kind: made[kind].requires_grad_() for kind in kinds}


def results_and_gradients(
    f: Callable[..., object], model: nn.Module, x: Nodes, relations: Edges
) -> tuple[object, Results]:
    """The results of a call, and the gradients of their tensors, if they have any, by parameters and features."""
    model.zero_grad(set_to_none=True)
    out = f(x, relations)
    weighted = [(i * rows).sin().sum() for i, rows in enumerate(tree_leaves(out), 1) if isinstance(rows, Tensor)]
    if any(total.requires_grad for total in weighted):
        torch.stack(weighted).sum().backward()
    return out, {name: p.grad for name, p in [*model.named_parameters(), *x.items()]}


def assert_same(
    model: nn.Module, compiled: Callable[..., object], chosen: tuple[int, ...], kinds: str = "abcd"
) -> None:
    """Equal keys, results and gradients, or an error of the same class."""
    try:
        wanted, expected = results_and_gradients(model, model, nodes(kinds), edges(chosen))
    except (AttributeError, TypeError, KeyError) as error:
        with pytest.raises(type(error)):
            compiled(nodes(kinds), edges(chosen))
        return
    out, grads = results_and_gradients(compiled, model, nodes(kinds), edges(chosen))
    if isinstance(wanted, dict):
        assert isinstance(out, dict) and list(out) == list(wanted)
        assert [k for k in out if out[k] is None] == [k for k in wanted if wanted[k] is None]
    torch.testing.assert_close(out, wanted)
    assert {n for n, g in grads.items() if g is None} == {n for n, g in expected.items() if g is None}
    torch.testing.assert_close(grads, expected)


def test_results_of_types_that_receive_nothing_are_none() -> None:
    model = han()
    compiled = graphweave.compile(model)
    for chosen in CALLS:
        assert_same(model, compiled, chosen)
    assert once() == (1, 0, 0)


@pytest.mark.slow
def test_types_of_nodes_may_be_missing() -> None:
    """A type without features has no result, not even None."""
    model = han()
    compiled = graphweave.compile(model)
    for chosen, kinds in (((0, 1, 2, 3), "abcd"), ((0, 1), "ab"), ((2,), "ad"), ((3,), "bcd"), ((0, 3), "abc")):
        assert_same(model, compiled, chosen, kinds)
    assert once() == (1, 0, 0)


class Classifier(nn.Module):
    """PyG's example: the results of one type are looked up by its key."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = han(), nn.Linear(W, 3).double()

    def forward(self, x: Nodes, relations: Edges) -> Tensor:
        out: Tensor = self.lin(self.conv(x, relations)["a"])
        return out


@pytest.mark.slow
def test_a_result_that_is_looked_up_must_not_be_none() -> None:
    model = Classifier()
    compiled = graphweave.compile(model)
    for chosen in ((1,), (0, 1, 2), (2, 4), (0, 1, 2, 3, 4)):
        assert_same(model, compiled, chosen)
    assert once() == (1, 0, 0)
    assert_same(model, compiled, (0,))  # TypeError


class Layers(nn.Module):
    """A layer, and what becomes of its results; with `last`, they are the features of another layer."""

    def __init__(self, then: Callable[[Results, Nodes], object], last: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.then, self.last = han(), then, last

    def forward(self, x: Nodes, relations: Edges) -> object:
        out = self.then(self.first(x, relations), x)
        return out if self.last is None else self.last(out, relations)


def activated(out: Results, x: Nodes) -> Nodes:
    return {kind: rows.relu() for kind, rows in out.items() if rows is not None}


LAST: dict[str, Callable[[], nn.Module]] = {
    "han": han,
    "hgt": lambda: pyg.HGTConv(W, W, (list(SIZES), CYCLE), heads=2).double(),
    "hetero": lambda: hetero(sage)().double(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST)
def test_layers_of_those_results_that_are_not_none(name: str) -> None:
    """Types without a result are no types of the second layer, which refuses calls with relations to or from them."""
    model = Layers(activated, LAST[name]())
    compiled = graphweave.compile(model)
    for chosen in ((0, 1), (2,), (0, 1, 2), (0, 1, 2, 3, 4), (1, 2)):
        assert_same(model, compiled, chosen)
        if chosen == (0, 1, 2, 3, 4) and name != "hgt":  # which puts the rows of all types into one tensor
            assert once() == (1, 0, 0)


CHOICES: dict[str, Callable[[Results, Nodes], object]] = {
    "items": lambda out, x: {kind: rows for kind, rows in out.items() if rows is not None},
    "others": lambda out, x: {kind: x[kind].sin() for kind, rows in out.items() if rows is not None},
    "sums": lambda out, x: {kind: rows + x[kind] for kind, rows in out.items() if not rows is None},  # noqa: E714
    "two-conditions": lambda out, x: {kind: rows for kind, rows in out.items() if kind in "ab" if rows is not None},
    "both": lambda out, x: {"all": dict(out), "some": {kind: rows for kind, rows in out.items() if rows is not None}},
}


@pytest.mark.parametrize("name", by_default(CHOICES, "others"))
def test_a_dictionary_of_those_results_that_are_not_none(name: str) -> None:
    model = Layers(CHOICES[name])
    compiled = graphweave.compile(model)
    for chosen in CALLS:
        assert_same(model, compiled, chosen)
    assert once() == (1, 0, 0)


def in_a_loop(out: Results, x: Nodes) -> Nodes:
    found = {}
    for kind, rows in out.items():
        if rows is None:
            found[kind] = x[kind]
        else:
            found[kind] = rows
    return found


ASKS: dict[str, Callable[[Results, Nodes], object]] = {
    "loop": in_a_loop,
    "choice": lambda out, x: {kind: None if rows is None else rows.exp() for kind, rows in out.items()},
    "two-conditions": lambda out, x: {k: rows for k, rows in out.items() if rows is not None and k != "d"},
    "list": lambda out, x: torch.stack([rows.sum() for rows in out.values() if rows is not None]).sum(),
    "those": lambda out, x: {kind: x[kind] for kind, rows in out.items() if rows is None},
    "isinstance": lambda out, x: {kind: rows for kind, rows in out.items() if isinstance(rows, Tensor)},
    "over": lambda out, x: {**x, **out},
}


def assert_compiled_for_each_set_of_keys(model: nn.Module) -> None:
    compiled = graphweave.compile(model)
    for chosen in CALLS[:3]:
        assert_same(model, compiled, chosen)
    assert once()[1:] == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKS)
def test_other_questions_are_compiled_for_each_set_of_keys(name: str) -> None:
    assert_compiled_for_each_set_of_keys(Layers(ASKS[name]))


@pytest.mark.slow
def test_what_cannot_be_computed_of_none_raises() -> None:
    model = Layers(lambda out, x: {kind: rows.relu() for kind, rows in out.items()})
    compiled = graphweave.compile(model)
    for chosen in CALLS[:2]:  # AttributeError
        assert_same(model, compiled, chosen)


@pytest.mark.slow
def test_weights_of_relations_are_compiled_for_each_set_of_keys() -> None:
    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = han()

        def forward(self, x: Nodes, relations: Edges) -> Results:
            out, weights = self.conv(x, relations, return_semantic_attention_weights=True)
            return {**out, **{f"{kind}'s": w for kind, w in weights.items()}}

    assert_compiled_for_each_set_of_keys(Weights())


@pytest.mark.slow
def test_types_without_nodes() -> None:
    """The mean of no rows is no number, which must not reach the weights that all types share."""
    model = han()
    compiled = graphweave.compile(model)
    for chosen in ((0, 1), (0, 1, 2)):
        found = []
        for f in (model, compiled):
            x = nodes()
            x["b"] = x["b"].detach()[:0].requires_grad_()
            relations = {k: e if "b" not in k else e[:, :0] for k, e in edges(chosen).items()}
            found.append(results_and_gradients(f, model, x, relations))
        torch.testing.assert_close(found[1], found[0])
    assert once() == (1, 0, 0)
