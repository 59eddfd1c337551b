"""The meaning of an operator in torch: the call that both interpreters make."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from graphweave.core.errors import IRError
from graphweave.core.formulas import evaluate
from graphweave.core.types import Op


@cache
def call_of(op: Op) -> Callable[..., Any]:
    """A function of the operands, which makes one ATen call, or the calls of the operator's formula."""
    facts = op.facts
    if facts.aten:
        return overload(facts.aten[0])
    if not facts.formula:
        raise IRError(f"operator '{op.value}' has neither an ATen overload nor a formula (core/operators.py)")
    return lambda *args: evaluate(
        facts.formula, dict(zip("xyz", args, strict=False)), lambda inner, given: call_of(inner)(*given), float
    )


def overload(name: str) -> Any:
    """The ATen overload `name`, such as "add.Tensor"."""
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which)
