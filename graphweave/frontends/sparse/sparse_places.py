"""Finds the sparse tensors that a compiled function reaches: in its arguments, modules, closures, globals, and in the
user's own functions that it calls."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from graphweave.core.lines import is_library
from graphweave.frontends.sparse.sparse_arguments import Place, is_sparse, is_without_edges

_MAX_DEPTH = 6
"""Objects are searched to this depth. PyG's HeteroData has a dict of stores, and each store is an object with a
dict."""

_MAX_OBJECTS = 20_000
"""A search of what a function reaches looks at this many objects at most, since a data set may be among them."""

_LEAVES = frozenset({Tensor, nn.Parameter, int, float, bool, str, type(None)})
"""Types that are not searched. Most values have one of them; for PyG's HeteroData with nine stores this saves 10 us a
call."""

_NOT_SEARCHED = (Tensor, nn.Module, type, types.FunctionType, types.MethodType, types.ModuleType)
"""Types whose attributes are not searched in arguments."""


class _Attribute:
    """An attribute of an object, with the interface of a dict that has one key: the variable of a closure's cell, and
    the default values of a function."""

    def __init__(self, holder: object) -> None:
        self.holder = holder

    def __getitem__(self, name: str) -> object:
        return getattr(self.holder, name)

    def __setitem__(self, name: str, value: Tensor) -> None:
        setattr(self.holder, name, value)


class _Positional(_Attribute):
    """The positional arguments that a `functools.partial` holds, which only its state can replace."""

    def __setitem__(self, name: str, value: object) -> None:
        held: Any = self.holder
        held.__setstate__((held.func, value, held.keywords, held.__dict__))


def places_in(objects: Iterator[object] | tuple[object, ...]) -> list[Place]:
    """The places of sparse tensors, and of indices without edges, inside objects among the arguments (a dataclass,
    PyG's Data)."""
    found: list[Place] = []
    for x in objects:
        _search(x, found, _MAX_DEPTH)
    return found


def _search(x: object, found: list[Place], depth: int) -> None:
    if type(x) in _LEAVES or depth < 0:
        return
    if isinstance(x, dict):
        for key, value in x.items():
            if is_sparse(value) or is_without_edges(value):
                found.append((x, key))
            else:
                _search(value, found, depth - 1)
    elif isinstance(x, (list, tuple)):
        for item in x:
            _search(item, found, depth - 1)
    elif hasattr(x, "__dict__") and not isinstance(x, _NOT_SEARCHED):
        _search(x.__dict__, found, depth - 1)


def places_of(target: Callable[..., object]) -> list[Place]:
    """The places of sparse tensors that a function or module reaches: buffers and attributes of modules and other
    objects, closures, and the globals that are named in it or in functions of the user that it calls."""
    reach = _Reach()
    reach.visit(target, _MAX_DEPTH)
    return list(reach.found.values())


class _Reach:
    """A search from a function, depth first, that looks at each object once."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, Any], Place] = {}
        self._seen: dict[int, Any] = {}  # holds the objects, so that their ids stay theirs

    def visit(self, x: object, depth: int) -> None:
        if type(x) in _LEAVES or isinstance(x, Tensor) or depth < 0:
            return
        if id(x) in self._seen or len(self._seen) > _MAX_OBJECTS:
            return
        self._seen[id(x)] = x
        if isinstance(x, nn.Module):
            self._visit_module(x, depth)
        elif isinstance(x, functools.partial):
            self._note("args", x.args, _Positional(x))
            self.visit(x.args, depth)
            self._look(x.keywords, depth)
            self.visit(x.func, depth)
        elif isinstance(x, types.MethodType):
            self.visit(x.__self__, depth)
            self.visit(x.__func__, depth)
        elif isinstance(x, types.FunctionType):
            self._visit_function(x, depth)
        elif isinstance(x, list | tuple | set | frozenset):
            for item in x:
                self.visit(item, depth - 1)
        elif isinstance(x, dict):
            self._look(x, depth - 1)
        elif hasattr(x, "__dict__") and not isinstance(x, type | types.ModuleType):
            self._look(x.__dict__, depth - 1)
            self._visit_class(type(x), depth)

    def _look(self, values: Mapping[str, object], depth: int, container: object = None) -> None:
        """Visit the values of a dict, and note the places of sparse tensors among them."""
        for key, value in list(values.items()):
            if isinstance(key, str) and key[:2] == "__":
                continue
            self._note(key, value, values if container is None else container)
            self.visit(value, depth)

    def _note(self, key: object, value: object, container: object) -> None:
        """Note the place of a value that is sparse, or a list, tuple or dict with sparse tensors."""
        if _holds_sparse(value):
            held_by = container.holder if isinstance(container, _Attribute) else container
            self.found.setdefault((id(held_by), key), (container, key))

    def _visit_module(self, module: nn.Module, depth: int) -> None:
        for part in module.modules():
            if id(part) in self._seen and part is not module:
                continue
            self._seen[id(part)] = part
            self._look(part._buffers, depth - 1)
            own = {k: v for k, v in part.__dict__.items() if k not in _OF_MODULES}
            self._look(own, depth - 1, part.__dict__)
            self._visit_class(type(part), depth)

    def _visit_class(self, cls: type, depth: int) -> None:
        """Visit the methods of the user's own classes."""
        for base in cls.__mro__:
            if not _of_user(getattr(sys.modules.get(base.__module__), "__file__", None) or "<unknown>"):
                continue
            for member in vars(base).values():
                function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if isinstance(function, types.FunctionType):
                    self.visit(function, depth - 1)

    def _visit_function(self, function: types.FunctionType, depth: int) -> None:
        for cell in function.__closure__ or ():
            try:
                self._look({"cell_contents": cell.cell_contents}, depth - 1, _Attribute(cell))
            except ValueError:  # a variable without a value yet
                continue
        if function.__defaults__:
            self._note("__defaults__", function.__defaults__, _Attribute(function))
            self.visit(function.__defaults__, depth)
        if _of_user(function.__code__.co_filename):
            names = set(_names(function.__code__))
            given = function.__globals__
            self._look({name: given[name] for name in names if name in given}, depth - 1, given)
            for module in [given[name] for name in names if isinstance(given.get(name), types.ModuleType)]:
                if _of_user(getattr(module, "__file__", None) or "<built-in>"):
                    own = vars(module)
                    self._look({name: own[name] for name in names if name in own}, depth - 1, own)


_OF_MODULES = frozenset(nn.Module().__dict__)
"""Attributes that every module has: its parameters, buffers, parts and hooks."""


def _of_user(path: str) -> bool:
    return not is_library(path)


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function and the functions inside of it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _holds_sparse(x: object) -> bool:
    if isinstance(x, Tensor):
        return is_sparse(x)
    if isinstance(x, list | tuple):
        return any(_holds_sparse(item) for item in x)
    return type(x) is dict and any(_holds_sparse(item) for item in x.values())
