"""Lets a trace follow formulas where it calls functions that would break the graph or branch on data.

Nothing outside of the trace is changed, so compiled code has guards on the functions themselves, which hold in every
later call. The formulas are in `pyg_formulas.py`, `relation_formulas.py`, `library_formulas.py`,
`frontends/sparse/scatter_functions.py`, `torch_sparse_functions.py` and, for PyTorch's sparse tensors,
`sparse_formulas.py` there.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import TensorVariable, UserDefinedObjectVariable, VariableTracker

from graphweave.frontends.sparse import sparse_formulas
from graphweave.frontends.tracing import library_formulas, pyg_formulas, relation_formulas

_Function = FunctionType | BuiltinFunctionType
_Table = Sequence[tuple[str, str, Callable[..., Any]]]


@dataclass(slots=True)
class Formulas:
    """The formulas of one compilation: for all calls of a function, for its calls from one module, and for those with a
    plain tensor or a matrix of torch_sparse as the first argument."""

    everywhere: dict[_Function, Callable[..., Any]] = field(default_factory=dict)
    in_module: dict[tuple[_Function, str], Callable[..., Any]] = field(default_factory=dict)
    of_tensors: dict[_Function, Callable[..., Any]] = field(default_factory=dict)
    of_matrices: dict[_Function, Callable[..., Any]] = field(default_factory=dict)

    @staticmethod
    def of(*, sparse: bool, ranks: bool, all_keys: bool = False) -> Formulas:
        """The formulas for functions of libraries that are imported; those for PyTorch's sparse matrices only with
        `sparse`, those that do without branches on numbers of rows only with `ranks` or `all_keys`, those for layers
        whose dictionaries have keys that a call does not give only with `all_keys`."""
        here, everywhere = pyg_formulas.IN_MODULE, pyg_formulas.FORMULAS
        if sparse:
            here, everywhere = (*here, *sparse_formulas.IN_MODULE), (*everywhere, *sparse_formulas.FORMULAS)
        if ranks or all_keys:
            everywhere = (*everywhere, *pyg_formulas.WITHOUT_BRANCHES)
        if all_keys:
            everywhere = (*everywhere, *relation_formulas.FORMULAS)
        in_module = {(function, row[0]): row[2] for function, row in _found(here)}
        rest = (everywhere, library_formulas.FORMULAS, library_formulas.OF_MATRICES)
        return Formulas(_by_function(rest[0]), in_module, *map(_by_function, rest[1:]))

    def of_call(
        self, function: object, args: Sequence[Any], translator: InstructionTranslatorBase
    ) -> Callable[..., object] | None:
        """The formula for a call of `function` by the code that `translator` traces; None if there is none. A call in
        the file of the formula means the function itself."""
        if not isinstance(function, _Function):
            return None
        found = self.in_module.get((function, translator.f_globals.get("__name__", "")))
        found = found or self.everywhere.get(function)
        if found is None and args and (function in self.of_tensors or function in self.of_matrices):
            first = args[0].realize()
            known = self.of_tensors if _is_tensor(first) else self.of_matrices if _is_matrix(first) else {}
            found = known.get(function)
        own = found is function or found is None or found.__code__.co_filename == translator.f_code.co_filename
        return None if own else found

    def of_code(self, code: CodeType) -> tuple[Callable[..., object], FunctionType] | None:
        """The formula for the function with this code, and the function, if the formula is for all calls."""
        for function, formula in self.everywhere.items():
            if isinstance(function, FunctionType) and function.__code__ is code:
                return formula, function
        return None


def _by_function(table: _Table) -> dict[_Function, Callable[..., object]]:
    return {function: row[2] for function, row in _found(table)}


def _found(table: _Table) -> Iterator[tuple[_Function, tuple[str, str, Callable[..., object]]]]:
    """The rows of a table whose module is imported, each with its function. Of a scripted function, Dynamo traces the
    Python function from which it was made."""
    for row in table:
        found = functools.reduce(lambda of, part: getattr(of, part, None), row[1].split("."), sys.modules.get(row[0]))
        function = getattr(found, "_torchdynamo_inline", found)
        if isinstance(function, _Function):
            yield function, row


def _is_tensor(x: object) -> bool:
    return isinstance(x, TensorVariable) and x.python_type() is torch.Tensor


def _is_matrix(x: object) -> bool:
    return isinstance(x, UserDefinedObjectVariable) and x.python_type().__module__.startswith("torch_sparse.")


def is_disabled(code: CodeType) -> bool:
    """Whether code is that of a function that calls and frames leave to Python, with all that it calls."""
    found = Formulas.of(sparse=False, ranks=False).of_code(code)
    return found is not None and hasattr(found[0], "_torchdynamo_disable")


@contextmanager
def formulas_followed(formulas: Formulas) -> Iterator[None]:
    """Within the block, in which PyTorch traces a function, its calls follow `formulas`."""
    translator: Any = InstructionTranslatorBase
    call, inline = translator.call_function, translator.inline_user_function_return

    def call_function(self: Any, fn: object, args: Any, kwargs: object) -> None:
        """Any call in the traced code. Functions that are written in C are only seen here."""
        formula = formulas.of_call(getattr(fn, "value", None), args, self)
        call(self, fn if formula is None else VariableTracker.build(self, formula), args, kwargs)

    def inline_user_function_return(self: Any, fn: object, args: Any, kwargs: Any, **named: object) -> VariableTracker:
        """A call of a function that is written in Python, by the traced code or by PyTorch's tracer itself."""
        formula = formulas.of_call(getattr(fn, "fn", None), args, self)
        if formula is None:
            return inline(self, fn, args, kwargs, **named)
        return VariableTracker.build(self, formula).call_function(self, list(args), kwargs)

    translator.call_function, translator.inline_user_function_return = call_function, inline_user_function_return
    try:
        yield
    finally:
        translator.call_function, translator.inline_user_function_return = call, inline
