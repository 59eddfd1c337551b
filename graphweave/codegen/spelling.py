"""Chooses the template of an operator's row (`core/operators.py`) that a printer fills."""

from __future__ import annotations

from graphweave.core.errors import IRError
from graphweave.core.operators import Spelling
from graphweave.core.types import DType, Op


def template(op: Op, language: str, dtype: DType, *spellings: Spelling) -> tuple[str, str]:
    """The template of `op` on operands of `dtype`, from the first of `spellings` that has one, and the name of the
    header that it needs, if any. Raises IRError if none has a template."""
    for spelling in spellings:
        text = spelling.truths if dtype is DType.bool else spelling.integers
        if dtype.is_float:
            text = (spelling.f32 if dtype is DType.f32 else "") or spelling.floats
        if text:
            return text, spelling.header if dtype.is_float or "gw_" in text else ""
    if dtype is DType.bool:
        raise IRError(f"'{op.value}' has no bool form; cast its operand first.")
    if not dtype.is_float:
        raise IRError(f"'{op.value}' has no {dtype.value} form; cast its operand to a float first.")
    raise IRError(f"{language} kernels have no '{op.value}'. The region runs as PyTorch's own calls.")
