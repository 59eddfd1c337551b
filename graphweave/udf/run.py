"""Eager calls of the functions of `passing`, compiled once for each pair of user-defined functions.

Inside a compiled model this is not used: the functions of `passing` are traced with the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
import torch._dynamo
from torch import Tensor

from graphweave.core.counters import counters
from graphweave.core.settings import settings
from graphweave.frontends.dynamo.captured import Captured
from graphweave.udf.arguments import Frames, RelationEdges
from graphweave.udf.passing import (
    Message,
    Reduce,
    applied,
    bucketed,
    edge_results,
    node_results,
    reduce_at_once,
    reduce_mailboxes,
    updated,
    updated_at_once,
)
from graphweave.udf.reduce import refusal

_T = TypeVar("_T")

_MAX_KEPT_KEYS = 256
"""Limit on the keys of each of the two caches below."""
_MAX_FIXED_COMPILATIONS = 6
"""After this many compilations for one key, integers become symbols. PyTorch gives up at 8 compilations."""

_compiled: OrderedDict[Hashable, _Shared] = OrderedDict()
_in_buckets: OrderedDict[Hashable, bool] = OrderedDict()
"""Keys whose last call needed more than ragged mailboxes can do, and ran in buckets."""


Results: TypeAlias = dict[str, dict[str, Tensor]]
"""Type of nodes -> name -> a row for each node."""


class Host(Protocol):
    """Another array library, whose arrays the tensors in frames stand for. It compiles what passes along edges."""

    def update_all(self, ends: RelationEdges, frames: Frames, message: Message, reduce: Reduce) -> dict[str, Tensor]:
        """The messages reduced, [destinations, ...] each."""

    def apply_edges(self, ends: RelationEdges, frames: Frames, function: Message, who: str) -> dict[str, Tensor]:
        """The results of `function`, [edges, ...] each."""

    def call(self, function: Callable[..., object], *args: object) -> Any:
        """`function(*args)`, for a function of this package over messages."""

    def on_relations(self, function: Callable[..., Results], graph: Any, *inputs: Mapping[str, Tensor]) -> Results:
        """`function(graph, *inputs)`, which passes messages along relations of a graph: type of nodes -> name -> rows.
        Inputs have rows of nodes, by type."""

    def holds(self, x: Tensor) -> bool:
        """Whether `x` stands for an array of the library, whose numbers may be known only when a compiled function
        runs."""

    def degrees(self, index: Tensor, num_rows: int) -> Tensor:
        """How often each row occurs in `index`: [num_rows], of the dtype of `index`."""

    def on_rows(self, function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """`function(*rows)`, in which each row of the result depends on that row of the arguments alone."""


host: ContextVar[Host | None] = ContextVar("host", default=None)
"""Whose arrays are computed with; None for PyTorch's own tensors."""

inside_kernel: ContextVar[bool] = ContextVar("inside_kernel", default=False)
"""Whether the host traces what becomes a kernel. There, code takes the form that compilers recognise."""


def update_all(
    ends: RelationEdges, frames: Frames, message: Message, reduce: Reduce, apply: Reduce | None = None
) -> dict[str, Tensor]:
    """New fields of the destinations, [destinations, ...] each."""
    if is_plain():
        return updated(ends, frames, message, reduce, apply)
    if (other := host.get()) is not None:
        return applied(ends, frames, other.update_all(ends, frames, message, reduce), apply)
    key = _key("update", (message, reduce, apply), frames.src, frames.dst, frames.edge)
    messages = apply_edges(ends, frames, message, "the message function") if key in _in_buckets else None
    if messages is None or _changed(key, ends, frames, messages, reduce):
        out = shared(key, updated_at_once, ends, frames, message, reduce, apply)
        if out is not None:
            return out
    _remember(_in_buckets, key, True)
    if messages is None:
        messages = apply_edges(ends, frames, message, "the message function")
    out = bucketed(ends, frames, messages, reduce)
    if apply is not None:
        out.update(apply_nodes(ends.dst_rows, frames, {**frames.dst, **out}, apply))
    return out


def reduce_messages(
    ends: RelationEdges, frames: Frames, messages: dict[str, Tensor], reduce: Reduce
) -> dict[str, Tensor]:
    """New fields of the destinations, reduced from given messages."""
    if is_plain() or host.get() is not None:
        return reduce_mailboxes(ends, frames, messages, reduce)
    key = _key("reduce", (reduce,), frames.dst, messages)
    if key not in _in_buckets or _changed(key, ends, frames, messages, reduce):
        out = shared(key, reduce_at_once, ends, frames, messages, reduce)
        if out is not None:
            return out
    _remember(_in_buckets, key, True)
    return bucketed(ends, frames, messages, reduce)


