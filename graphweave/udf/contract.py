"""Products of mailboxes. With shared weights they work row by row; a sum over the mailbox dim is a push of products.

Products without shared weights become an einsum whose letters tell which dim is nodes and which is messages.
"""

from __future__ import annotations

import string
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graphweave.tensorlike.answers import Handler, NotExpressible, unpacked
from graphweave.tensorlike.equations import over_rows, terms_of
from graphweave.udf.mailbox import Mailbox, first
from graphweave.udf.reductions import push


def _einsum(equation: str, *operands: Any) -> Any:
    """torch.einsum. The letters of nodes and messages are those that mailboxes have at dim 0 and at dim `axis`.

    The letter of nodes must be the first one of the output.
    """
    operands = unpacked(operands)
    box = first(*operands)
    for x in operands:
        if isinstance(x, Mailbox) and x.received is not box.received:
            raise NotExpressible("an einsum of mailboxes of different nodes")
    plan = _plan(equation, tuple(x.axis if isinstance(x, Mailbox) else 0 for x in operands))
    if plan.refused:
        raise NotExpressible(plan.refused)
    spread = []
    for x, pulled in zip(operands, plan.pulled, strict=True):
        data = x.messages if isinstance(x, Mailbox) else x
        spread.append(box.received.pull(data) if pulled else data)
    data = torch.einsum(plan.equation, *spread)
    return push(data, box, "sum") if plan.axis is None else box.like(data, plan.axis)


class _Plan(NamedTuple):
    """The equation over messages, which operands are pulled to the messages, and the mailbox dim of the result.

    The dim is None if the result is pushed. `refused` says why there is no equation.
    """

    equation: str = ""
    pulled: tuple[bool, ...] = ()
    axis: int | None = None
    refused: str = ""


@torch.compiler.assume_constant_result  # depends on letters alone, so a trace needs only the result
def _plan(equation: str, axes: tuple[int, ...]) -> _Plan:
    """The plan of `equation` for operands with mailbox dims `axes`; a dim of 0 marks a tensor."""
    if "." in equation:
        return _Plan(refused="an einsum of a mailbox with an ellipsis")
    terms, output = terms_of(equation)
    boxes = [(t, axis) for t, axis in zip(terms, axes, strict=True) if axis]
    rows, messages = {t[0] for t, _ in boxes}, {t[axis] for t, axis in boxes}
    if len(rows) > 1 or len(messages) > 1:
        return _Plan(refused="an einsum of pairs of messages")
    (row,), (message,) = rows, messages
    if output[:1] != row:
        return _Plan(refused="an einsum whose output does not start with the nodes")
    pulled = []
    for t, axis in zip(terms, axes, strict=True):
        if not axis and message in t:
            return _Plan(refused="an einsum in which a tensor has a value for each place of a mailbox")
        if not axis and row in t[1:]:
            return _Plan(refused="an einsum of a tensor whose nodes are not its first dim")
        pulled.append(not axis and row in t)
    inner = over_rows(equation, [axis > 0 or row in t for t, axis in zip(terms, axes, strict=True)], row + message)
    return _Plan(inner, tuple(pulled), output.index(message) if message in output else None)


def _matmul(a: Mailbox, b: Any) -> Mailbox | Tensor:
    """a @ b as an einsum. Dims before the last two align from the right."""
    box = first(a, b)
    if torch.compiler.is_compiling() and isinstance(a, Tensor) and _could_be_left(box, a):
        # PyTorch 2.13 traces `m @ x` as matmul(x, m). Only one of the two can be expressed: x @ m would sum over
        # messages, and x cannot have a value for each message.
        a, b = b, a
    if isinstance(a, Mailbox) and not isinstance(b, Mailbox) and b.dim() <= 2 and a.axis < a.ndim - 1:
        return a.like(a.messages @ b)  # shared weights
    a_dims, b_dims = (x.ndim if isinstance(x, Mailbox) else x.dim() for x in (a, b))
    if a_dims < 2 or b_dims < 2:
        raise NotExpressible("a product of a mailbox and a vector")
    if max(a_dims, b_dims) != box.ndim:
        raise NotExpressible("a product of a mailbox with a tensor of more dims")
    return _einsum(_equation(a_dims, b_dims), a, b)


def _could_be_left(box: Mailbox, x: Tensor) -> bool:
    return box.axis == box.ndim - 2 and x.dim() > 0 and x.shape[max(x.dim() - 2, 0)] == box.messages.shape[-1]


@torch.compiler.assume_constant_result
def _equation(a_dims: int, b_dims: int) -> str:
    i, k, j, *rest = list(string.ascii_letters)
    lead = "".join(rest[: max(a_dims, b_dims) - 2])
    return f"{lead[len(lead) - a_dims + 2 :]}{i}{k},{lead[len(lead) - b_dims + 2 :]}{k}{j}->{lead}{i}{j}"


def _linear(x: object, weight: Tensor, bias: Tensor | None = None) -> Mailbox:
    if not isinstance(x, Mailbox) or x.axis == x.ndim - 1:
        raise NotExpressible("a linear layer over the messages of a mailbox, or with weights of a mailbox")
    return x.like(functional.linear(x.messages, weight, bias))


PRODUCTS: dict[str, Handler] = {
    "einsum": _einsum, "matmul": _matmul, "bmm": _matmul, "mm": _matmul, "linear": _linear,
}  # fmt: skip
"""The handlers of products, by name."""
