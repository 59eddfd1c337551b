"""Calls of operators that were declared to be pointwise (`graphweave.extend.pointwise`) -> Pointwise."""

from __future__ import annotations

from torch import fx

from graphweave.core.errors import IRError
from graphweave.frontends.calls.captured_sizes import is_tensor, val
from graphweave.frontends.calls.declared import arguments, operator_of
from graphweave.frontends.importing.context import Context, Handler
from graphweave.ir.message.nodes import Ref


def handler_of(target: object) -> Handler | None:
    return None if operator_of(target) is None else _declared


def _declared(cx: Context, node: fx.Node) -> Ref:
    """The declared operator applied to its operands, all of the result's type; for other types its result is not
    known."""
    op = operator_of(node.target)
    assert op is not None
    result = val(node).dtype
    if not result.is_floating_point:
        raise IRError(f"{op.value} of {result}")
    operands = arguments(node.target, node.args, node.kwargs)
    other = next((val(a).dtype for a in operands if is_tensor(a) and val(a).dtype != result), None)
    if other is not None:
        raise IRError(f"{op.value} of {other} that gives {result}")
    return cx.map(op, *(cx.aligned(a, node, cx.result(node).dtype) for a in operands))
