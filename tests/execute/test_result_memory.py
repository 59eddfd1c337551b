"""What users may do to the tensors that a compiled function gives back or has seen: resize them, swap them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.runtime import resizable
from graphweave.runtime.arena import SMALLEST, Arena

DOORS = {"graphweave": graphweave.compile, "plain": lambda f: torch.compile(f, backend="graphweave")}


def summed(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return x.new_zeros(x.shape).index_add(0, dst, (x @ w)[src])


def arguments(rows: int = 3000, width: int = 64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (rows, width))
    src, dst = (torch.randint(rows, (2 * rows,), generator=generator) for _ in range(2))
    return [x.requires_grad_(), src, dst, w.requires_grad_()]


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    torch._dynamo.reset()
    return DOORS[str(request.param)]


def test_large_results_and_gradients_can_be_resized(door: Callable[[Any], Any]) -> None:
    args = arguments()
    want, compiled = summed(*args).detach(), door(summed)
    out = compiled(*args)
    out.square().sum().backward()
    for result in (out.detach(), args[0].grad):
        assert result is not None and result.untyped_storage().nbytes() >= SMALLEST
        before = result.clone()
        assert result.untyped_storage().resizable()
        result.resize_(4000, 64)
        assert torch.equal(result[:3000], before)
        storage = result.untyped_storage()
        storage.resize_(0)  # what FSDP does with parameters that it has sharded
        assert storage.nbytes() == 0
        storage.resize_(4000 * 64 * 8)
        result.fill_(2.0)
        assert result.sum() == 2 * 4000 * 64
    # The memory that a resize gave up serves the next call, whose result is its own.
    with torch.no_grad():
        torch.testing.assert_close(compiled(*arguments()), want)


def test_a_large_result_can_be_an_out_argument(door: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        out = door(summed)(*arguments())
        torch.ones(5000, 64, dtype=torch.float64, out=out.resize_(0))
    assert out.shape == (5000, 64) and out.sum() == 5000 * 64


def test_tensors_that_a_compiled_function_has_seen_can_be_swapped(door: Callable[[Any], Any]) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, dtype=torch.float64)

        def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
            return x.new_zeros(x.shape).index_add(0, dst, self.linear(x)[src])

    layer = Layer()
    compiled = door(layer)
    x, src, dst, _ = arguments(20, 4)
    for _ in range(2):
        compiled(x, src, dst).sum().backward()
    others = arguments(20, 4)
    for t, other in ((x, others[0].detach().mul(2).requires_grad_()), (src, others[2]), (dst, others[1])):
        torch.utils.swap_tensors(t, other)
    for parameter in layer.parameters():
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach() * 3))
    torch.testing.assert_close(compiled(x, src, dst), layer(x, src, dst))
    layer.to(torch.float64)


def test_an_index_is_known_again_after_it_was_swapped_or_edited(door: Callable[[Any], Any]) -> None:
    """Two tensors that change places, an edit of the one, and another tensor in its memory."""
    x, src, dst, w = arguments(50, 4)
    compiled = door(summed)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, src, dst, w), summed(x, src, dst, w))
        torch.utils.swap_tensors(src, dst)
    src[3] = 7
    torch.testing.assert_close(compiled(x, src, dst, w), summed(x, src, dst, w))
    dst.data[4] = 1  # which no version counter sees
    torch.testing.assert_close(compiled(x, src, dst, w), summed(x, src, dst, w))
    torch.testing.assert_close(compiled(x, src.data, dst.flip(0).flip(0), w), summed(x, src, dst, w))


@pytest.fixture
def fields_unknown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(resizable, "_fields", lambda: None)
    resizable.make_resizable.cache_clear()
    yield
    resizable.make_resizable.cache_clear()


@pytest.mark.usefixtures("fields_unknown")
def test_an_unknown_pytorch_gets_memory_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be resized is never given to users: the memory then is PyTorch's."""
    arena = Arena(lambda: 1 << 30)
    with caplog.at_level(logging.WARNING):
        t = arena.empty((SMALLEST,), torch.uint8)
    assert "results use no memory of earlier ones" in caplog.text
    assert t.untyped_storage().resizable() and arena.stats()["in_use"] == 0
