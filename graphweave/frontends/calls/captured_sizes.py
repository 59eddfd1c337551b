"""Sizes of captured tensors: plain numbers, symbols known before a call, and symbols only known during one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from sympy import Expr, Symbol
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.fx.node import Argument

from graphweave.core import sizes

Size: TypeAlias = "int | torch.SymInt"


def fixed(size: Size) -> int | None:
    """The number that `size` is in every call of the graph; None if it varies. Adds no guard."""
    if isinstance(size, torch.SymInt):
        expr = size.node.expr
        if expr.is_number:
            return int(expr)
        # Under `backed_size_oblivious`, PyTorch keeps a symbol that a guard has fixed to 0 or 1 as a symbol.
        value = hint(size)
        return value if value in (0, 1) and statically_known_true(size == value) else None
    return int(size)


def same(a: Size, b: Size) -> bool:
    """Whether the two sizes are provably equal in every call. Adds no guard."""
    m, n = fixed(a), fixed(b)
    if m is not None and n is not None:
        return m == n
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.expr == b.node.expr:
        return True
    return statically_known_true(a == b)


def same_by_guard(a: Size, b: Size) -> bool:
    """Like `same`, but two sizes that are known before a call and equal in this one are made equal by a guard."""
    if same(a, b):
        return True
    if unbacked(a) or unbacked(b) or fixed(a) is not None or fixed(b) is not None or hint(a) != hint(b):
        return False
    return bool(a == b)


def hint(size: Size) -> int | None:
    """The size in the call that is being captured; None if data decides it.

    It is computed from the expression, since PyTorch keeps no hint for a size that data first decided and that was
    later found equal to one known before the call (`bincount(i, minlength=n)` times n rows).
    """
    if not isinstance(size, torch.SymInt):
        return size
    env = size.node.shape_env
    known = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val  # the name before torch 2.11
    number = size.node.expr.xreplace(known)
    return int(number) if number.is_number else None


def unbacked(value: object) -> frozenset[Symbol]:
    """The symbols in `value` (tensor, size, or list of them) that no guard can use, since data decides them."""
    if isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
        return frozenset(free_unbacked_symbols(value))
    if isinstance(value, list | tuple):
        return frozenset(s for v in value for s in unbacked(v))
    return frozenset()


def symbols(size: Size) -> frozenset[Symbol]:
    """Every symbol in the expression of `size`."""
    return frozenset(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else frozenset()


def text(size: Size) -> str:
    """`size` as torch prints it: "s77 + u0", "50"."""
    return str(size.node.expr) if isinstance(size, torch.SymInt) else str(size)


def expression(value: Size | torch.SymFloat | torch.SymBool) -> sizes.Size:
    """A size, or another symbolic number, in the form that programs hold."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return of_sympy(value.node.expr)
    return int(value)


def of_sympy(expr: Expr) -> sizes.Size:
    """An expression of PyTorch's as a size."""
    found = _converted(expr)
    return sizes.Opaque(str(expr)) if found is None else found


def _converted(expr: Expr) -> sizes.Size | None:
    """A sympy expression as a size; None if it has a function that sizes do not have."""
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return sizes.Symbol(expr.name)
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        base = _converted(expr.base)
        return None if base is None else sizes.product(*[base] * int(expr.exp))
    function = _FUNCTIONS.get(type(expr).__name__)
    if function is None:
        return None
    args = [_converted(a) for a in expr.args]
    return None if any(a is None for a in args) else function(*args)


_FUNCTIONS: dict[str, Callable[..., sizes.Size]] = {
    "Add": sizes.total, "Mul": sizes.product, "Max": sizes.largest, "Min": sizes.smallest,
    "FloorDiv": sizes.floor_div, "CleanDiv": sizes.floor_div, "Mod": sizes.modulo, "PythonMod": sizes.modulo,
}  # fmt: skip
"""Functions in PyTorch's expressions of sizes, by the names of their sympy classes."""


def val(arg: object) -> Any:
    """The fake value of an FX node; any other argument itself."""
    return arg.meta.get("val") if isinstance(arg, fx.Node) else arg


def is_tensor(arg: object) -> bool:
    """Whether `arg` is an FX node whose value is one tensor."""
    return isinstance(val(arg), torch.Tensor)


def shape(arg: fx.Node) -> tuple[Size, ...]:
    """The sizes of a tensor node."""
    return tuple(val(arg).shape)


def rank(arg: fx.Node) -> int:
    return val(arg).dim()


def dim_of(dim: int, ndim: int) -> int:
    """`dim` counted from the front."""
    return dim + ndim if dim < 0 else dim


def argument(node: fx.Node, name: str, default: object = None) -> Any:
    """The argument that an ATen call's schema calls `name`, given by position or keyword.

    If it was not given, the default of the schema is returned, or `default` if the schema has none.
    """
    if name in node.kwargs:
        return node.kwargs[name]
    for position, a in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if a.name == name:
            if position < len(node.args) and not a.kwarg_only:
                return node.args[position]
            return a.default_value if a.has_default_value() else default
    return default


def changed_arguments(node: fx.Node, new: Mapping[str, Argument]) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
    """The arguments of an ATen call, by position and by keyword, some of them replaced by their name in the schema."""
    args, kwargs = list(node.args), dict(node.kwargs)
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    for name, value in new.items():
        at = names.index(name)
        if at < len(args):
            args[at] = value
        else:
            kwargs[name] = value
    return tuple(args), kwargs
