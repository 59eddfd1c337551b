"""Properties of a compiled model beside its results: its class, its copies, and a first call by several threads."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import SettingsError
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

INDEX = random_graph(12, 12, 40)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(5, 4)
        self.scale = 2.0

    @property
    def doubled(self) -> float:
        return 2 * self.scale

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index) * self.scale


def _together(count: int, call: Callable[[], Any]) -> list[Any]:
    """The results of `count` threads that make `call` at the same moment."""
    start, results = threading.Barrier(count), []

    def run() -> None:
        start.wait()
        results.append(call())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_that_make_the_first_call_compile_once() -> None:
    net = Net()
    compiled = graphweave.compile(net)
    x = features(12, 5)
    results = _together(8, lambda: compiled(x, INDEX))
    assert graphweave.counters()["compilations"] == 1
    assert len(results) == 8
    for out in results:
        torch.testing.assert_close(out, net(x, INDEX))


def test_threads_under_another_mode_compile_once_more() -> None:
    net = Net()
    compiled = graphweave.compile(net)
    x = features(12, 5)
    compiled(x, INDEX)

    def infer() -> Tensor:
        with torch.no_grad():
            return compiled(x, INDEX)

    results = _together(4, infer)
    assert graphweave.counters()["compilations"] == 2
    torch.testing.assert_close(results[3], net(x, INDEX).detach())


def test_a_thread_that_fails_lets_the_next_one_in() -> None:
    def layer(x: Tensor, index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add_(0, index[1], x.index_select(0, index[0]))

    compiled = graphweave.compile(layer)
    raised = []

    def call(index: Tensor) -> None:
        try:
            compiled(features(12, 5), index)
        except IndexError as error:
            raised.append(error)

    _together(3, lambda: call(INDEX + 12))
    assert len(raised) == 3
    call(INDEX)
    assert len(raised) == 3


def test_it_is_of_the_class_of_its_model() -> None:
    net = Net()
    compiled = graphweave.compile(net)
    assert isinstance(compiled, Net)
    assert isinstance(compiled, nn.Module)
    assert not isinstance(compiled, pyg.GATConv)
    assert isinstance(graphweave.compile(pyg.SAGEConv(5, 4)), pyg.MessagePassing)


def test_attributes_are_those_of_the_model() -> None:
    net = Net()
    compiled = graphweave.compile(net)
    assert compiled.doubled == 4.0
    compiled.scale = 3.0
    assert net.scale == 3.0 and compiled.doubled == 6.0
    assert "compiled Net" in repr(compiled)
    with pytest.raises(AttributeError):
        compiled.nothing  # noqa: B018


def _through_a_file(module: nn.Module) -> nn.Module:
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    loaded: nn.Module = torch.load(stream, weights_only=False)
    return loaded


@pytest.mark.parametrize("remake", [copy.deepcopy, _through_a_file])
def test_copies_are_compiled_and_of_the_class(remake: Callable[[nn.Module], nn.Module]) -> None:
    net = Net()
    compiled = graphweave.compile(net)
    calls: list[str] = []
    compiled.register_forward_hook(_Count(calls))
    again = remake(compiled)
    assert isinstance(again, Net) and type(again) is type(compiled)
    x = features(12, 5)
    torch.testing.assert_close(again(x, INDEX), net(x, INDEX))
    assert graphweave.counters()["kernel_launches"] > 0
    assert len(again._forward_hooks) == 1


class _Count:
    """A hook that can be pickled."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def __call__(self, module: nn.Module, args: Any, out: Any) -> None:
        self.calls.append("forward")


def test_hooks_and_modes_of_the_compiled_module() -> None:
    net = Net()
    compiled = graphweave.compile(net)
    calls: list[str] = []
    compiled.register_forward_hook(_Count(calls))
    compiled(features(12, 5), INDEX)
    assert calls == ["forward"]
    assert not compiled.eval().training and not net.conv.training
    assert compiled.double().conv.lin_l.weight.dtype is torch.float64


def test_inside_another_compiled_function() -> None:
    net = Net()
    inner = graphweave.compile(net)
    x = features(12, 5)
    outer = graphweave.compile(lambda x, index: inner(x, index).relu())
    torch.testing.assert_close(outer(x, INDEX), net(x, INDEX).relu())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"verify": "x"}}, r"option 'verify' must be True or False \(got 'x'\)"),
        ({"options": {"verify": 1}}, r"option 'verify' must be True or False \(got 1\)"),
        ({"options": {"recompute": True}}, r"option 'recompute' must be 'auto', .* or 'always' \(got True\)"),
        ({"options": {"compact": "no"}}, r"option 'compact' must be None, True or False \(got 'no'\)"),
        ({"options": {"reorder": 0}}, r"option 'reorder' must be None, True or False \(got 0\)"),
        ({"options": {"cuda_graphs": None}}, r"option 'cuda_graphs' must be True or False \(got None\)"),
        ({"options": {"unseen_edits": "yes"}}, r"option 'unseen_edits' must be True or False \(got 'yes'\)"),
        ({"options": {"verfy": True}}, "unknown option 'verfy' .* verify, recompute"),
        ({"options": "verify"}, r"options must be a dict such as .* \(got 'verify'\)"),
        ({"dynamic": "yes"}, r"dynamic must be True, False or None \(got 'yes'\)"),
        ({"mode": "max-autotune"}, "mode must be one of None, 'default', 'reduce-overhead'"),
    ],
)
def test_values_that_an_option_cannot_have(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        graphweave.compile(Net(), **arguments)
