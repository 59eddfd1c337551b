"""The code of scripted modules (TorchScript) as Python functions, which Dynamo can trace.

e3nn, and thus MACE and NequIP, script the products that they generate, and keep nothing but the scripted module.
PyTorch prints its code as text that is nearly Python: `torch.size(x)` and `torch.add(a, b)` are operators of
TorchScript, which take tensors, numbers or lists, and data types are numbers.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

_Function: TypeAlias = Callable[..., Any]

_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
"""The number of a data type in TorchScript -> the data type."""


class NotPython(Exception):
    """Why scripted code cannot be written in Python."""


def python_function(module: torch.jit.ScriptModule, method: str) -> _Function:
    """A method of a scripted module as a Python function of the module and the arguments. Raises NotPython."""
    if method not in module._c._method_names():
        raise NotPython(f"{method} is no scripted method")
    code, constants = module._c._get_method(method).code_with_constants
    return _function_of(code, constants)


def _function_of(code: str, constants: Mapping[str, object]) -> _Function:
    reader = _Reader(constants)
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise NotPython(f"its code is not Python ({error})") from None
    tree = ast.fix_missing_locations(reader.visit(tree))
    scope: dict[str, Any] = {**_BUILTINS, **reader.names}
    # with the name of this file, its frames are not shown as the user's
    exec(compile(tree, __file__, "exec"), scope)
    function: _Function = scope[tree.body[0].name]
    return function


class _Reader(ast.NodeTransformer):
    """Replaces names of TorchScript by names of Python objects, which `names` holds, and leaves out types."""

    def __init__(self, constants: Mapping[str, object]) -> None:
        self.names: dict[str, object] = {}
        self._constants = constants

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        way = _dotted(node)
        if way is None:
            self.generic_visit(node)
            return node
        name = "_".join(way)
        if name not in self.names:
            self.names[name] = self._object(way)
        return ast.Name(name, ast.Load())

    def _object(self, way: Sequence[str]) -> object:
        match way:
            case ("torch", name):
                return _CALLS.get(name) or _operator("aten", name)
            case ("ops", "prim", name) if name in _PRIMITIVES:
                return _PRIMITIVES[name]
            case ("ops", space, name):
                return _operator(space, name)
            case ("CONSTANTS", name) if name in self._constants:
                return self._constants[name]
            case ("__torch__", *path):
                return _called(path)
        raise NotPython(f"{'.'.join(way)} has no counterpart in Python")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        for arg in node.args.args:
            arg.annotation = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.Assign:
        self.generic_visit(node)
        if node.value is None:
            raise NotPython("a variable has no value")
        return ast.Assign([node.target], node.value)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`annotate(type, x)` and `unchecked_cast(type, x)` are `x`."""
        if isinstance(node.func, ast.Name) and node.func.id in ("annotate", "unchecked_cast"):
            visited: ast.AST = self.visit(node.args[1])
            return visited
        if isinstance(node.func, ast.Name) and node.func.id == "uninitialized":
            return ast.Constant(None)
        self.generic_visit(node)
        return node


def _dotted(node: ast.expr) -> tuple[str, ...] | None:
    """The parts of a dotted name that begins at one of TorchScript's own roots."""
    if isinstance(node, ast.Name):
        return (node.id,) if node.id in ("torch", "ops", "CONSTANTS", "__torch__") else None
    before = _dotted(node.value) if isinstance(node, ast.Attribute) else None
    return before and (*before, node.attr)  # type: ignore[attr-defined]


def _called(path: Sequence[str]) -> _Function:
    """A function that scripted code calls. PyTorch's own are those of its Python modules."""
    if path[0] == "torch":
        found: Any = torch
        for name in path[1:]:
            found = found if name.startswith("___torch_mangle_") else getattr(found, name, None)
        if callable(found):
            return found
    function: Any = torch.jit._state._python_cu.find_function(".".join(("__torch__", *path)))
    if function is None:
        raise NotPython(f"the function {path[-1]} was loaded with its module")
    return _function_of(function.code, {})


@functools.cache
def _operator(space: str, name: str) -> _Function:
    """An operator as TorchScript calls it."""
    operators = getattr(torch.ops, space)
    if not hasattr(operators, name):
        raise NotPython(f"PyTorch has no operator {space}::{name}")
    packet = getattr(operators, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    places = frozenset(i for schema in schemas for i, arg in enumerate(schema.arguments) if arg.name == "dtype")
    if not places:
        return packet

    def with_dtypes(*args: object, **kwargs: object) -> object:
        given = [_dtype(arg) if i in places else arg for i, arg in enumerate(args)]
        return packet(*given, **{key: _dtype(arg) if key == "dtype" else arg for key, arg in kwargs.items()})

    return with_dtypes


def _dtype(value: object) -> object:
    return _DTYPES[value] if type(value) is int else value


def _by_kind(name: str, of_numbers: _Function) -> _Function:
    """An operator that is one of Python's where no operand is a tensor."""
    of_tensors = getattr(torch.ops.aten, name)

    def call(*args: object, **kwargs: object) -> object:
        if isinstance(args[0], Tensor) or (len(args) > 1 and isinstance(args[1], Tensor)):
            return of_tensors(*args, **kwargs)
        return of_numbers(*args)

    return call


def _equal(a: object, b: object) -> bool:
    """Numbers of data types are compared with data types."""
    return _dtype(a) == _dtype(b) if isinstance(a, torch.dtype) or isinstance(b, torch.dtype) else a == b


def _unequal(a: object, b: object) -> bool:
    return not _equal(a, b)


def _size(x: Tensor, dim: int | None = None) -> list[int] | int:
    return list(x.size()) if dim is None else x.size(dim)


def _slice(x: Tensor | Sequence[object], *bounds: int | None) -> object:
    """`torch.slice(list, start, end, step)` or `torch.slice(tensor, dim, start, end, step)`, with their defaults."""
    if isinstance(x, Tensor):
        return torch.ops.aten.slice(x, *bounds)
    start, end, step = [*bounds, None, None, None][:3]
    return x[start:end:step]


def _append(items: list[object], item: object) -> list[object]:
    items.append(item)
    return items


def _dim(x: Tensor) -> int:
    return x.dim()


def _format(text: str, *values: object) -> str:
    return text.format(*values)


def _raise(message: str, *_: object) -> None:
    raise RuntimeError(message)


def _attribute(name: str) -> _Function:
    return lambda x: getattr(x, name)


_NUMBERS: dict[str, _Function] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "remainder": operator.mod, "pow": operator.pow, "neg": operator.neg,
    "eq": _equal, "ne": _unequal, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_CALLS: dict[str, _Function] = {
    **{name: _by_kind(name, call) if hasattr(torch.ops.aten, name) else call for name, call in _NUMBERS.items()},
    "size": _size, "slice": _slice, "len": len, "device": torch.device, "append": _append, "dim": _dim,
    "__is__": operator.is_, "__isnot__": operator.is_not, "__not__": operator.not_, "__contains__": operator.contains,
    "__and__": _by_kind("__and__", operator.and_), "__or__": _by_kind("__or__", operator.or_),
    "format": _format,
}  # fmt: skip
"""Operators of TorchScript that take more than tensors."""
_PRIMITIVES: dict[str, _Function] = {
    **{name: _attribute(name) for name in ("dtype", "device", "is_cuda", "requires_grad", "layout")},
    "RaiseException": _raise, "min": min, "max": max,
}  # fmt: skip
_BUILTINS = {"inf": float("inf"), "nan": float("nan")}
