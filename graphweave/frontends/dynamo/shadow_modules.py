"""Modules that a thread traces while another one calls and changes them.

A user calls `model.train()` and `model.eval()` while the model is traced. A trace that reads `training` before and
after such a change would be wrong, and its guards, which PyTorch makes at the end, would say that it is right. So the
thread traces a shadow: an object for each module, with the attributes that the module had when the call was made, and
with the same parameters and buffers. Guards that ask for an object itself ask for the module, not for its shadow.

Modules that a function finds in its closure or in global variables have no shadows. A trace of such a function counts
only if nobody wrote to any of them meanwhile.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

_shadowed: ContextVar[dict[int, Any]] = ContextVar("_shadowed", default={})  # noqa: B039  # never changed
"""Number (`id`) of each shadow -> its module, in the thread that traces."""


class Shadows:
    """The shadows of a module and of the modules in it."""

    def __init__(self, target: Any) -> None:
        owner = getattr(target, "__self__", target)  # the owner of a bound method
        self._of: dict[int, Any] = {}  # number of a module -> its shadow
        self._modules: dict[int, Any] = {}  # number of a shadow -> its module
        if isinstance(owner, torch.nn.Module):
            self._make(owner)
        if owner is not target and id(owner) in self._of:
            self._of[id(target)] = target.__func__.__get__(self._of[id(owner)])
            self._modules[id(self._of[id(target)])] = target

    def __bool__(self) -> bool:
        return bool(self._of)

    def of(self, value: object) -> Any:
        """The shadow of a module, a cell with the shadow for a cell with the module, anything else itself."""
        if isinstance(value, CellType):
            try:
                held = value.cell_contents
            except ValueError:
                return value
            return CellType(self._of[id(held)]) if id(held) in self._of else value
        return self._of.get(id(value), value)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Within the block, guards on shadows are guards on their modules."""
        token = _shadowed.set(self._modules)
        try:
            yield
        finally:
            _shadowed.reset(token)

    def _make(self, module: torch.nn.Module) -> object:
        if id(module) in self._of:
            return self._of[id(module)]
        shadow = object.__new__(type(module))
        self._of[id(module)], self._modules[id(shadow)] = shadow, module
        own = dict(module.__dict__)
        own["_modules"] = {name: None if m is None else self._make(m) for name, m in module._modules.items()}
        object.__setattr__(shadow, "__dict__", own)
        return shadow


class Writes:
    """Whether another thread wrote to a module while a block ran."""

    def __init__(self) -> None:
        self.seen = False


@contextmanager
def watched() -> Iterator[Writes]:
    """Within the block, writes to attributes of modules by other threads are noticed. One block at a time."""
    writes, tracing = Writes(), threading.get_ident()
    original = torch.nn.Module.__setattr__

    def noticed(self: torch.nn.Module, name: str, value: Tensor | torch.nn.Module) -> None:
        if threading.get_ident() != tracing and self.__dict__.get(name) is not value:
            writes.seen = True
        original(self, name, value)

    torch.nn.Module.__setattr__ = noticed  # type: ignore[method-assign]
    try:
        yield writes
    finally:
        torch.nn.Module.__setattr__ = original  # type: ignore[method-assign]


class Reads:
    """The lists, dicts and attributes that a trace has read, as they were then."""

    def __init__(self) -> None:
        self._seen: list[tuple[Any, Any]] = []

    def add(self, value: object) -> None:
        """Remember the contents of `value`, which the trace is about to read."""
        held = _contents(value)
        if held is not None:
            self._seen.append((value, held))

    def are_current(self) -> bool:
        """Whether nothing that was read has changed since."""
        return all(_same(_contents(value), held) for value, held in self._seen)


reads: ContextVar[Reads | None] = ContextVar("reads", default=None)
"""The values that the trace of the thread has read; None in other threads."""


def _contents(value: object) -> object:
    """A copy of what may change in a value: items of a container, attributes of an object; None for other values."""
    if isinstance(value, list | dict | set):
        return dict(value) if isinstance(value, dict) else list(value)
    if isinstance(value, torch.Tensor | torch.nn.Module | type | ModuleType | FunctionType):
        return None
    held = getattr(value, "__dict__", None)
    return dict(held) if isinstance(held, dict) else None


def _same(a: Any, b: Any) -> bool:
    """Whether two copies have the same objects in them."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(a[key] is b[key] for key in a)
    return len(a) == len(b) and all(map(operator.is_, a, b))


def module_of(value: object) -> object:
    """The module of a shadow, in a block of `Shadows.traced`; anything else itself."""
    return _shadowed.get().get(id(value), value)
