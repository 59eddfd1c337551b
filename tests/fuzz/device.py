"""The device on which programs of the fuzzer run. Eager mode, with which they are compared, always runs on the CPU."""

from __future__ import annotations

import ast
from typing import Any

from torch import Tensor

_FACTORIES = frozenset(["arange", "empty", "eye", "full", "linspace", "ones", "tensor", "zeros"])
"""Functions of `torch` that make tensors on the CPU unless they are told otherwise."""

_chosen = "cpu"


def choose(name: str) -> None:
    """Programs of this process run on the device of that name from now on."""
    global _chosen
    _chosen = name


def chosen() -> str:
    return _chosen


def placed(arguments: list[Any]) -> list[Any]:
    """The arguments with their tensors on the device. They share no memory there."""
    return arguments if _chosen == "cpu" else [_moved(value) for value in arguments]


def _moved(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(_chosen).requires_grad_(value.requires_grad)


def on_device(source: str) -> str:
    """The text of a function that makes its own tensors on the device, too."""
    return source if _chosen == "cpu" else ast.unparse(_Placing().visit(ast.parse(source)))


class _Placing(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        of = node.func
        makes = isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name) and of.value.id == "torch"
        if makes and of.attr in _FACTORIES and not any(key.arg == "device" for key in node.keywords):  # type: ignore[attr-defined]
            node.keywords.append(ast.keyword("device", ast.Constant(_chosen)))
        return node
