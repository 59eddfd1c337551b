"""Operators of other libraries that were declared to the compiler (`graphweave.extend`), as capture meets them.

An operator is declared either by a formula in PyTorch, which replaces it while a graph is captured, or as a member of
`Op`, into which the importer translates its calls. An operator without an autograd formula is replaced before autograd
sees the graph: by the formula, whose derivative is the operator's, or by a function that calls it and has the declared
derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from graphweave.core.formulas import evaluate
from graphweave.core.types import Op
from graphweave.ir.operator_calls import call_of, overload


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of `overload`: the `formula` that replaces it, or the operator `op` that it is.

    `differentiable` stands in its place while autograd traces a graph; None where the operator has its own derivative.
    """

    overload: OpOverload
    formula: Callable[..., object] | None = None
    op: Op | None = None
    differentiable: Callable[..., Any] | None = None


_declared: dict[Any, Declared] = {}


def add(declared: Declared) -> None:
    _declared[declared.overload] = declared


def discard(declared: Declared) -> None:
    del _declared[declared.overload]


def is_any() -> bool:
    """Whether any operator is declared."""
    return bool(_declared)


def operator_of(target: object) -> Op | None:
    """The pointwise operator that `target` was declared to be, or None."""
    found = _declared.get(target)
    return None if found is None else found.op


def formulas() -> dict[OpOverload, Callable[..., Any]]:
    """Overload -> the formula that replaces it."""
    return {call: d.formula for call, d in _declared.items() if d.formula is not None}


def differentiable(target: object) -> Any:
    """The function to call for `target` so that autograd finds its derivative."""
    found = _declared.get(target)
    return target if found is None or found.differentiable is None else found.differentiable


def replace_calls(module: fx.GraphModule) -> None:
    """Give calls of declared operators without an autograd formula a derivative, in `module` and its submodules."""
    if not _declared:
        return
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in part.graph.nodes:
            if node.op == "call_function":
                node.target = _in_place_of(node.target)
        part.recompile()


def _in_place_of(target: object) -> object:
    """The function to call in place of an operator. If only its name was called, the arguments decide on the
    overload."""
    if not isinstance(target, torch._ops.OpOverloadPacket):
        return differentiable(target)
    overloads = [getattr(target, name) for name in target.overloads()]
    if all(differentiable(overload) is overload for overload in overloads):
        return target
    name = target._qualified_op_name

    def chosen(*args: object, **kwargs: object) -> Tensor:
        overload = getattr(target, torch._C._jit_resolve_packet(name, *args, **kwargs))
        return differentiable(overload)(*args, **kwargs)

    chosen.__name__ = chosen.__qualname__ = name.replace("::", "__")
    return chosen


# ---------------------------------------------------------------- a derivative for an operator that has none


def with_derivative(op: Op) -> Callable[..., object]:
    """A function that calls the declared operator `op` and has the derivative that the operator's row gives."""
    call, slopes = overload(op.facts.aten[0]), op.facts.derivative or ()

    class DeclaredCall(torch.autograd.Function):
        @staticmethod
        def forward(*args: object) -> Tensor:
            return call(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor | float, ...], output: object) -> None:
            ctx.numbers = [None if isinstance(a, Tensor) else float(a) for a in inputs]
            ctx.save_for_backward(*(a for a in inputs if isinstance(a, Tensor)), output)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            *tensors, out = ctx.saved_tensors
            left = iter(tensors)
            args = [next(left) if number is None else number for number in ctx.numbers]
            return _gradients(slopes, args, out, grads[0], ctx.needs_input_grad)

    def called(*args: object, **kwargs: object) -> object:
        return DeclaredCall.apply(*arguments(call, args, kwargs))

    called.__name__ = called.__qualname__ = op.value
    return called


def _gradients(
    slopes: Sequence[str], args: Sequence[Any], out: Tensor, grad: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients of `args`, by formulas, if the result `out` has the gradient `grad`."""

    def apply(op: Op, operands: tuple[Tensor | float, ...]) -> Tensor:
        call = differentiable(overload(op.facts.aten[0])) if op.facts.aten else call_of(op)
        return call(*(x if i in op.facts.numbers else tensor(x) for i, x in enumerate(operands)))

    def tensor(x: Tensor | float) -> Tensor:
        return x if isinstance(x, Tensor) else torch.full((), x, dtype=out.dtype, device=out.device)

    names = dict(zip("xyz", args, strict=False)) | {"out": out, "g": grad}
    found: list[Tensor | None] = []
    for formula, arg, needed in zip(slopes, args, wanted, strict=True):
        if not formula or not needed:
            found.append(None)
            continue
        slope: Any = evaluate(formula, names, apply, float)
        found.append(tensor(slope).broadcast_to(out.shape).sum_to_size(arg.shape))
    return tuple(found)


def arguments(call: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """The arguments of a call in the order of its schema, including defaults."""
    out: list[object] = []
    for position, said in enumerate(call._schema.arguments):
        if position < len(args):
            out.append(args[position])
        else:
            out.append(kwargs.get(said.name, said.default_value if said.has_default_value() else None))
    return out
