"""What holds of a backward by AOTAutograd's function holds too where it leaves out what a graph does not need
(`halves/short_way.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch._functorch._aot_autograd import runtime_wrappers

import graphweave
from graphweave.frontends.halves import autograd_function
from tests.support import features, random_graph

F64 = torch.float64
NODES = 9

Model = Callable[..., Any]


@pytest.fixture(params=["short", pytest.param("long", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Model]:
    """A layer, and it compiled: once with the short way, once without."""
    if request.param == "long":
        monkeypatch.setattr(autograd_function, "needs_little", lambda compilation: False)
    torch.manual_seed(0)
    layer = pyg.SAGEConv(4, 5).double()
    return layer, graphweave.compile(layer)


def given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return features(NODES, 4, F64).requires_grad_(), random_graph(NODES, NODES, 30)


@pytest.mark.skipif(
    not hasattr(runtime_wrappers, "_AutogradSavedState"), reason="PyTorch 2.11 makes autograd functions in one piece"
)
def test_the_short_way_is_taken(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = pyg.SAGEConv(4, 5).double()
    compiled, (x, edges) = graphweave.compile(layer), given()
    compiled(x, edges).sum().backward()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the long way")

    monkeypatch.setattr(runtime_wrappers, "call_func_at_runtime_with_args", refuse)
    monkeypatch.setattr(runtime_wrappers._AutogradSavedState, "save_from_forward", refuse)
    again = graphweave.compile(layer)
    for f in (compiled, again):
        f(x, edges).sum().backward()


def test_gradients_with_any_strides(model: tuple[Model, Model]) -> None:
    """The compiled backward expects those of the results."""
    grads = features(5, NODES, F64)
    for tangent in (grads.t(), grads.new_ones(()).expand(NODES, 5), grads.t().contiguous()):
        found = []
        for f in model:
            x, edges = given()
            f(x, edges).backward(tangent)
            found.append(x.grad)
        torch.testing.assert_close(*found)


def test_hooks_see_what_is_saved(model: tuple[Model, Model]) -> None:
    compiled = model[1]
    packed: list[Tensor] = []

    def pack(t: Tensor) -> int:
        packed.append(t.detach().clone())
        return len(packed) - 1

    def unpack(place: int) -> Tensor:
        return packed[place]

    x, edges = given()
    compiled(x, edges).sum().backward()
    want, x.grad = x.grad, None
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = compiled(x, edges)
        assert packed
        out.sum().backward()
        torch.testing.assert_close(x.grad, want)
        x.grad = None


def test_a_second_backward_needs_a_kept_graph(model: tuple[Model, Model]) -> None:
    x, edges = given()
    out = model[1](x, edges).pow(2).sum()
    out.backward(retain_graph=True)
    once, x.grad = x.grad, None
    out.backward()
    torch.testing.assert_close(x.grad, once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


def test_a_saved_input_that_is_overwritten_is_an_error(model: tuple[Model, Model]) -> None:
    x, edges = given()
    weight = model[0].lin_l.weight  # type: ignore[attr-defined]
    out = model[1](x, edges).sum()
    with torch.no_grad():
        weight.mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_results_that_need_no_gradient(fresh_compiler: None) -> None:
    def f(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = x.new_zeros(x.shape).index_add(0, edges[1], x[edges[0]])
        return h, h.detach() * 2, torch.zeros(x.size(0)).index_add(0, edges[1], torch.ones(edges.size(1)))

    compiled, (x, edges) = graphweave.compile(f), given()
    for _ in range(2):
        found, want = compiled(x, edges), f(x, edges)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in want] == [True, False, False]
        torch.testing.assert_close(found, want)
        (got,) = torch.autograd.grad(found[0].pow(2).sum(), x)
        (wanted,) = torch.autograd.grad(want[0].pow(2).sum(), x)
        torch.testing.assert_close(got, wanted)


def test_modes_without_gradients(model: tuple[Model, Model]) -> None:
    layer, compiled = model
    x, edges = given()
    compiled(x, edges).sum().backward()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = compiled(x, edges)
            torch.testing.assert_close(out, layer(x, edges))
        assert not out.requires_grad


def test_a_backward_within_a_transform_or_with_deterministic_algorithms_is_refused(model: tuple[Model, Model]) -> None:
    x, edges = given()
    model[1](x, edges).sum().backward()
    out = model[1](x, edges).sum()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            out.backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_gradients_are_freed_by_their_last_use(model: tuple[Model, Model]) -> None:
    """Nothing that the call has made is alive after the backward."""
    x, edges = given()
    out = model[1](x, edges)
    node = out.grad_fn
    out.sum().backward()
    assert node is not None
    with pytest.raises(RuntimeError, match="have already been freed"):
        _ = node.saved_tensors  # type: ignore[attr-defined]


def test_a_compiled_engine_of_autograd_calls_the_backward(model: tuple[Model, Model]) -> None:
    """It traces what it calls, but not the native code of a half."""
    layer, compiled = model
    x, edges = given()
    layer(x, edges).pow(2).sum().backward()
    want, x.grad = x.grad, None
    for _ in range(2):
        out = compiled(x, edges).pow(2).sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            out.backward()
        torch.testing.assert_close(x.grad, want)
        x.grad = None