def _changed(key: Hashable, ends: RelationEdges, frames: Frames, messages: dict[str, Tensor], reduce: Reduce) -> bool:
    """Whether `reduce` no longer needs the buckets that `key` needed at its last call. If so, the key is forgotten.

    The closures and attributes of functions with one key may differ from call to call.
    """
    if refusal(ends, frames, messages, reduce) is not None:
        return False
    del _in_buckets[key]
    return True


def apply_edges(ends: RelationEdges, frames: Frames, function: Message, who: str = "the function") -> dict[str, Tensor]:
    """New fields of the edges, [edges, ...] each. `who` names `function` in errors."""
    if is_plain():
        return edge_results(ends, frames, function, who)
    if (other := host.get()) is not None:
        return other.apply_edges(ends, frames, function, who)
    key = _key("edges", (function,), frames.src, frames.dst, frames.edge)
    return shared(key, edge_results, ends, frames, function, who)


def apply_nodes(rows: Tensor, frames: Frames, data: Any, function: Reduce) -> dict[str, Tensor]:
    """New fields of the nodes, [nodes, ...] each."""
    if is_plain() or host.get() is not None:
        return node_results(rows, frames, data, function)
    return shared(_key("nodes", (function,), data), node_results, rows, frames, data, function)


def on_relations(function: Callable[..., Results], graph: object, *inputs: Mapping[str, Tensor]) -> Results:
    """`function(graph, *inputs)`, in which messages pass along relations of a graph, as one program where another
    library asks for it. `Host.on_relations` says what it takes and gives."""
    other = None if is_plain() else host.get()
    return function(graph, *inputs) if other is None else other.on_relations(function, graph, *inputs)


def call(function: Callable[..., object], *args: object) -> Any:
    """`function(*args)`, compiled or eager, for a function of this package over messages."""
    if is_plain():
        return function(*args)
    other = host.get()
    return shared(function, function, *args) if other is None else other.call(function, *args)


def is_plain() -> bool:
    """Whether functions run without compilation: inside a compiled model, and where kernels are switched off."""
    return torch.compiler.is_compiling() or not settings().eager_kernels


class _Shared:
    """`function`, compiled for all calls of one key.

    Integers in closures (heads, dims) are compiled in, since shapes are made from them. If that leads to one
    compilation after another, they are symbols from then on.
    """

    def __init__(self, function: Callable[..., object], options: Mapping[str, object] | None) -> None:
        self._function, self._options, self._fixed, self._compilations = function, options, True, 0
        self._run = self._compile()

    def _compile(self) -> Captured:
        return Captured(self._function, True, self._options, {"specialize_int": self._fixed})

    def __call__(self, *args: object) -> Any:
        before = counters()["compilations"]
        try:
            out = self._run(*args)
        except Exception:
            self._run = self._compile()  # PyTorch would never again trace what it has left to Python
            raise
        self._compilations += counters()["compilations"] - before
        if self._fixed and self._compilations >= _MAX_FIXED_COMPILATIONS:
            self._fixed = False
            self._run = self._compile()
        return out


def shared(
    key: Hashable, function: Callable[..., object], *args: object, options: Mapping[str, object] | None = None
) -> Any:
    """`function(*args)`, compiled with `options` for all calls of one key."""
    run = _compiled.get(key)
    if run is not None:
        _compiled.move_to_end(key)
    else:
        run = _Shared(function, options)
        _remember(_compiled, key, run)
    return run(*args)


def _remember(cache: OrderedDict[Hashable, _T], key: Hashable, value: _T) -> None:
    cache[key] = value
    if len(cache) > _MAX_KEPT_KEYS:
        cache.popitem(last=False)


def _key(what: str, functions: tuple[object, ...], *frames: Mapping[str, Tensor]) -> Hashable:
    """The key of a call. Calls with equal keys share compiled code, and therefore PyTorch's limit on compilations.

    Functions with the same code may differ in closures, default values and parameters, which PyTorch guards. The key
    also holds the widths of features, since layers of one class may differ in them, as compiled modules may.
    """
    widths = tuple((name, x.shape[1:], x.dtype) for frame in frames for name, x in frame.items())
    return what, tuple(map(code_of, functions)), widths


def code_of(function: object, depth: int = 3) -> Hashable:
    """The part of a key that stands for a function: its code, and the code of the functions in its closure.

    For an object it is the class, or the object itself if that is a hashable dataclass, as built-in functions are.
    """
    if isinstance(function, functools.partial):
        return "partial", code_of(function.func, depth)
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType):
        return function.__code__, tuple(code_of(inner, depth - 1) for inner in _enclosed(function) if depth)
    is_value = dataclasses.is_dataclass(function) and type(function).__hash__ not in (None, object.__hash__)
    key: Any = function if is_value else type(function)
    return key


def _enclosed(function: types.FunctionType) -> Iterator[types.FunctionType]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell: a name without a value yet
            if isinstance(cell.cell_contents, types.FunctionType):
                yield cell.cell_contents
