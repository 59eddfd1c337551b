"""Objects that stand for tensors: every form of a function has its handler, and views are those of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from graphweave.tensorlike.answers import NotExpressible, TensorLike, answer
from graphweave.tensorlike.pointwise import pointwise_handlers
from graphweave.tensorlike.views import view_handlers


class Boxed(TensorLike):
    """Stands for `data` [rows, *features], with a dim of size 1 at each position in `outer` after the first."""

    called = "a box"

    def __init__(self, data: Tensor, outer: tuple[int, ...] = ()) -> None:
        self.data, self.places = data, outer

    @property
    def outer(self) -> tuple[int, ...]:
        return self.places

    @property
    def ndim(self) -> int:
        return self.data.dim() - 1 + len(self.places)

    def tensor(self) -> Tensor:
        return self.data

    def like(self, data: Tensor) -> Boxed:
        return Boxed(data, self.places)

    def moved(self, data: Tensor, outer: tuple[int, ...]) -> Boxed:
        return Boxed(data, outer)

    def dense(self) -> Tensor:
        """The features of the only row, without outer dims."""
        x = self.data if self.places else self.data.squeeze(0)
        for d in self.places[1:]:
            x = x.unsqueeze(d)
        return x


def _meeting(given: Sequence[Any]) -> tuple[TensorLike, list[Any]]:
    return next(x for x in given if isinstance(x, Boxed)), [x.data if isinstance(x, Boxed) else x for x in given]


def _together(parts: Sequence[Any]) -> tuple[Boxed, list[Tensor]]:
    return parts[0], [x.data for x in parts]


answer(Boxed, {**pointwise_handlers(_meeting), **view_handlers(_together)}, refuse_others=True)

Function = Callable[[Any, Any], Any]
SPELLINGS: dict[str, Function] = {
    "operator": lambda x, y: x - y,
    "reflected": lambda x, y: y - x,
    "number first": lambda x, y: 2.0 / x,
    "function": lambda x, y: torch.sub(x, y),
    "tensor first": lambda x, y: torch.sub(y, x),
    "method": lambda x, y: x.sub(y, alpha=2),
    "method of a tensor": lambda x, y: y.mul(x),
    "rsub": lambda x, y: torch.rsub(x, y),
    "comparison": lambda x, y: x >= y,
    "functional": lambda x, y: functional.leaky_relu(x, negative_slope=0.5),
    "special": lambda x, y: torch.special.log1p(abs(x)),
    "conversion": lambda x, y: (x * 8).long(),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_answered(name: str) -> None:
    x, y = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(1)).unbind(0)
    got = SPELLINGS[name](Boxed(x), y)
    assert isinstance(got, Boxed)
    assert torch.equal(got.data, SPELLINGS[name](x, y))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "unsqueeze": lambda x: x.unsqueeze(1),
    "unsqueeze last": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.unsqueeze(2).squeeze(2),
    "squeeze nothing": lambda x: x.squeeze(-1),
    "flatten": lambda x: x.flatten(-2),
    "flatten one": lambda x: x.flatten(-1, -1),
    "permute": lambda x: x.permute(0, *range(x.ndim - 1, 0, -1)),
    "transpose": lambda x: torch.transpose(x, 1, -1),
    "swapdims": lambda x: x.swapdims(-2, -1),
    "movedim": lambda x: x.movedim(1, -1).moveaxis(-1, -2),
    "cat": lambda x: torch.cat([x, -x], -1),
    "stack": lambda x: torch.stack([x, -x], 1),
    "stack last": lambda x: torch.stack([x, -x], -1),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "index_select": lambda x: x.index_select(-1, torch.tensor([2, 0])),
    "select": lambda x: x.select(-2, 1),
    "narrow": lambda x: x.narrow(-1, 1, 2),
    "unbind": lambda x: x.unbind(-1)[1],
    "flip": lambda x: x.flip(-1, -2),
}


@pytest.mark.parametrize("axis", [None, 1, 2], ids=["features", "axis 1", "axis 2"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_a_tensor(name: str, axis: int | None) -> None:
    x = Boxed(torch.randn(1, 4, 2, 3), () if axis is None else (0, axis))
    assert torch.equal(VIEWS[name](x).dense(), VIEWS[name](x.dense()))


REFUSED: dict[str, Callable[[Any], Any]] = {
    "Tensor.sort of a box": lambda x: x.sort(),
    "sort of a box": lambda x: torch.sort(x),
    "exp of a box into a tensor": lambda x: torch.exp(x, out=torch.empty(1)),
    "an operation in place on a box": lambda x: functional.relu(x, inplace=True),
    "a dim in front of the nodes of a box": lambda x: x.unsqueeze(0),
    "an operation along the nodes": lambda x: x.transpose(0, 2),
    "an index into the messages of a box": lambda x: x.select(1, 0),
    "squeeze of the messages of a box": lambda x: x.squeeze(1),
    "squeeze of a box without a dim": lambda x: x.squeeze(),
    "flatten over messages and features together": lambda x: x.flatten(1),
    "a box whose nodes are not its first dim": lambda x: x.permute(1, 0, 2),
    "joining nodes or messages": lambda x: torch.cat([x, x], 1),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_done_is_refused(why: str) -> None:
    with pytest.raises(NotExpressible, match=why):
        REFUSED[why](Boxed(torch.randn(5, 3), (0, 1)))
