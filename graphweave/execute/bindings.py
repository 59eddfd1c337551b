"""PyTorch's own Python functions in place of the operators of `torch.ops`, which take one to two microseconds longer.

`torch.mul` is several operators, and chooses by its arguments. So the operators of a program are called through a
Python function only where it is seen to reach the same operator with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_OWNERS: tuple[Any, ...] = (torch._C._VariableFunctions, torch._C.TensorBase, torch._C._nn)
"""Where PyTorch keeps its Python functions: those of `torch`, the methods of tensors, `torch.nn.functional`."""

_known: dict[Hashable, Callable[..., object]] = {}
"""An operator and the kinds of its arguments -> what calls it."""


def call_of(target: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> Callable[..., object]:
    """The fastest function that calls the operator `target` with arguments of these kinds. Nothing is computed."""
    key = target, _kind(args), tuple((name, _kind(value)) for name, value in kwargs.items())
    found = _known.get(key)
    if found is None:
        wanted = _operator_reached_by(target, args, kwargs)
        same = (f for f in _candidates(target) if _are_same(_operator_reached_by(f, args, kwargs), wanted))
        known = wanted is not None and (wanted[0] is target or _is_alone(target))
        found = _known[key] = next(same, target) if known else target
    return found


def _is_alone(target: OpOverload) -> bool:
    """Whether a function of this name can mean no other operator. Then it need not reach the operator itself, which
    may be made of others."""
    others = (getattr(target.overloadpacket, name) for name in target.overloadpacket.overloads())
    return all(other is target or "out" in {a.name for a in other._schema.arguments} for other in others)


def _candidates(target: OpOverload) -> Iterator[Callable[..., object]]:
    namespace, name = target._schema.name.split("::")
    for owner in _OWNERS if namespace == "aten" else ():
        if (found := getattr(owner, name, None)) is not None:
            yield found


def _kind(value: object) -> object:
    """The properties by which PyTorch chooses an operator: the types of arguments, and whether a tensor could be a
    number."""
    if isinstance(value, Tensor):
        return Tensor, value.dim() == 0
    return (type(value), *map(_kind, value)) if isinstance(value, list | tuple) else type(value)


class _Reached(Exception):
    """The operator that a call reaches, and its arguments."""


class _Stop(TorchDispatchMode):
    """Ends a call at the first operator that it reaches, before it is run."""

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        raise _Reached(func, tuple(args), dict(kwargs or {}))


def _operator_reached_by(
    function: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]
) -> tuple[object, ...] | None:
    """The operator, its arguments and named arguments; None if the call reaches none."""
    try:
        with _Stop():
            function(*args, **kwargs)
    except _Reached as reached:
        return reached.args
    except (TypeError, RuntimeError, ValueError, IndexError):  # not a call that this function takes
        return None
    return None


def _are_same(a: object, b: object) -> bool:
    """Whether two values are the same tensors, and otherwise equal and of one type."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_are_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_are_same(a[key], b[key]) for key in a)
    return a is b or (type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b))
