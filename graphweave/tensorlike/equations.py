"""Equations of einsum."""

from __future__ import annotations


def terms_of(equation: str) -> tuple[list[str], str]:
    """The letters of each operand, and those of the result, which an equation without an arrow leaves unsaid."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        output = "".join(sorted(c for c in set(inputs) if c.isalpha() and inputs.count(c) == 1))
    return inputs.split(","), output
