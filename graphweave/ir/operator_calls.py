"""The meaning of an operator in torch: the call that both interpreters make."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from graphweave.core.errors import IRError
from graphweave.core.formulas import evaluate
from graphweave.core.types import Op


@cache
def call_of(op: Op) -> Callable[..., Any]:
    """A function of the operands, which makes one ATen call, or the calls of the operator's formula."""
    facts = op.facts
    if facts.aten:
        call = overload(facts.aten[0])
        return _with_numbers(call, facts.numbers) if facts.numbers else call
    if not facts.formula:
        raise IRError(f"operator '{op.value}' has neither an ATen overload nor a formula (core/operators.py)")
    return lambda *args: evaluate(
        facts.formula, dict(zip("xyz", args, strict=False)), lambda inner, given: call_of(inner)(*given), float
    )


def overload(name: str) -> OpOverload:
    """The overload `name`: of ATen, such as "add.Tensor", or of another library, such as "mylib::add.Tensor"."""
    library, _, rest = name.rpartition("::")
    packet, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, library or "aten"), packet), which)


def _with_numbers(call: Callable[..., Any], numbers: tuple[int, ...]) -> Callable[..., object]:
    """A function of tensors that computes `call`, whose operands `numbers` are Python numbers, with one call for each
    different combination of elements in these."""

    def called(*args: Any) -> object:
        tensors = [torch.as_tensor(arg) for arg in args]
        given = torch.broadcast_tensors(*(tensors[i] for i in numbers))
        out: Any = None
        for chosen in torch.stack([x.reshape(-1) for x in given], 1).unique(dim=0).tolist() or [[0.0] * len(numbers)]:
            part = call(*(chosen[numbers.index(i)] if i in numbers else x for i, x in enumerate(tensors)))
            here = torch.stack([x == n for x, n in zip(given, chosen, strict=True)]).all(0)
            out = part if out is None else torch.where(here, part, out)
        return out.broadcast_to(torch.broadcast_shapes(*(x.shape for x in tensors)))

    return called
