"""Descriptions of objects, in words that another process can compare with its own object in the same place.

Within a process, a guard may ask whether a function is the one that was traced, by its address. Another process asks
whether its function has the same name and the same code.
"""

from __future__ import annotations

import enum
import hashlib
from functools import partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_OF_TORCH = (torch.dtype, torch.layout, torch.device, torch.memory_format, torch.Size, torch._C.DispatchKeySet)
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType)
_FIXED = ("torch.", "builtins.", "graphweave.")
"""Prefixes of modules whose classes are those of a version, which keys name; their code is not read again."""


class Unknown(Exception):
    """Why nothing certain can be said about an object to another process."""


class Digests:
    """Words for objects. `code` has all code that the words depend on, by its address."""

    def __init__(self) -> None:
        self.code: dict[int, tuple[CodeType, str]] = {}
        self._classes: dict[type, str] = {}
        self._within: set[int] = set()

    def of(self, value: object) -> str:
        """Words for an object that is the same only if the object does the same. Raises Unknown."""
        found = self._simple(value)
        if found is not None:
            return found
        if isinstance(value, FunctionType):
            return self._of_function(value)
        if isinstance(value, type):
            return self.of_class(value)
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__} {self.of(value.__func__)}"
        if isinstance(value, property):
            return f"property {[self.of(f) for f in (value.fget, value.fset, value.fdel)]}"
        if isinstance(value, MethodType) and isinstance(value.__self__, type):
            return f"method of {self.of_class(value.__self__)} {self.of(value.__func__)}"
        if isinstance(value, tuple | list | frozenset | set):
            parts = [self.of(v) for v in value]
            return f"{type(value).__name__} {parts if isinstance(value, tuple | list) else sorted(parts)}"
        if isinstance(value, dict):
            return f"{self.of_class(type(value))} {[(self.of(k), self.of(v)) for k, v in value.items()]}"
        if isinstance(value, partial):
            return f"partial {self.of(value.func)} {self.of(value.args)} {self.of(value.keywords)}"
        raise Unknown(f"an object of {_name(type(value))}")

    def _simple(self, value: object) -> str | None:
        if type(value) in _PLAIN or isinstance(value, _OF_TORCH):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, CodeType):
            return f"code {self.of_code(value)}"
        if isinstance(value, enum.Enum):
            return f"{self.of_class(type(value))}.{value.name}"
        if isinstance(value, OpOverload | OpOverloadPacket):
            return f"operator {value}"
        if isinstance(value, BuiltinFunctionType | MethodWrapperType):
            return self._of_builtin(value)
        if isinstance(value, _DESCRIPTORS):
            return f"{type(value).__name__} {_name(value.__objclass__)}.{value.__name__}"
        return None

    def _of_builtin(self, value: Any) -> str:
        owner = value.__self__
        if owner is None or isinstance(owner, ModuleType | type):
            whose = owner.__name__ if owner is not None else ""
        elif "pybind11" in type(owner).__module__ or type(owner).__name__ == "PyCapsule":
            whose = ""
        else:
            raise Unknown(f"a method of one object of {_name(type(owner))}")
        return f"builtin {whose}.{value.__module__}.{value.__qualname__}"

    def _of_function(self, function: FunctionType) -> str:
        words = f"function {function.__module__}.{function.__qualname__} {self.of_code(function.__code__)}"
        if id(function) in self._within:
            return words
        self._within.add(id(function))
        try:
            given = self.short(function.__defaults__), self.short(function.__kwdefaults__)
            cells = [self._of_cell(c) for c in function.__closure__ or ()]
        finally:
            self._within.discard(id(function))
        return f"{words} {given} {cells}"

    def _of_cell(self, cell: Any) -> str:
        try:
            return self.short(cell.cell_contents)
        except ValueError:
            return "empty"

    def short(self, value: object) -> str:
        """Words for an object that only says its class where nothing more can be said: what a trace reads of it has
        guards of its own."""
        try:
            return self.of(value)
        except Unknown:
            return f"object of {self.of_class(type(value))}"

    def of_class(self, cls: type) -> str:
        """The name of a class, with the code of its methods and of those of its bases. Classes of PyTorch's and
        Python's own are those of a version, but methods of modules are often patched."""
        found = self._classes.get(cls)
        if found is None:
            self._classes[cls] = f"class {_name(cls)}"  # what a method says of its own class
            parts = [
                self._of_namespace(c) for c in cls.__mro__ if issubclass(c, nn.Module) or not is_fixed(c.__module__)
            ]
            found = self._classes[cls] = f"class {_name(cls)} {_digest(repr(parts)) if parts else ''}"
        return found

    def _of_namespace(self, cls: type) -> list[tuple[str, str]]:
        parts = [(_name(cls), str([_name(b) for b in cls.__bases__]))]
        for name, value in vars(cls).items():
            if isinstance(value, FunctionType | staticmethod | classmethod | property | MethodType):
                parts.append((name, self.short(value)))
            elif type(value) in _PLAIN or (type(value) is tuple and all(type(v) in _PLAIN for v in value)):
                parts.append((name, repr(value)))
            else:
                parts.append((name, type(value).__name__))
        return sorted(parts)

    def of_code(self, code: CodeType) -> str:
        """A digest of all that code does: not of its file and lines, which differ where a library writes code."""
        known = self.code.get(id(code))
        if known is None:
            parts = (
                code.co_name, code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
                code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                code.co_exceptiontable, [self._of_constant(c) for c in code.co_consts],
            )  # fmt: skip
            known = self.code[id(code)] = code, _digest(repr(parts))
        return known[1]

    def _of_constant(self, value: object) -> str:
        if isinstance(value, CodeType):
            return self.of_code(value)
        if isinstance(value, tuple | frozenset):
            parts = [self._of_constant(v) for v in value]
            return f"{type(value).__name__} {parts if isinstance(value, tuple) else sorted(parts)}"
        return f"{type(value).__name__} {value!r}"


def is_fixed(module: str | None) -> bool:
    """Whether code of a module is that of a version that keys name."""
    return f"{module}.".startswith(_FIXED)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
