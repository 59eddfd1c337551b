"""Sizes as expressions: numbers, symbols, and functions of sizes. Row counts and dims of tensors are sizes.

A size is canonical: sums and products are flat, ordered and without like terms, numbers are folded. Sizes that are
equal by these rules therefore compare equal. Build a size with the functions of this file, never with `Applied` itself.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeAlias, TypeVar


class SizeOp(Enum):
    """A function in a size; the value of each member is its name in text, where it is written as a call."""

    sum = "sum"
    product = "product"
    floor_div = "floor_div"
    modulo = "Mod"
    largest = "Max"
    smallest = "Min"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may differ from call to call, by PyTorch's name for it: "s77", or "u0" where data decides it."""

    name: str


@dataclass(frozen=True, slots=True)
class Applied:
    """A function of sizes."""

    op: SizeOp
    args: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """An expression of any other form, such as "ToFloat(s0)"; equal only to the same text."""

    text: str


Size: TypeAlias = "int | Symbol | Applied | Opaque"
_T = TypeVar("_T")

_MAX_POWER = 16
"""Largest exponent that `read` takes as a repeated product."""


# ---------------------------------------------------------------- building


def total(*sizes: Size) -> Size:
    """The sum of `sizes`."""
    terms: Counter[tuple[Size, ...]] = Counter()  # the factors of each term, and its coefficient
    for size in sizes:
        for term in _args(SizeOp.sum, size):
            factors = _args(SizeOp.product, term)
            coefficient = factors[0] if isinstance(factors[0], int) else 1
            terms[tuple(f for f in factors if not isinstance(f, int))] += coefficient
    constant = terms.pop((), 0)
    made = [(show(_product(1, f)), _product(n, f)) for f, n in terms.items() if n]
    ordered = tuple(term for _, term in sorted(made, key=lambda pair: pair[0]))
    args = (*ordered, constant) if constant or not ordered else ordered
    return args[0] if len(args) == 1 else _applied(SizeOp.sum, args)


def product(*sizes: Size) -> Size:
    """The product of `sizes`. A number times a sum is the sum of its multiples."""
    factors = [f for size in sizes for f in _args(SizeOp.product, size)]
    number = math.prod(f for f in factors if isinstance(f, int))
    rest = tuple(sorted((f for f in factors if not isinstance(f, int)), key=_order))
    if len(rest) == 1 and number != 1 and len(terms := _args(SizeOp.sum, rest[0])) > 1:
        return total(*(product(number, t) for t in terms))
    return _product(number, rest)


def floor_div(a: Size, b: Size) -> Size:
    """a // b."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return a // b
    return a if b == 1 else _applied(SizeOp.floor_div, (a, b))


def modulo(a: Size, b: Size) -> Size:
    """The remainder of a / b, with the sign of b."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return a % b
    return 0 if b == 1 else _applied(SizeOp.modulo, (a, b))


def largest(*sizes: Size) -> Size:
    return _extreme(SizeOp.largest, max, sizes)


def smallest(*sizes: Size) -> Size:
    return _extreme(SizeOp.smallest, min, sizes)


BUILD: dict[SizeOp, Callable[..., Size]] = {
    SizeOp.sum: total, SizeOp.product: product, SizeOp.floor_div: floor_div, SizeOp.modulo: modulo,
    SizeOp.largest: largest, SizeOp.smallest: smallest,
}  # fmt: skip


def _args(op: SizeOp, size: Size) -> tuple[Size, ...]:
    return size.args if isinstance(size, Applied) and size.op is op else (size,)


def _product(number: int, factors: tuple[Size, ...]) -> Size:
    if not factors or not number:
        return number
    args = factors if number == 1 else (number, *factors)
    return args[0] if len(args) == 1 else _applied(SizeOp.product, args)


def _extreme(op: SizeOp, pick: Callable[[list[int]], int], sizes: tuple[Size, ...]) -> Size:
    parts = dict.fromkeys(a for size in sizes for a in _args(op, size))
    numbers = [p for p in parts if isinstance(p, int)]
    rest = sorted((p for p in parts if not isinstance(p, int)), key=_order)
    args = (pick(numbers), *rest) if numbers else tuple(rest)
    return args[0] if len(args) == 1 else _applied(op, args)


def _applied(op: SizeOp, args: tuple[Size, ...]) -> Size:
    size = Applied(op, args)
    return Opaque(show(size)) if any(isinstance(a, Opaque) for a in args) else size


def _order(size: Size) -> tuple[bool, str]:
    return not isinstance(size, Symbol), show(size)


# ---------------------------------------------------------------- asking


