"""A text that says all of a graph that Dynamo captured: what a compilation of it is kept under on disk.

Two graphs with one text compile to the same. What cannot be written with certainty (functions of the user's, objects
without a value, operators of other libraries) raises `Unkeyed`, and the graph is compiled as if there were no store.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor

from graphweave.core.lines import location

_NAMESPACES = frozenset({"aten", "prims", "prim", "graphweave"})
"""Operators whose meaning PyTorch's version and our own decide."""
_PACKAGES = frozenset({"torch", "graphweave", "_operator", "operator", "builtins", "math"})
"""Where functions may stand whose code the versions in the key decide."""
_MAX_CONSTANT_BYTES = 1 << 16
"""A tensor that is part of a graph is written by its digest if it has at most this many bytes."""


class Unkeyed(Exception):
    """The reason why a graph has no key."""


def graph_text(module: fx.GraphModule) -> str:
    """The text of a graph and of the graphs inside it, with what is known of its inputs."""
    return "\n".join((*_inputs(module), *_sizes(module), *_graph(module)))


def _graph(module: fx.GraphModule) -> Iterator[str]:
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        raise Unkeyed("parameters are part of the graph")
    if hasattr(module, "saved_tensors_hooks_pack_0"):
        raise Unkeyed("hooks on saved tensors are part of the graph")
    for node in module.graph.nodes:
        target = node.target if isinstance(node.target, str) else _function(node.target)
        place = _place(node.meta.get("stack_trace") or "")
        yield f"{node.name} = {node.op} {target} {_value(node.args)} {_value(node.kwargs)} {place}"
        if node.op == "get_attr":
            yield from _attribute(module, str(node.target))
        elif node.op == "call_module":
            raise Unkeyed("a module is called that was not captured")


@functools.lru_cache(maxsize=1 << 14)
def _place(trace: str) -> str:
    return str(location(trace))


def _attribute(module: fx.GraphModule, name: str) -> Iterator[str]:
    value = functools.reduce(getattr, name.split("."), module)
    if isinstance(value, fx.GraphModule):
        yield f"{name} {{"
        yield from _graph(value)
        yield "}"
    elif type(value) is Tensor and value.device.type == "cpu" and value.nbytes <= _MAX_CONSTANT_BYTES:
        if value.requires_grad or value.layout is not torch.strided:
            raise Unkeyed("a tensor with a gradient is part of the graph")
        content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        yield f"{name}: {value.dtype} {tuple(value.shape)} {value.stride()} {hashlib.sha256(content).hexdigest()}"
    else:
        raise Unkeyed(f"a {type(value).__name__} is part of the graph")


# ---------------------------------------------------------------- inputs and their sizes


def _inputs(module: fx.GraphModule) -> Iterator[str]:
    memories: dict[int, int] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if "example_value" not in node.meta:
            raise Unkeyed("nothing is known of an input")
        given, value = node.meta.get("grapharg"), node.meta["example_value"]
        source = getattr(getattr(given, "source", None), "name", "")
        as_tensor = bool(getattr(given, "pass_arg_as_tensor", False))
        static = (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
        yield f"input {node.name} {source} {as_tensor} {static} {_example(given)} {_input(value, i, memories)}"


def _example(given: object) -> str:
    """Facts about an argument of the first call besides its size: which tensors are the user's own leaves."""
    real = getattr(given, "example", None)
    if not isinstance(real, Tensor):
        return ""
    return f"{type(real).__qualname__} {real.requires_grad} {real.is_leaf} {real.is_inference()}"


def _input(value: object, i: int, memories: dict[int, int]) -> str:
    """An input: numbers by their expressions, tensors by all but their content. `memories` has the first input in each
    memory."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"{type(value).__name__} {value.node.expr}"
    if not isinstance(value, Tensor):
        return _value(value)
    if type(value) not in (Tensor, FakeTensor, torch.nn.Parameter) or value.layout is not torch.strided:
        raise Unkeyed(f"an input is a {type(value).__name__} of layout {value.layout}")
    if value.device.type != "cpu":
        raise Unkeyed(f"it runs on {value.device}")
    memory = memories.setdefault(value.untyped_storage()._cdata, i)
    flags = (
        value.requires_grad, value.is_leaf, value._is_view(), value.is_inference(), value.is_conj(), value.is_neg(),
        isinstance(value, torch.nn.Parameter),
    )  # fmt: skip
    shape = _value((tuple(value.shape), value.stride(), value.storage_offset()))
    return f"{value.dtype} {value.device} {shape} memory of {memory} {flags}"


def _sizes(module: fx.GraphModule) -> Iterator[str]:
    """Facts about symbolic sizes, and about how large they are in this call: choices by cost depend on it."""
    env = shape_env(module)
    if env is None:
        return
    yield f"settings {env.settings}"
    for symbol in sorted(env.var_to_range, key=str):
        known = env.backed_var_to_val.get(symbol)
        about = "unknown" if known is None else _magnitude(known)
        yield f"{symbol} in {env.var_to_range[symbol]} about {about}"
    yield from (f"{symbol} is {env.replacements[symbol]}" for symbol in sorted(env.replacements, key=str))
    yield from (f"guard {guard.expr}" for guard in env.guards)
    for symbol, asserts in env.deferred_runtime_asserts.items():
        yield from (f"assert {symbol} {one.expr}" for one in asserts)


def shape_env(module: fx.GraphModule) -> Any:
    """PyTorch's knowledge of the symbolic sizes of a graph; None if it has none."""
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, FakeTensor):
            return value.fake_mode.shape_env
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
    return None


