"""`options={"verify": True}` reports every difference from eager mode, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import graphweave
from graphweave.core.errors import VerifyError
from graphweave.execute import region_check
from graphweave.frontends.importing import importer
from graphweave.frontends.importing.context import Context
from graphweave.ir.message import layouts
from graphweave.ir.message.interp import interp
from tests.layout_support import DOORS, compare, compiled

INDEX = torch.tensor([0, 1, 2, 0, 3, 1, 2, 0, 5])


def transposed(x: Tensor, i: Tensor) -> Tensor:
    v = x[1:].t().contiguous() * 2
    v[0] = 0.0  # the line at fault
    return v


def summed(x: Tensor, i: Tensor) -> Tensor:
    y = x.tanh()
    return torch.zeros_like(x).index_add(0, i, y[i] * x)


def test_gradients_by_wrong_strides_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides asked of a tensor that lies otherwise than the captured one made gradients wrong, and results right."""
    monkeypatch.setattr(Context, "size", lambda self, size: None)
    monkeypatch.setattr(importer._Importer, "_as_captured", importer._Importer._operand)
    monkeypatch.setattr(importer, "EMPTY", {})
    monkeypatch.setattr(importer, "INTO_COPIES", frozenset())
    x = _values().requires_grad_()
    # "unstack" would take the rows of `v` apart
    out = compiled(transposed, "graphweave.compile", verify=True, passes="-unstack")(x, INDEX)
    with pytest.raises(VerifyError, match=r"gradient of input .* differs.*test_verify.py:\d+ v"):
        out.sum().backward()


def _wrong(cx: Context, node: fx.Node) -> Any:
    return cx.value(node.args[0])


@pytest.mark.parametrize("door", DOORS)
def test_a_call_read_wrongly_is_reported(monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    monkeypatch.setitem(importer.HANDLERS, torch.ops.aten.tanh.default, _wrong)  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match=r"result 0 differs from eager mode's: expected .*y = x.tanh\(\)"):
        compiled(summed, door, verify=True)(_values(), INDEX)


def test_a_wrong_gradient_of_a_call_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importer.HANDLERS, torch.ops.aten.tanh_backward.default, _wrong)  # type: ignore[arg-type]
    out = compiled(summed, "graphweave.compile", verify=True)(_values().requires_grad_(), INDEX)
    with pytest.raises(VerifyError, match=r"gradient of input .*y = x.tanh\(\)"):
        out.sum().backward()


def test_wrong_strides_and_shared_memory_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "settled", None)
    monkeypatch.setattr("graphweave.execute.python_runner.settled", lambda value, *_: value)
    with pytest.raises(VerifyError, match=r"other strides than eager mode's: expected \(9, 1\)"):
        compiled(lambda x: x.t().contiguous(), "graphweave.compile", verify=True)(_values())
    with pytest.raises(VerifyError, match="shares its memory with an input"):
        compiled(lambda x: x.view(-1, 2).clone(), "graphweave.compile", verify=True)(_values())


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fn", [transposed, summed], ids=lambda f: f.__name__)
def test_what_is_right_passes(fn: Callable[..., Any], door: str) -> None:
    compare(fn, [(_values(n), INDEX[:n].remainder(n)) for n in (9, 5)], door, verify=True)


def test_random_masks_are_those_that_were_drawn() -> None:
    def dropped(x: Tensor, i: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5)[i] * torch.rand(4, dtype=x.dtype)

    made = compiled(dropped, "graphweave.compile", verify=True)
    for _ in range(2):
        x = _values().requires_grad_()
        made(x, INDEX).sum().backward()


def test_the_backward_may_run_twice_and_the_buffers_may_change() -> None:
    norm = torch.nn.BatchNorm1d(4).double()
    made = graphweave.compile(norm, options={"verify": True})
    x = _values().requires_grad_()
    out = made(x)
    norm.running_mean.add_(1)  # type: ignore[operator, union-attr]
    out.square().sum().backward(retain_graph=True)
    out.square().sum().backward()


def test_a_tie_decided_by_rounding_is_no_mistake() -> None:
    """Sums in two orders may make either value the larger one, and the gradient goes to that one."""

    def larger(x: Tensor, i: Tensor) -> Tensor:
        a = torch.zeros_like(x).index_add(0, i, x[i] * 0.1)
        b = torch.zeros_like(x).index_add(0, i, x[i]) * 0.1
        return torch.maximum(a, b).relu() * x

    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    compiled(larger, "graphweave.compile", verify=True)(x, INDEX).sum().backward()


def largest(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    messages = (x[src] * w).tanh()
    return torch.zeros_like(x).scatter_reduce(0, dst[:, None].expand(-1, 4), messages, "amax", include_self=False)


def _backward_of_largest(dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(0)
    x, w = (torch.randn(rows, 4, generator=noise, dtype=dtype) for rows in (300, 2000))
    src, dst = torch.randint(300, (2, 2000), generator=noise)
    made = compiled(largest, "graphweave.compile", verify=True)
    made(x.requires_grad_(), w, src, dst).square().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_maximum_that_a_kernel_rounds_otherwise_is_no_mistake(dtype: torch.dtype) -> None:
    """The backward computes tanh again and compares it with the maximum. The kernel's tanh differs from PyTorch's in
    the last bits, so that the interpreter found no edge that has the maximum."""
    _backward_of_largest(dtype)


def test_a_kernel_that_computes_otherwise_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties excuse the gradients that they lead to, and nothing else."""

    def more(*given: Any) -> list[Any]:
        return [value * 1.01 if value.is_floating_point() else value for value in interp(*given)]

    monkeypatch.setattr(region_check, "interp", more)
    with pytest.raises(VerifyError, match=r"region .* computes %\d+ differently from eager: .*test_verify.py:\d+"):
        _backward_of_largest(torch.float32)


def _values(rows: int = 9) -> Tensor:
    return torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
