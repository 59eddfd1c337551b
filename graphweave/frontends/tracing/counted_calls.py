"""Whole numbers that a module changes in its forward, such as `self.step += 1`, become symbols.

PyTorch compiles whole numbers of modules in, since most of them are sizes. A number that grows in each call would be
compiled anew in each call.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import builder

_is_compiled_in: Any = getattr(builder, "is_int_specialization_case", None)
"""PyTorch's function that says whether a whole number from some source is compiled in. None in a version without it."""


@contextmanager
def counts_as_symbols() -> Iterator[None]:
    """Within the block, in which PyTorch traces a function, the numbers that the function changes are symbols."""
    if _is_compiled_in is None:
        yield
        return
    vars(builder)["is_int_specialization_case"] = lambda value, source: (
        _is_compiled_in(value, source) and not _is_changed(source)
    )
    try:
        yield
    finally:
        vars(builder)["is_int_specialization_case"] = _is_compiled_in


def _is_changed(source: Any) -> bool:
    """Whether a function that is being traced assigns the attribute of a module from which a number comes."""
    name, kind = getattr(source, "member", None), source.guard_source
    if name is None or not kind.is_unspecialized_nn_module():
        return False
    translator: Any = InstructionTranslator.current_tx().output.current_tx
    while translator is not None:
        if name in _assigned_by(translator.f_code):
            return True
        translator = translator.parent
    return False


@lru_cache(maxsize=256)
def _assigned_by(code: CodeType) -> frozenset[str]:
    """The attributes that a function assigns."""
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR")
