"""State of PyTorch that belongs to the whole process, left alone by the thread that compiles behind calls.

PyTorch puts random generators back, after a trace, to where they were before it. If a user's thread draws numbers
meanwhile, it would draw them again. And PyTorch refuses calls of compiled functions while any thread traces. A guard
on a shadow is a guard on its module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch._dynamo import guards, trace_rules
from torch._dynamo.variables import builder
from torch.fx import _symbolic_trace

from graphweave.frontends.dynamo.compile_thread import is_at_work, is_this_thread
from graphweave.frontends.dynamo.shadow_modules import module_of, reads

_RESTORED = (
    (torch.random, "set_rng_state"),
    (torch.cuda, "set_rng_state"),
    (torch, "set_default_dtype"),
    (torch, "use_deterministic_algorithms"),
)
"""Functions by which PyTorch puts back state of the process after a trace."""

_installed = False


def leave_process_state_alone() -> None:
    """From now on, `_RESTORED` do nothing in the thread that compiles, and a trace there refuses no call elsewhere."""
    global _installed
    if _installed:
        return
    _installed = True
    rules = trace_rules.get_torch_obj_rule_map()  # PyTorch's tracer knows these functions by identity
    for module, name in _RESTORED:
        original = getattr(module, name)
        setattr(module, name, replaced := _not_in_thread(original))
        if original in rules:
            rules[replaced] = rules[original]
    known: Callable[..., int] = guards.CheckFunctionManager.id_ref
    named: Any = lambda self, value, name: known(self, module_of(value), name)  # noqa: E731
    guards.CheckFunctionManager.id_ref = named  # type: ignore[method-assign]
    wrap: Callable[..., Any] = builder.VariableBuilder._wrap

    def wrap_and_note(self: object, value: object) -> Any:
        if (noted := reads.get()) is not None:
            noted.add(value)
        return wrap(self, value)

    builder.VariableBuilder._wrap = wrap_and_note  # type: ignore[method-assign]
    # by its code, since functions that were compiled before hold the function itself
    is_traced = vars(_symbolic_trace)["is_fx_symbolic_tracing"]
    before = FunctionType(is_traced.__code__, is_traced.__globals__)
    vars(_symbolic_trace)["_graphweave_traces_here"] = lambda: before() and (is_this_thread() or not is_at_work())
    is_traced.__code__ = _asks_here.__code__


def _asks_here() -> bool:
    """The code of `is_fx_symbolic_tracing`, in the module in which PyTorch has it."""
    return bool(_graphweave_traces_here())  # type: ignore[name-defined]  # noqa: F821


def _not_in_thread(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def unless_compiling(*args: object, **kwargs: object) -> object:
        return None if is_this_thread() else original(*args, **kwargs)

    return unless_compiling
