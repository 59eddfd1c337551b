"""Calls of PyTorch that compute each element by itself, as C++ (`combined` of `native/values.cpp`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graphweave.core.types import DType
from graphweave.exporting.dtypes import DTYPE_CODE
from graphweave.exporting.named_node import NamedNode, quoted
from graphweave.ir.message.aten import DTYPE_OF, TORCH_DTYPE

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Make = Callable[[NamedNode, Args, Kwargs], str]
"""Writes the C++ expression of a call with these arguments."""


@dataclass(frozen=True, slots=True)
class _Hole:
    """An argument of a call, as a template names it: `{0}`, or one of its properties, `{0.array}`."""

    call: NamedNode
    given: Any

    def __str__(self) -> str:
        return self.call.text(self.given)

    @property
    def array(self) -> str:
        """A list of sizes."""
        return self.call.array(self.given)

    @property
    def count(self) -> int:
        """The number of sizes in the list."""
        return len(self.given)

    @property
    def quoted(self) -> str:
        """A text as a string of C++."""
        return quoted(self.given)


def template(text: str) -> Make:
    """`text`, in which `{0}` is the first argument of the call, and `{call.code}` a property of the call."""

    def make(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
        return text.format(*(_Hole(call, arg) for arg in args), call=call)

    return make


def _combine(op: str, *, scaled: bool = False) -> Make:
    """op(x, y) for each element; with `scaled`, y is multiplied by the keyword `alpha`."""

    def make(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
        if scaled and kwargs.get("alpha", 1) != 1:
            raise call.refused()
        if not any(map(call.is_value, args[:2])):
            raise call.refused()
        known = [call.dtype(call.operand(a)) for a in args[:2] if call.is_value(a)]
        dtype = _promoted(known, args[:2]) if op in _COMPARISONS else call.dtype()
        parts = []
        for arg in args[:2]:
            if call.is_value(arg):
                parts.append(f"converted(run, {call.text(arg)}, {DTYPE_CODE[dtype]})")
            else:
                parts.append(f"filled_with(run, {DTYPE_CODE[dtype]}, {call.text(arg)}, {{0}}, 0)")
        body = f"[](auto a, auto b) {{ return {op.format('a', 'b')}; }}"
        return f"combined(run, {', '.join(parts)}, {call.code}, {body})"

    return make


_COMPARISONS = frozenset({"{} == {}", "{} != {}", "{} < {}", "{} <= {}", "{} > {}", "{} >= {}"})


def _promoted(known: list[DType], args: Args) -> DType:
    if len(set(known)) == 1:
        return known[0]
    return DTYPE_OF[torch.promote_types(*(TORCH_DTYPE[d] for d in known))]


def _of_each(body: str) -> Make:
    """A formula of each element `a`, computed in the result's dtype, and of the numbers that follow it."""

    def make(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
        x = f"converted(run, {call.text(args[0])}, {call.code})"
        formula = body.format(*map(call.text, args[1:]))
        return f"combined(run, {x}, {x}, {call.code}, [](auto a, auto) {{ return {formula}; }})"

    return make


def _clamp(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    low, high = (*args[1:], None, None)[:2]
    body = "a"
    if low is not None:
        body = f"({body} < {call.text(low)} ? {call.text(low)} : {body})"
    if high is not None:
        body = f"({body} > {call.text(high)} ? {call.text(high)} : {body})"
    return _of_each(body)(call, args[:1], kwargs)


def _power(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    """A power of floats; the usual ones as PyTorch computes them."""
    usual = {2: "a * a", 0.5: "std::sqrt(a)", -0.5: "1 / std::sqrt(a)", -1: "1 / a"}
    if call.is_value(args[1]) or not call.dtype().is_float:
        raise call.refused()
    return _of_each(usual.get(args[1], f"std::pow(static_cast<double>(a), {args[1]})"))(call, args[:1], kwargs)


def _where(call: NamedNode, args: Args, kwargs: Kwargs) -> str:
    code = DTYPE_CODE[call.dtype()]
    parts = []
    for arg in args[1:]:
        value = call.is_value(arg)
        text = (
            f"converted(run, {call.text(arg)}, {code})"
            if value
            else f"filled_with(run, {code}, {call.text(arg)}, {{0}}, 0)"
        )
        parts.append(text)
    return f"chosen(run, {call.text(args[0])}, {', '.join(parts)})"


ELEMENTS: dict[str, Make] = {
    f"aten.{name}.{kind}": _combine(op, scaled=name in ("add", "sub"))
    for name, op in {
        "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "eq": "{} == {}", "ne": "{} != {}",
        "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}", "logical_and": "{} && {}",
        "logical_or": "{} || {}", "bitwise_and": "and_bits({}, {})", "bitwise_or": "or_bits({}, {})",
        "maximum": "{0} != {0} || {0} > {1} ? {0} : {1}", "minimum": "{0} != {0} || {0} < {1} ? {0} : {1}",
    }.items()
    for kind in ("Tensor", "Scalar", "default")
}  # fmt: skip
ELEMENTS |= {
    "aten.clamp.default": _clamp,
    "aten.where.self": _where,
    "aten.masked_fill.Scalar": template("chosen(run, {1}, filled_with(run, {call.code}, {2}, {{0}}, 0), {0})"),
    **{
        f"aten.{name}.default": _of_each(body)
        for name, body in {
            "neg": "-a", "abs": "a < 0 ? -a : a", "relu": "a < 0 ? a - a : a", "reciprocal": "1 / a",
            "exp": "std::exp(a)", "log": "std::log(a)", "sqrt": "std::sqrt(a)", "rsqrt": "1 / std::sqrt(a)",
            "tanh": "std::tanh(a)", "sigmoid": "1 / (1 + std::exp(-a))", "logical_not": "!a",
            "bitwise_not": "not_bits(a)",
        }.items()
    },
    "aten.pow.Tensor_Scalar": _power,
}  # fmt: skip
