"""The size of a mailbox dim. In a dense mailbox it is one number; in a ragged one each row has its own."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from graphweave.tensorlike.answers import Handler, NotExpressible, TensorLike
from graphweave.udf.mailbox import Mailbox, Received, grown

Operator = Callable[[Any, Any], Any]

_ARITHMETIC: dict[str, Operator] = {
    "add": operator.add, "sub": operator.sub, "subtract": operator.sub, "mul": operator.mul, "multiply": operator.mul,
    "div": operator.truediv, "divide": operator.truediv, "true_divide": operator.truediv,
    "floor_divide": operator.floordiv, "pow": operator.pow,
}  # fmt: skip
"""Name of a PyTorch function -> Python's operator, which takes numbers too."""


class Extent(TensorLike):
    """The size of a mailbox dim, `m.shape[1]`, or a number computed from it: one number for each row.

    It may be used in a shape (`m.view(*m.shape[:2], heads, -1)`, `q.unsqueeze(1).expand(-1, m.shape[1], -1)`) and in
    arithmetic with numbers, with values of rows [rows, *features] and with mailboxes. `value` [rows] holds the numbers
    in float64, or is None for the size itself; `whole` says whether the numbers would be ints in Python.
    """

    called = "the number of messages of a mailbox"

    def __init__(self, received: Received, value: Tensor | None = None, whole: bool = True) -> None:
        self.received, self.value, self.whole = received, value, whole

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """The numbers [rows], in the dtype that an operation on a tensor of `dtype` and a Python number returns."""
        if not dtype.is_floating_point and not self.whole:
            dtype = torch.get_default_dtype()
        return self.received.count(dtype) if self.value is None else self.value.to(dtype)

    def __index__(self) -> int:
        raise NotExpressible("the number of messages of a mailbox as one number")

    __int__ = __float__ = __index__


def combined(function: Operator, a: object, b: Any) -> object:
    """`function` of `a` and `b`, at least one of which is an extent.

    The result is a mailbox or values of rows if one operand is; of numbers and extents it is an extent.
    """
    if isinstance(a, Mailbox) or isinstance(b, Mailbox):
        return function(*(_beside(x, a if isinstance(a, Mailbox) else b) for x in (a, b)))
    received = (a if isinstance(a, Extent) else b).received
    tensor = a if isinstance(a, Tensor) else b
    if isinstance(tensor, Tensor):
        if isinstance(tensor, Parameter) or tensor.dim() == 0 or tensor.shape[0] != received.num_rows():
            raise NotExpressible("the number of messages of a mailbox together with what has no value for each node")
        return function(*(_among_rows(x, tensor) for x in (a, b)))
    whole = all(x.whole if isinstance(x, Extent) else isinstance(x, int) for x in (a, b))
    value = function(*(x.numbers(torch.float64) if isinstance(x, Extent) else x for x in (a, b)))
    return Extent(received, value, whole and function is not operator.truediv)


def pulled(extent: Extent, box: Mailbox) -> Tensor:
    """The number of its row for each message of `box`, [messages, 1, ...]."""
    return grown(box.received.pull(extent.numbers(box.dtype)), box.messages.dim())


def _beside(x: object, box: Mailbox) -> object:
    return box.like(pulled(x, box)) if isinstance(x, Extent) else x


def _among_rows(x: object, tensor: Tensor) -> object:
    return grown(x.numbers(tensor.dtype), tensor.dim()) if isinstance(x, Extent) else x


def _widened(name: str, x: Tensor, *sizes: Any) -> Mailbox:
    """The mailbox in which each message has the value of its row: `x` [rows, 1, *features], expanded or repeated."""
    axis = next(d for d, size in enumerate(sizes) if isinstance(size, Extent))
    extent = sizes[axis]
    if axis == 0 or extent.value is not None or len(sizes) != x.dim() or x.shape[axis] != 1:
        raise NotExpressible(f"{name} to a number of messages of what has not one value for each node")
    same = (1 if name == "repeat" else -1, x.shape[0])
    if sizes[0] not in same or x.shape[0] != extent.received.num_rows():
        raise NotExpressible(f"{name} of nodes")
    data = extent.received.pull(x.squeeze(axis))
    features = [*sizes[1:axis], *sizes[axis + 1 :]]
    data = data.repeat(1, *features) if name == "repeat" else data.expand(-1, *features)
    return Mailbox(data, extent.received, axis)


def _positional(name: str, function: Callable[..., object]) -> Handler:
    def handler(*args: object, **kwargs: object) -> object:
        if kwargs:
            raise Extent.unknown(name)
        return function(*args)

    return handler


def _arithmetic(function: Operator) -> Operator:
    return lambda a, b: combined(function, a, b)


EXTENT = {name: _positional(name, _arithmetic(function)) for name, function in _ARITHMETIC.items()} | {
    name: _positional(name, functools.partial(_widened, name)) for name in ("expand", "repeat")
}
"""The handlers of PyTorch's functions for arguments that include an extent."""


def _branch(self: Extent, other: object) -> bool:
    raise NotExpressible("a branch on the number of messages of a mailbox")


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Extent, f"__{_name}__", _branch)
