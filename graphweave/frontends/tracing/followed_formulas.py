"""Lets a trace follow formulas where it calls functions that would break the graph or branch on data.

Nothing outside of the trace is changed, so compiled code has guards on the functions themselves, which hold in every
later call. `pyg_formulas.py` and `sparse_formulas.py` hold the formulas.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import VariableTracker

from graphweave.frontends.sparse import sparse_formulas
from graphweave.frontends.tracing import pyg_formulas

_Function = FunctionType | BuiltinFunctionType


@dataclass(slots=True)
class Formulas:
    """The formulas of one compilation: those for all calls of a function, and those for its calls from one module."""

    everywhere: dict[_Function, Callable[..., Any]] = field(default_factory=dict)
    in_module: dict[tuple[_Function, str], Callable[..., Any]] = field(default_factory=dict)

    @staticmethod
    def of(*, sparse: bool, ranks: bool) -> Formulas:
        """The formulas for functions of libraries that are imported; those for sparse matrices only with `sparse`,
        those that do without branches on numbers of rows only with `ranks`."""
        found = Formulas()
        found._add(pyg_formulas.FORMULAS, pyg_formulas.IN_MODULE)
        if sparse:
            found._add(sparse_formulas.FORMULAS, sparse_formulas.IN_MODULE)
        if ranks:
            found._add(pyg_formulas.ON_RANKS, ())
        return found

    def _add(self, everywhere: Sequence[tuple[str, str, Any]], in_module: Sequence[tuple[str, str, Any]]) -> None:
        for module, name, formula in everywhere:
            if (function := _function(module, name)) is not None:
                self.everywhere[function] = formula
        for module, name, formula in in_module:
            if (function := _function(module, name)) is not None:
                self.in_module[function, module] = formula

    def of_call(self, function: Any, caller: CodeType, scope: dict[str, Any]) -> Callable[..., Any] | None:
        """The formula for a call of `function` by code with the global names `scope`; None if there is none. A call in
        the file of the formula means the function itself."""
        if not isinstance(function, _Function):
            return None
        found = self.in_module.get((function, scope.get("__name__", ""))) or self.everywhere.get(function)
        return None if found is None or found.__code__.co_filename == caller.co_filename else found

    def of_code(self, code: CodeType) -> tuple[Callable[..., Any], FunctionType] | None:
        """The formula for the function with this code, and the function, if the formula is for all calls."""
        for function, formula in self.everywhere.items():
            if isinstance(function, FunctionType) and function.__code__ is code:
                return formula, function
        return None


def _function(module: str, name: str) -> _Function | None:
    """The function with a dotted name in a module; None if the module is not imported or has no such function."""
    found = functools.reduce(lambda of, part: getattr(of, part, None), name.split("."), sys.modules.get(module))
    return found if isinstance(found, _Function) else None


def is_disabled(code: CodeType) -> bool:
    """Whether code is that of a function that calls and frames leave to Python, with all that it calls."""
    found = Formulas.of(sparse=False, ranks=False).of_code(code)
    return found is not None and hasattr(found[0], "_torchdynamo_disable")


@contextmanager
def formulas_followed(formulas: Formulas) -> Iterator[None]:
    """Within the block, in which PyTorch traces a function, its calls follow `formulas`."""
    translator: Any = InstructionTranslatorBase
    call, inline = translator.call_function, translator.inline_user_function_return

    def call_function(self: Any, fn: Any, args: Any, kwargs: Any) -> None:
        """Any call in the traced code. Functions that are written in C are only seen here."""
        formula = formulas.of_call(getattr(fn, "value", None), self.f_code, self.f_globals)
        call(self, fn if formula is None else VariableTracker.build(self, formula), args, kwargs)

    def inline_user_function_return(self: Any, fn: Any, args: Any, kwargs: Any, **named: Any) -> Any:
        """A call of a function that is written in Python, by the traced code or by PyTorch's tracer itself."""
        formula = formulas.of_call(getattr(fn, "fn", None), self.f_code, self.f_globals)
        if formula is None:
            return inline(self, fn, args, kwargs, **named)
        return VariableTracker.build(self, formula).call_function(self, list(args), kwargs)

    translator.call_function, translator.inline_user_function_return = call_function, inline_user_function_return
    try:
        yield
    finally:
        translator.call_function, translator.inline_user_function_return = call, inline
