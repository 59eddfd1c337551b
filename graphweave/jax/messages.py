"""Functions of one edge in jax.numpy: DGL's built-ins by name, and functions of one's own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp

from graphweave.core.errors import DataError

Features: TypeAlias = Any
"""Data of sources, destinations or edges: an array [rows, ...], or a dict of several by name, or None."""

EdgeFunction: TypeAlias = Callable[[Any, Any, Any], Any]
"""f(src, dst, edge): each an array [edges, ...] or a dict of them, as they were given -> [edges, ...]."""

_ARGUMENT = {"u": "src", "v": "dst", "e": "edge"}


def _dot(x: Any, y: Any) -> Any:
    """Two arrays [edges, ..., F] -> [edges, ..., 1]. Of one number a row, two arrays [edges] -> [edges]."""
    return x * y if x.ndim == 1 else (x * y).sum(-1, keepdims=True)


_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "dot": _dot,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """The operation `op` of the features of `targets`, "u", "v" or "e"; their dims broadcast from the right, behind dim
    0. A copy has one target and the operation ""."""

    name: str
    targets: tuple[str, ...]
    op: str = ""

    def __call__(self, src: Any, dst: Any, edge: Any) -> Any:
        data = {"u": src, "v": dst, "e": edge}
        x, *others = (_single(data[t]) for t in self.targets)
        if not others:
            return x
        rank = max(x.ndim, others[0].ndim)
        x, y = (a.reshape(a.shape[0], *[1] * (rank - a.ndim), *a.shape[1:]) for a in (x, others[0]))
        if self.op == "dot" and x.shape[1:][-1:] != y.shape[1:][-1:]:
            raise DataError(
                f"{self.name}: the fields must have the same size in their last dim (got {list(x.shape[1:])} and "
                f"{list(y.shape[1:])} a row). Use {self.name.replace('dot', 'mul')} to multiply by one number a row."
            )
        return _OPS[self.op](x, y)


_COPIES = {f"copy_{t}": NamedMessage(f"copy_{t}", (t,)) for t in _ARGUMENT}
BUILT_IN: dict[str, NamedMessage] = _COPIES | {
    f"{a}_{op}_{b}": NamedMessage(f"{a}_{op}_{b}", (a, b), op)
    for op in _OPS for a in _ARGUMENT for b in _ARGUMENT if a != b
}  # fmt: skip
"""DGL's built-in messages, `u_mul_e` and the like: u is `src`, v `dst`, e `edge`."""

SPMM = {**BUILT_IN, "copy_lhs": _COPIES["copy_u"], "copy_rhs": _COPIES["copy_e"]}
SDDMM = {**BUILT_IN, "copy_lhs": _COPIES["copy_u"], "copy_rhs": _COPIES["copy_v"]}
"""Messages by the names of DGL's `gspmm`, with operands u and e, and `gsddmm`, with operands u and v."""


def edge_function(
    what: str, given: Any, named: Mapping[str, NamedMessage], src: Features, dst: Features, edge: Features
) -> EdgeFunction:
    """The function that the argument `what` stands for. DataError for an unknown name, and where a built-in lacks its
    operands."""
    if isinstance(given, str):
        if given not in named:
            raise DataError(
                f"{what} must be a function of (src, dst, edge) or one of {', '.join(named)} (got {given!r})."
                " Pass one of these."
            )
        data = {"u": src, "v": dst, "e": edge}
        for target in named[given].targets:
            _check_single(f"{what} {given!r}", _ARGUMENT[target], data[target])
        return named[given]
    if not callable(given):
        raise DataError(
            f"{what} must be a function of (src, dst, edge) or the name of one (got {type(given).__name__})."
            " Pass one of these."
        )
    return given


def fields_of(x: Features) -> Sequence[tuple[str, Any]]:
    """The arrays of `x`, each with what follows the argument's name in errors: "" or "['h']"."""
    if x is None:
        return []
    if isinstance(x, Mapping):
        return [(f"[{name!r}]", x[name]) for name in sorted(x)]
    return [("", x)]


def with_fields(x: Features, fields: Sequence[Any]) -> Features:
    """`x` with other arrays in place of its own, in the order of `fields_of`."""
    if x is None:
        return None
    if isinstance(x, Mapping):
        return dict(zip(sorted(x), fields, strict=True))
    return fields[0]


def _single(x: Features) -> Any:
    return next(iter(x.values())) if isinstance(x, Mapping) else jnp.asarray(x)


def _check_single(what: str, argument: str, x: Features) -> None:
    found = len(fields_of(x))
    if found != 1:
        got = "none" if found == 0 else f"{found} in a dict"
        raise DataError(f"{what} reads one array of {argument} (got {got}). Pass {argument}=array.")
