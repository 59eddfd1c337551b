"""The code that a trace went through, by names under which another process finds its own."""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from graphweave.frontends.captures.digests import Digests, Unknown, is_fixed

Named = tuple[str, str]
"""The name of a module, and the dotted name of something in it."""
_MISSING = "nothing"
_OF_A_PROCESS = frozenset({"environ", "getenv", "getpid"})
"""Names by which code asks for what each process has its own."""
_BUILTINS_OF_A_PROCESS = frozenset({"hash", "id"})
"""Builtins whose results each process has its own."""
_OF_VERSIONS = (torch.__path__[0], *sys.modules["graphweave"].__path__)
"""Folders of files whose code is that of a version, which keys name."""


def named_code(traced: Iterable[CodeType], digests: Digests) -> dict[Named, str]:
    """Words for the functions that were traced, and for those that their code may call by global names.

    Code that `digests` has come across counts as named: guards reach it. Raises Unknown for code without a name.
    """
    modules = {getattr(m, "__file__", None): m for m in list(sys.modules.values())}
    found: dict[Named, str] = {}
    for code in {id(c): c for c in traced}.values():
        module = modules.get(code.co_filename)
        if not _of_a_version(code):
            _check_what_it_asks(code)
        if module is not None:
            for name in _called_by(code, module):
                if getattr(_value_of(name), "_dynamo_marked_constant", False):
                    raise Unknown(f"{name[1]}, whose result PyTorch takes for a constant")
                found[name] = _words(name, digests)
        if id(code) in digests.code:
            continue
        own = None if module is None else (module.__name__, code.co_qualname.partition(".<locals>")[0])
        if own is not None and _holds(_value_of(own), code, digests):
            found[own] = _words(own, digests)
        elif not is_fixed(module.__name__ if module is not None else None) and not _of_a_version(code):
            raise Unknown(f"the code of {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) has no name")
    return found


def changed(named: Mapping[Named, str], digests: Digests) -> str | None:
    """The first object that differs in this process; None if all are the same."""
    for name, words in named.items():
        if _words(name, digests) != words:
            return ".".join(name)
    return None


def _check_what_it_asks(code: CodeType) -> None:
    """Raises Unknown for code that may ask for what each process has its own: Dynamo takes the answers for
    constants."""
    if asked := _OF_A_PROCESS.intersection(code.co_names):
        raise Unknown(f"{code.co_qualname} asks for {min(asked)}")
    if _BUILTINS_OF_A_PROCESS.intersection(code.co_names):
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL" and instruction.argval in _BUILTINS_OF_A_PROCESS:
                raise Unknown(f"{code.co_qualname} asks for {instruction.argval}()")


def _of_a_version(code: CodeType) -> bool:
    return code.co_filename.startswith(_OF_VERSIONS)


def _words(name: Named, digests: Digests) -> str:
    try:
        return digests.of(_value_of(name))
    except Unknown as error:
        return str(error)


def _value_of(name: Named) -> object:
    module, path = name
    value: Any = sys.modules.get(module)
    if value is None:
        try:
            value = importlib.import_module(module)
        except ImportError:
            return _MISSING
    for part in path.split("."):
        value = vars(value).get(part, _MISSING) if isinstance(value, type | ModuleType) else _MISSING
    return value


def _holds(value: object, code: CodeType, digests: Digests) -> bool:
    """Whether the words for `value` depend on `code`."""
    try:
        digests.of(value)
    except Unknown:
        return False
    return id(code) in digests.code


def _called_by(code: CodeType, module: ModuleType) -> Iterator[Named]:
    """The functions and classes that code may reach by global names and by attributes of modules."""
    names = _names_in(code)
    for name in names:
        value = vars(module).get(name)
        if isinstance(value, ModuleType):
            yield from _reached(value, names, 0)
        elif isinstance(value, FunctionType | BuiltinFunctionType | type):
            yield module.__name__, name


def _reached(module: ModuleType, names: Iterable[str], depth: int) -> Iterator[Named]:
    for name in names:
        value = vars(module).get(name)
        if isinstance(value, FunctionType | BuiltinFunctionType | type):
            yield module.__name__, name
        elif isinstance(value, ModuleType) and depth < 3:
            yield from _reached(value, names, depth + 1)


def _names_in(code: CodeType) -> set[str]:
    inner = (_names_in(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*inner)
