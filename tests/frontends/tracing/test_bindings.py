"""Operators of PyTorch that a program calls through PyTorch's own Python functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphweave
from graphweave.execute import bindings
from graphweave.execute.bindings import call_of
from tests.support import features, random_graph

aten = torch.ops.aten
F64 = torch.float64

FASTER: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "mm": (aten.mm.default, (features(3, 4, F64), features(4, 5, F64)), {}),
    "mul": (aten.mul.Tensor, (features(3, 4, F64), features(3, 4, F64)), {}),
    "sum": (aten.sum.dim_IntList, (features(3, 4, F64), [1], True), {}),
    "view": (aten.view.default, (features(3, 4, F64), [4, 3]), {}),
    "cat": (aten.cat.default, ([features(3, 4, F64), features(3, 4, F64)], 1), {}),
    "max": (aten.max.dim, (features(3, 4, F64), 1), {}),
    "index_add": (aten.index_add.default, (torch.zeros(3, 4), 0, torch.tensor([2, 0]), torch.ones(2, 4)), {}),
    "add with alpha": (aten.add.Tensor, (features(3, 4, F64), features(3, 4, F64)), {"alpha": 2}),
    "made of other operators": (aten.reshape.default, (features(3, 4, F64).t(), [12]), {}),
    "gelu": (aten.gelu.default, (features(3, 4, F64),), {"approximate": "tanh"}),
}
"""Operator, arguments and named arguments of calls that PyTorch's Python functions make faster."""

AS_THEY_ARE: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "a number, which torch.mul makes a tensor": (aten.mul.Scalar, (features(3, 4, F64), 2.0), {}),
    "no Python function": (aten.threshold_backward.default, (features(3, 4), features(3, 4), 0), {}),
    "an operator of another library": (torch.ops.prims.neg.default, (features(3, 4),), {}),
    "a device, which the method adds": (aten.new_zeros.default, (features(3, 4, F64), [2, 5]), {"dtype": torch.int64}),
    "one of several, made of other operators": (aten.std.default, (features(3, 4),), {}),
}


@pytest.mark.parametrize("name", FASTER)
def test_a_python_function_reaches_the_operator(name: str) -> None:
    target, args, kwargs = FASTER[name]
    call = call_of(target, args, kwargs)
    assert call is not target
    torch.testing.assert_close(tuple(call(*args, **kwargs)), tuple(target(*args, **kwargs)), rtol=0, atol=0)


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_an_operator_that_no_python_function_reaches_is_called_itself(name: str) -> None:
    target, args, kwargs = AS_THEY_ARE[name]
    assert call_of(target, args, kwargs) is target


def test_kinds_of_arguments_decide_and_a_tensor_without_dims_is_a_kind_of_its_own() -> None:
    x = features(3, 4, F64)
    for other in (x, x[0, 0], x[:1]):
        call = call_of(aten.pow.Tensor_Tensor, (x, other), {})
        torch.testing.assert_close(call(x, other), aten.pow.Tensor_Tensor(x, other), equal_nan=True)


def test_to_look_computes_draws_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_known", {})
    x, state = torch.full((5,), 0.5), torch.get_rng_state()
    for target, args in ((aten.bernoulli.default, (x,)), (aten.add_.Tensor, (x, x)), (aten.mul.out, (x, x))):
        call_of(target, args, {"out": x} if target is aten.mul.out else {})
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, torch.full((5,), 0.5)) and x._version == 0


def test_a_program_looks_once_for_each_call(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []

    def look(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        looked.append(function)
        return original(function, args, kwargs)

    original = bindings._operator_reached_by
    monkeypatch.setattr(bindings, "_known", {})
    monkeypatch.setattr(bindings, "_operator_reached_by", look)

    def model(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        sums = x.new_zeros(9, 4).index_add(0, index[1], x[index[0]])
        return torch.cdist(sums, x).sort(1)[0]

    compiled, given = graphweave.compile(model), (features(9, 4, F64), random_graph(9, 9, 30))
    torch.testing.assert_close(compiled(*given), model(*given))
    assert looked
    count = len(looked)
    for _ in range(3):
        compiled(*given)
    assert len(looked) == count
