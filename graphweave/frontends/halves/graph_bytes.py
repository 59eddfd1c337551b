"""A captured graph of ATen calls as bytes, and back: operators by their names, and of values only which are tensors."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.node import map_arg

from graphweave.ir.message.aten import resolve


@dataclass(frozen=True, slots=True)
class _At:
    """A node, by its position."""

    position: int


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> str | None:
        if isinstance(value, OpOverload):
            return str(value)
        if isinstance(value, HigherOrderOperator | fx.GraphModule | torch.SymInt):
            raise pickle.PicklingError(f"a {type(value).__name__} of a captured graph has no bytes")
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: str) -> object:
        return resolve(name)


def dumped(module: fx.GraphModule) -> bytes:
    """A graph whose nodes are calls of operators and functions with a name; `meta["captured"]` is the operator in place
    of which a node calls another function. Another graph raises PicklingError, or what else pickle raises for an object
    without bytes."""
    at = {node: _At(i) for i, node in enumerate(module.graph.nodes)}
    nodes, constants = [], {}
    for node in module.graph.nodes:
        args, kwargs = map_arg((node.args, dict(node.kwargs)), at.__getitem__)  # type: ignore[arg-type]
        target = node.meta.get("captured", node.target)
        nodes.append((node.op, node.name, target, args, kwargs, isinstance(node.meta.get("val"), Tensor)))
        if node.op == "get_attr":
            constants[str(node.target)] = reduce(getattr, str(node.target).split("."), module)
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((nodes, constants))
    return file.getvalue()


def loaded(content: bytes) -> fx.GraphModule:
    """The graph that was `dumped`. Its tensors have an empty one in place of their fake."""
    nodes, constants = _Unpickler(io.BytesIO(content)).load()
    graph, made, fake = fx.Graph(), list[fx.Node](), torch.empty(0)
    for op, name, target, args, kwargs, is_tensor in nodes:
        args, kwargs = _placed((args, kwargs), made)
        node = graph.create_node(op, target, args, kwargs, name=name)
        node.meta["val"] = fake if is_tensor else None
        made.append(node)
    return fx.GraphModule(constants, graph)


def _placed(value: object, made: list[fx.Node]) -> Any:
    match value:
        case _At(position):
            return made[position]
        case list():
            return [_placed(v, made) for v in value]
        case tuple():
            return tuple(_placed(v, made) for v in value)
        case dict():
            return {k: _placed(v, made) for k, v in value.items()}
        case slice():
            return slice(*_placed((value.start, value.stop, value.step), made))
        case _:
            return value
