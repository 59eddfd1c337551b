"""Sizes as expressions: canonical, evaluated, shown and read back; PyTorch's expressions become them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, ToFloat

from graphweave.core.sizes import (
    Applied,
    Opaque,
    Size,
    Symbol,
    as_python,
    floor_div,
    largest,
    leaves,
    modulo,
    number,
    product,
    read,
    read_several,
    show,
    smallest,
    total,
)
from graphweave.frontends.calls.captured_sizes import of_sympy

S, T, U = Symbol("s0"), Symbol("s1"), Symbol("u0")
ATOMS = st.integers(-3, 9) | st.sampled_from([S, T, U])


def _compound(inner: st.SearchStrategy[Size]) -> st.SearchStrategy[Size]:
    several = st.lists(inner, min_size=1, max_size=3)
    divided = st.tuples(inner, st.integers(1, 5))
    return (
        st.builds(lambda f, xs: f(*xs), st.sampled_from([total, product, largest, smallest]), several)
        | st.builds(lambda f, xs: f(*xs), st.sampled_from([floor_div, modulo]), divided)
    )  # fmt: skip


SIZES: st.SearchStrategy[Size] = st.recursive(ATOMS, _compound, max_leaves=8)
NUMBERS = st.fixed_dictionaries({S: st.integers(0, 20), T: st.integers(0, 20), U: st.integers(0, 20)})


@given(SIZES)
@settings(max_examples=200)
def test_sizes_read_back(size: Size) -> None:
    assert read(show(size)) == size


@given(SIZES, NUMBERS)
@settings(max_examples=200)
def test_python_computes_what_a_size_is(size: Size, known: Mapping[Size, int]) -> None:
    names = {s: f"v{i}" for i, s in enumerate(known)}
    scope = {f"v{i}": n for i, n in enumerate(known.values())}
    assert eval(as_python(size, names), scope) == number(size, known)


@given(SIZES, SIZES, SIZES, NUMBERS)
@settings(max_examples=100)
def test_equal_sums_and_products_compare_equal(a: Size, b: Size, c: Size, known: Mapping[Size, int]) -> None:
    assert total(a, b, c) == total(c, total(b, a))
    assert product(2, total(a, b)) == total(product(2, a), product(2, b))
    assert total(a, product(-1, a)) == 0
    assert largest(a, b) == largest(b, a, b)
    x, y = number(a, known), number(b, known)
    assert x is not None and y is not None
    assert number(total(a, b), known) == x + y
    assert number(product(a, b), known) == x * y
    assert number(largest(a, b), known) == max(x, y)
    assert number(smallest(a, b), known) == min(x, y)
    assert number(floor_div(a, 3), known) == x // 3
    assert number(modulo(a, 3), known) == x % 3


@given(st.text())
def test_any_text_reads_to_what_shows_the_same_size(text: str) -> None:
    size = read(text)
    assert read(show(size)) == size


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s0 + s0", "2*s0"), ("u0 + s0", "s0 + u0"), ("1 + s1", "s1 + 1"), ("s0 - 1", "s0 - 1"), 
        ("u0 - s0", "-s0 + u0"), ("2*s0*(s1 + 1)", "2*s0*(s1 + 1)"),
        ("s0*s0", "s0**2"), ("(s0 + 1)**2", "(s0 + 1)**2"), ("s0//2", "(s0//2)"),
        ("(s0 + 1)//2", "((s0 + 1)//2)"), ("Max(s0 - 1, 0)", "Max(0, s0 - 1)"), ("Min(3, s0, 4)", "Min(3, s0)"),
        ("PythonMod(s0, 2)", "Mod(s0, 2)"), ("7", "7"), ("3*4", "12"), ("ToFloat(s0)", "ToFloat(s0)"), ("True", "True"),
        ("s0/2", "s0/2"), ("", ""),
    ],
)  # fmt: skip
def test_sizes_are_shown_in_one_way(text: str, shown: str) -> None:
    assert show(read(text)) == shown


def test_what_is_no_expression_has_no_value() -> None:
    odd = read("ToFloat(s0)")
    assert odd == Opaque("ToFloat(s0)")
    assert number(odd, {S: 3}) is None
    assert number(None, {}) is None
    assert total(odd, 1) == Opaque("ToFloat(s0) + 1")
    assert number(total(S, T), {S: 3}) is None


def test_a_known_part_is_a_leaf() -> None:
    size = largest(0, total(S, U))
    assert list(leaves(size)) == [S, U]
    assert list(leaves(size, {total(S, U): "n"})) == [total(S, U)]
    assert as_python(size, {total(S, U): "n"}) == "max(0, n)"
    assert isinstance(size, Applied)


def test_several_sizes_are_between_commas() -> None:
    assert read_several("2, Max(0, s0), s1 + 1") == (2, largest(0, S), total(T, 1))
    assert read_several("") == ()


def test_expressions_of_pytorch_become_sizes() -> None:
    s, u = sympy.symbols("s0 u0", integer=True, positive=True)
    exprs = [
        s, sympy.Integer(3), s + u, -s + u, 2 * s * u - 3, 2 * (s + 1), u * (s + 1), s**2, FloorDiv(s + 1, 2),
        CleanDiv(s, 2), Max(0, s - 5, u), Min(3, s), Mod(s, 2), ToFloat(s), sympy.Eq(s, 1), s + ToFloat(u),
    ]  # fmt: skip
    for expr in exprs:
        size = of_sympy(expr)
        assert show(size) == str(expr)
        assert read(str(expr)) == size
        assert isinstance(size, Opaque) == any(word in str(expr) for word in ("ToFloat", "Eq"))
