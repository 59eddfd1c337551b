"""The arguments of `torch.compile`, given to `graphweave.compile` by people who change one word."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

import graphweave
from graphweave.core.errors import SettingsError
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

EDGES = random_graph(6, 6, 20)


def spread(x: Tensor, edges: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


def breaks(x: Tensor, edges: Tensor) -> Tensor:
    return spread(x, edges) if x.sum() > 0 else -spread(x, edges)


class Spread(nn.Module):
    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return spread(x, edges)


@pytest.mark.parametrize(
    "given",
    [
        {"dynamic": True, "fullgraph": True, "mode": "default", "backend": "graphweave"},
        {"dynamic": None, "fullgraph": False, "mode": None, "disable": False},
    ],
)
@pytest.mark.parametrize("target", [spread, Spread()])
def test_what_means_something_is_taken(given: dict[str, Any], target: Any) -> None:
    x = features(6, 4)
    torch.testing.assert_close(graphweave.compile(target, **given)(x, EDGES), spread(x, EDGES))
    assert graphweave.counters()["compilations"] == 1


def test_as_a_decorator_with_arguments() -> None:
    @graphweave.compile(dynamic=True, options={"recompute": "never"})
    def f(x: Tensor, edges: Tensor) -> Tensor:
        return spread(x, edges).sin()

    x = features(6, 4)
    torch.testing.assert_close(f(x, EDGES), spread(x, EDGES).sin())
    assert graphweave.counters()["compilations"] == 1
    with pytest.raises(SettingsError, match="unknown option 'fast'"):
        graphweave.compile(options={"fast": True})


def test_fullgraph_raises_where_a_graph_breaks() -> None:
    x = features(6, 4)
    with pytest.raises(Unsupported, match="Data-dependent branching"):
        graphweave.compile(breaks, fullgraph=True)(x, EDGES)
    assert graphweave.counters()["eager_fallbacks"] == 0
    torch.testing.assert_close(graphweave.compile(breaks)(x, EDGES), breaks(x, EDGES))


def test_fullgraph_raises_in_place_of_an_eager_call_each_time_and_in_copies() -> None:
    class Breaks(nn.Module):
        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return breaks(x, edges)

    compiled = graphweave.compile(Breaks(), fullgraph=True)
    for called in (compiled, compiled, copy.deepcopy(compiled)):
        with pytest.raises(Unsupported):
            called(features(6, 4), EDGES)


def test_disable_returns_the_model_itself() -> None:
    model = Spread()
    assert graphweave.compile(model, disable=True) is model


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"backend": "inductor"}, r"backend must be 'graphweave' \(got 'inductor'\)\. .*torch\.compile"),
        ({"mode": "max-autotune"}, r"got 'max-autotune'\)\. .*options=\{'schedule': 'tune'\}"),
        ({"mode": "fast"}, r"mode must be one of .*got 'fast'"),
        ({"dynamic": "yes"}, r"dynamic must be True, False or None \(got 'yes'\)"),
        ({"fullgraph": 3}, r"fullgraph must be True or False \(got 3\)"),
        ({"options": "verify"}, r"options must be a dict"),
    ],
)
def test_what_means_nothing_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        graphweave.compile(spread, **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"verify": True}, r"'verify' is an option.*Pass options=\{'verify': True\}\."),
        ({"recompile_limit": 3}, r"unknown argument 'recompile_limit' \(got recompile_limit=3\); there are fullgraph"),
    ],
)
def test_an_option_as_a_keyword_gets_a_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        graphweave.compile(spread, **given)


def test_a_class_gets_a_sentence() -> None:
    with pytest.raises(TypeError, match=r"Spread is a class; .*graphweave\.compile\(Spread\(\.\.\.\)\)"):
        graphweave.compile(Spread)
