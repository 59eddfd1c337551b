"""Equations of einsum, for operands that have rows."""

from __future__ import annotations

import string
from collections.abc import Sequence


def terms_of(equation: str) -> tuple[list[str], str]:
    """The letters of each operand, and those of the result, which an equation without an arrow only implies."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        output = "".join(sorted(c for c in set(inputs) if c.isalpha() and inputs.count(c) == 1))
    return inputs.split(","), output


def over_rows(equation: str, of_rows: Sequence[bool], outer: str = "") -> str:
    """The equation for the data: a letter for rows is put in front of the result and of the operands that have rows.

    The letters in `outer` stand for dims that the data does not have, and are left out.
    """
    terms, output = terms_of(equation)
    row = next(c for c in reversed(string.ascii_letters) if c not in equation)
    inner = ["".join([c for c in term if c not in outer]) for term in (*terms, output)]
    *given, result = [row * has + term for has, term in zip((*of_rows, True), inner, strict=True)]
    return f"{','.join(given)}->{result}"