def leaves(size: Size | None, known: Container[Size] = ()) -> Iterator[Size]:
    """The parts from which `size` is computed: those that are `known`, and symbols and opaque texts outside of them."""
    if size in known or isinstance(size, Symbol | Opaque):
        assert size is not None
        yield size
    elif isinstance(size, Applied):
        for arg in size.args:
            yield from leaves(arg, known)


def evaluated(
    size: Size | None, known: Mapping[Size, _T], functions: Mapping[SizeOp, Callable[..., _T | int]]
) -> _T | int | None:
    """The value of `size`, from the values of its `known` parts and a callable for each function; None if a part is
    unknown."""
    if size is not None and size in known:
        return known[size]
    if isinstance(size, Applied):
        args = [evaluated(a, known, functions) for a in size.args]
        return None if any(a is None for a in args) else functions[size.op](*args)
    return size if isinstance(size, int) else None


def number(size: Size | None, known: Mapping[Size, int]) -> int | None:
    """The value of `size` as a number; None if a part is unknown."""
    value = evaluated(size, dict[Size, Size](known), BUILD)
    return value if isinstance(value, int) else None


# ---------------------------------------------------------------- text


def show(size: Size) -> str:
    """`size` as PyTorch prints it: "2*s0 + 1", "Max(0, s0 - 1)"."""
    return _text(size, {}, python=False)


def as_python(size: Size, names: Mapping[Size, str]) -> str:
    """The Python expression that computes `size`; `names` are expressions of its `leaves`."""
    return _text(size, names, python=True)


def _text(size: Size, names: Mapping[Size, str], *, python: bool) -> str:
    def text(part: Size) -> str:
        return _text(part, names, python=python)

    def factor(part: Size) -> str:
        compound = isinstance(part, Applied) and part.op in (SizeOp.sum, SizeOp.product)
        bare = part in names or not (compound or isinstance(part, Opaque) or (isinstance(part, int) and part < 0))
        return text(part) if bare else f"({text(part)})"

    def factors(parts: Iterable[Size]) -> str:
        powers = Counter(map(factor, parts))
        return "*".join(f if n == 1 else f"{f}**{n}" for f, n in powers.items())

    if size in names:
        return names[size]
    match size:
        case int():
            return str(size)
        case Symbol(name) | Opaque(name):
            return name
        case Applied(SizeOp.sum, args):
            return "".join([text(args[0]), *map(_signed, map(text, args[1:]))])
        case Applied(SizeOp.product, (int(n), *rest)):
            return f"{'-' if n == -1 else f'{n}*'}{factors(rest)}"
        case Applied(SizeOp.product, args):
            return factors(args)
        case Applied(SizeOp.floor_div, (a, b)):
            return f"({factor(a)}//{factor(b)})"
        case Applied(SizeOp.modulo, (a, b)) if python:
            return f"({factor(a)}%{factor(b)})"
        case Applied(op, args):
            name = {SizeOp.largest: "max", SizeOp.smallest: "min"}[op] if python else op.value
            return f"{name}({', '.join(map(text, args))})"
    raise AssertionError(f"unknown size {size!r}")


def _signed(term: str) -> str:
    return f" - {term[1:]}" if term.startswith("-") else f" + {term}"


_CALLS: dict[str, Callable[..., Size]] = {"Max": largest, "Min": smallest, "Mod": modulo, "PythonMod": modulo}
_BINARY: dict[type[ast.operator], Callable[..., Size]] = {
    ast.Add: total, ast.Mult: product, ast.FloorDiv: floor_div, ast.Mod: modulo,
    ast.Sub: lambda a, b: total(a, product(-1, b)),
}  # fmt: skip


def read(text: str) -> Size:
    """The size that `text` shows; Opaque if it is no expression of sizes."""
    try:
        size = _read(ast.parse(text, mode="eval").body) if re.fullmatch(r"[\w +\-*/%(),]+", text, re.ASCII) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        size = None
    return Opaque(text) if size is None else size


def _read(node: ast.expr) -> Size | None:
    function: Callable[..., Size]
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return Symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=x):
            function, parts = partial(product, -1), [x]
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(n))) if 0 < n <= _MAX_POWER:
            function, parts = BUILD[SizeOp.product], [left] * n
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            function, parts = _BINARY[type(op)], [left, right]
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as parts, keywords=[]) if name in _CALLS:
            function = _CALLS[name]
            if function is modulo and len(parts) != 2:
                return None
        case _:
            return None
    sizes = [_read(part) for part in parts]
    return None if any(s is None for s in sizes) else function(*sizes)


def read_several(text: str) -> tuple[Size, ...]:
    """The sizes of a list whose items are separated by commas."""
    return tuple(map(read, split(text)))


def split(text: str) -> list[str]:
    """The items of a list, split at the commas that stand in no brackets; without blanks at their ends."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip(" ") for p in parts] if text.strip(" ") else []