def _magnitude(number: Any) -> str:
    """A number to a factor of two; those below 2 as they are, since they are cases of their own."""
    value = float(number)
    return str(number) if not value.is_integer() or value < 2 else f"2**{round(math.log2(value))}"


# ---------------------------------------------------------------- values


def _value(value: object) -> str:
    """An argument of a call. Numbers are written with their types and all digits."""
    match value:
        case None | bool() | int() | str() | bytes() | float() | complex() if not isinstance(value, enum.Enum):
            return repr(value)
        case fx.Node():
            return f"%{value.name}"
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return f"({value.node.expr})"
        case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
            return str(value)
        case slice():
            return f"slice({_value(value.start)}, {_value(value.stop)}, {_value(value.step)})"
        case list() | tuple() | set() | frozenset():
            items: Iterable[str] = map(_value, value)
            items = sorted(items) if isinstance(value, set | frozenset) else items
            return f"{type(value).__name__}({', '.join(items)})"
        case Mapping():
            return f"{{{', '.join(f'{_value(k)}: {_value(v)}' for k, v in value.items())}}}"
        case enum.Enum():
            return f"{_function(type(value))}.{value.name}"
        case _ if value is Ellipsis:
            return "..."
        case _ if is_dataclass(value) and not isinstance(value, type):
            parts = (f"{f.name}={_value(getattr(value, f.name))}" for f in fields(value))
            return f"{_function(type(value))}({', '.join(parts)})"
        case _:
            return _function(value)


def _function(target: Any) -> str:
    """A function by a name under which it is found, if its code belongs to PyTorch, Python or this package."""
    if isinstance(target, OpOverload | OpOverloadPacket):
        name = target.name() if isinstance(target, OpOverload) else target._qualified_op_name
        if name.split("::")[0] not in _NAMESPACES:
            raise Unkeyed(f"it calls {name}, an operator of another library")
        return str(name)
    if isinstance(target, HigherOrderOperator):
        return f"higher order {target.name()}"
    owner, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    holder = getattr(target, "__objclass__", None) or getattr(target, "__self__", None)
    if name and owner is None and holder is not None:  # a function in C: a method, or of a module
        owner = getattr(holder, "__module__", None) or getattr(holder, "__name__", None)
        if not isinstance(holder, type) and getattr(holder, "__name__", None) is None:
            holder = type(holder)
            owner, name = holder.__module__, f"{holder.__qualname__}.{target.__name__}"
        if getattr(holder, target.__name__, None) == target:
            return f"{owner}.{name}"
    if not owner or not name or owner.split(".")[0] not in _PACKAGES:
        raise Unkeyed(f"it calls {owner}.{name or type(target).__name__}, whose code is not in the key")
    found: Any = sys.modules.get(owner)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not target and id(target) not in _of_torch():
        raise Unkeyed(f"{owner}.{name} has been replaced, or has no name")
    return f"{owner}.{name}"


@functools.lru_cache(maxsize=1)
def _of_torch() -> frozenset[int]:
    """The functions in C under PyTorch's public names, which know neither module nor class."""
    places = (torch, torch.nn.functional, torch._C._nn, torch.linalg, torch.special, torch.fft, torch.Tensor)
    return frozenset(id(f) for place in places for f in vars(place).values() if type(f).__name__.startswith("builtin"))
