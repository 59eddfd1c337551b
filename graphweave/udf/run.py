"""Eager calls: the same functions, compiled once for each pair of user-defined functions, so that no call is slow.

Inside a compiled model nothing of this happens: there the functions are traced with the model.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from graphweave.core.settings import settings
from graphweave.frontends.dynamo.compile import compile
from graphweave.udf.batch import Ends, Frames
from graphweave.udf.passing import Message, Reduce, bucketed, edge_results, node_results, reduced, updated
from graphweave.udf.report import why_in_buckets

_KEPT = 256
_compiled: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()
_in_buckets: OrderedDict[Hashable, bool] = OrderedDict()


def update_all(
    ends: Ends, frames: Frames, message: Message, reduce: Reduce, apply: Reduce | None = None
) -> dict[str, Tensor]:
    """New fields of the destinations, [destinations, ...] each."""
    if _plain():
        return updated(ends, frames, message, reduce, apply)
    key = ("update", *map(_code, (message, reduce, apply)))
    if key not in _in_buckets:
        few = _first_edge(ends)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            messages = edge_results(few, frames, message, "the message function")
        _remember(_in_buckets, key, why_in_buckets(few, frames, messages, reduce) is not None)
    if not _in_buckets[key]:
        return _call(key, updated, ends, frames, message, reduce, apply)
    messages = _call(("edges", _code(message)), edge_results, ends, frames, message, "the message function")
    out = bucketed(ends, frames, messages, reduce)
    if apply is not None:
        out.update(apply_nodes(ends.dst_rows, frames, {**frames.dst, **out}, apply))
    return out


def reduce_messages(ends: Ends, frames: Frames, messages: dict[str, Tensor], reduce: Reduce) -> dict[str, Tensor]:
    """New fields of the destinations from messages that exist."""
    if _plain():
        return reduced(ends, frames, messages, reduce)
    if why_in_buckets(ends, frames, messages, reduce) is not None:
        return bucketed(ends, frames, messages, reduce)
    return _call(("reduce", _code(reduce)), reduced, ends, frames, messages, reduce)


def apply_edges(ends: Ends, frames: Frames, function: Message) -> dict[str, Tensor]:
    """New fields of the edges, [edges, ...] each."""
    who = "the function"
    if _plain():
        return edge_results(ends, frames, function, who)
    return _call(("edges", _code(function)), edge_results, ends, frames, function, who)


def apply_nodes(rows: Tensor, frames: Frames, data: Any, function: Reduce) -> dict[str, Tensor]:
    """New fields of the nodes, [nodes, ...] each."""
    if _plain():
        return node_results(rows, frames, data, function)
    return _call(("nodes", _code(function)), node_results, rows, frames, data, function)


def _first_edge(ends: Ends) -> Ends:
    eids = torch.zeros_like(ends.src[:1]) if ends.eids is None else ends.eids[:1]
    return Ends(ends.src[:1], ends.dst[:1], ends.src_rows, ends.dst_rows, eids)


def call(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, a function of this package over messages: with kernels, or as it is."""
    return function(*args) if _plain() else _call(function, function, *args)


def _plain() -> bool:
    return torch.compiler.is_compiling() or not settings().eager_kernels


def _call(key: Hashable, function: Callable[..., Any], *args: Any) -> Any:
    run = _compiled.get(key)
    if run is None:
        # one function object a key: PyTorch counts recompilations by code, and each pair of functions is one
        run = compile(types.FunctionType(function.__code__, function.__globals__, function.__name__))
        _remember(_compiled, key, run)
    return run(*args)


def _remember(cache: OrderedDict[Hashable, Any], key: Hashable, value: Any) -> None:
    cache[key] = value
    if len(cache) > _KEPT:
        cache.popitem(last=False)


def _code(function: Any) -> Hashable:
    """What two functions have in common that differ in closures and default values at most."""
    if function is None:
        return None
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or function
