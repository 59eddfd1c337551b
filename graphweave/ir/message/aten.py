"""PyTorch's operators and their names in IR text; arguments of calls as data, and data as arguments."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from graphweave.core.errors import IRError
from graphweave.core.types import DType
from graphweave.ir.message.nodes import Arg, Aten, Atom, Operand, Ref

TORCH_DTYPE: dict[DType, torch.dtype] = {
    DType.f64: torch.float64, DType.f32: torch.float32, DType.f16: torch.float16, DType.bf16: torch.bfloat16,
    DType.i64: torch.int64, DType.i32: torch.int32, DType.i16: torch.int16, DType.i8: torch.int8,
    DType.u8: torch.uint8, DType.bool: torch.bool,
}  # fmt: skip
"""torch's dtype of each element type of the IR."""

DTYPE_OF: dict[torch.dtype, DType] = {t: d for d, t in TORCH_DTYPE.items()}
"""The inverse of `TORCH_DTYPE`. Values of other torch dtypes (complex, quantized) stay outside the algebra."""

_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "eq", "ne", "lt", "le", "gt", "ge",
    "and_", "or_", "xor", "not_", "invert", "lshift", "rshift", "getitem",
)  # fmt: skip
_SYMBOLIC = (
    "sym_int", "sym_float", "sym_max", "sym_min", "sym_not", "sym_ite", "sym_sum", "sym_sqrt", "_sym_sqrt", "_check",
)  # fmt: skip


def _truediv(a: float, b: float) -> float:
    """a / b by the rules of floating-point numbers. b may be 0, as in the variance of no rows."""
    if type(b) in (int, float) and not b:
        return math.copysign(math.inf, a) if a and a == a else math.nan
    return a / b


def _assert_rows(count: int, what: str, whole: bool) -> None:
    """Eager mode's refusal of a reduction over no rows that has no result. It is a RuntimeError if the call names no
    dim."""
    if not count:
        kind = RuntimeError if whole else IndexError
        raise kind(f"{what}: expected rows to reduce over (got none). Leave the call out where there are no rows.")


_BUILTIN: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _OPERATORS},
    **{name: getattr(math, name) for name in ("floor", "ceil", "trunc", "sqrt", "log2")},
    **{name: getattr(builtins, name) for name in ("max", "min", "abs", "round", "int", "float", "bool", "len")},
    **{name: getattr(torch, name) for name in _SYMBOLIC if hasattr(torch, name)},
    "truediv": _truediv,
    "_assert_rows": _assert_rows,
}
_BUILTIN_NAME = {op: name for name, op in _BUILTIN.items()} | {operator.truediv: "truediv"}
_ATOM_TYPES = (torch.dtype, torch.layout, torch.memory_format)


def resolve(target: str) -> Callable[..., Any]:
    """The operator that `target` names; IRError if this version of PyTorch has none of that name."""
    namespace, _, rest = target.partition(".")
    if namespace == "builtin":
        if rest not in _BUILTIN:
            raise IRError(f"{target!r}: expected one of builtin.{', '.join(_BUILTIN)}")
        return _BUILTIN[rest]
    found: Any = getattr(torch.ops, namespace)
    try:
        for name in rest.split("."):
            found = getattr(found, name)
    except AttributeError as missing:
        raise IRError(f"{target!r}: torch {torch.__version__} has no such operator") from missing
    return found


def argument(node: Aten, name: str, default: Arg = None) -> Any:
    """The argument that the schema of a call names `name`. If it was not given, the schema's default, or `default` if
    there is none."""
    given = dict(node.kwargs)
    for position, said in enumerate(resolve(node.target)._schema.arguments):  # type: ignore[attr-defined]
        if said.name == name:
            last = said.default_value if said.has_default_value() else default
            return node.args[position] if position < len(node.args) else given.get(name, last)
    return default


def target_name(op: object) -> str:
    """The name under which `resolve` finds `op`; IRError if programs cannot call `op`."""
    if isinstance(op, torch._ops.OpOverload):
        return str(op)
    if isinstance(op, torch._ops.HigherOrderOperator):
        return f"higher_order.{op.name()}"
    name = _BUILTIN_NAME.get(op) if callable(op) else None
    if name is None:
        raise IRError(f"expected an operator overload of torch.ops or a scalar builtin (got {op!r})")
    return f"builtin.{name}"


def to_arg(value: object, ref_of: Callable[[fx.Node], Ref]) -> Arg:
    """An FX argument as data, with lists as tuples; IRError for a value that the IR cannot hold (a slice, a module)."""
    match value:
        case fx.Node():
            return Operand(ref_of(value))
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return tuple(to_arg(v, ref_of) for v in value)
        case torch.device():
            return Atom(f"device({value})")
        case complex():
            return Atom(f"complex({value.real!r},{value.imag!r})")
        case torch._ops.OpOverload():
            return Atom(f"operator({value})")
        case _ if isinstance(value, _ATOM_TYPES):
            return Atom(str(value))
        case _:
            raise IRError(
                f"expected a number, string, dtype, device, layout, memory format or operator (got {value!r})"
            )


def materialise(arg: Arg, values: Mapping[Ref, object] | Sequence[object]) -> object:
    """`arg` as PyTorch takes it: operands from `values`, atoms as torch objects, tuples as lists (as schemas need)."""
    match arg:
        case Operand(ref):
            return values[ref]
        case Atom(text):
            return torch_value(text)
        case tuple():
            return [materialise(a, values) for a in arg]
        case _:
            return arg


def torch_value(text: str) -> object:
    """The object of torch that an atom names."""
    head, _, inside = text.removesuffix(")").partition("(")
    if head == "device":
        return torch.device(inside)
    if head == "complex":
        real, imag = inside.split(",")
        return complex(float(real), float(imag))
    if head == "operator":
        return resolve(inside)
    found = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(found, _ATOM_TYPES):
        raise IRError(
            f"{text!r}: expected a torch dtype, layout or memory format, device(...), complex(...) or operator(...)"
        )
    return found
