"""Calls of Dynamo's graph, which PyTorch has not yet taken apart: their names and values, and whether they write."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack")
"""The fields in which PyTorch notes where a call comes from."""


def example(arg: object) -> Any:
    """The fake value of a node of Dynamo's graph; any other argument itself."""
    return arg.meta.get("example_value") if isinstance(arg, fx.Node) else arg


def storages(node: object) -> set[int]:
    """The memory of the tensors that a node of Dynamo's graph stands for."""
    values = tree_leaves(example(node)) if isinstance(node, fx.Node) else ()
    return {v.untyped_storage()._cdata for v in values if isinstance(v, Tensor) and v.layout is torch.strided}


def call_name(node: fx.Node) -> str:
    """The name of a method or a function of PyTorch's or Python's that is called, or of an operator with its library;
    empty for others."""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    if isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(node.target).removesuffix(".default").removeprefix("aten.")
    module, name = str(getattr(node.target, "__module__", None) or ""), getattr(node.target, "__name__", "")
    if module == "_operator":
        return name.strip("_")  # `and_`
    return name if module.split(".")[0] in ("", "torch") else ""


def writes(node: fx.Node) -> bool:
    """Whether a call writes to its first operand."""
    name = call_name(node)
    if node.target in _WRITING or "out" in node.kwargs:
        return True
    return (name.endswith("_") and not name.endswith("__")) or _asks_in_place(node)


def _asks_in_place(node: fx.Node) -> bool:
    """Whether one of PyTorch's functions, such as `relu`, is asked to write its result to its operand."""
    code = getattr(node.target, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    asked = dict(zip(names, node.args, strict=False)) | node.kwargs
    return bool(asked.get("inplace", False))


_WRITING = frozenset({
    operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ior, operator.iand,
    operator.ixor, operator.ifloordiv, operator.imod, operator.ipow, operator.imatmul,
})  # fmt: skip
