"""`compile`: functions written in loops are checked as Python, and compiled once for features of the same sizes."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar, cast, overload

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves, tree_map_only

from graphweave.core.errors import LoopError
from graphweave.frontends.dynamo.captured_request import checked_choices
from graphweave.loops.matmul import PRODUCTS
from graphweave.loops.rows import Edge, EdgeEnd, Node
from graphweave.loops.rowwise import ROWWISE
from graphweave.loops.source import check_code, located
from graphweave.loops.values import LoopValue
from graphweave.loops.view import GraphView, LoopEdges, LoopFields, source_of
from graphweave.tensorlike.answers import answer
from graphweave.udf.run import code_of, is_plain, shared

T = TypeVar("T", bound=Callable[..., Any])

answer(LoopValue, {**ROWWISE, **PRODUCTS})

_NEEDS_DATA = (
    DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)  # fmt: skip
"""PyTorch's errors for operations that depend on data, and so cannot be checked on shapes."""

_checked: set[Hashable] = set()
"""Keys of calls that have been checked on shapes."""


@overload
def compile(function: T, *, options: Mapping[str, object] | None = None) -> T: ...
@overload
def compile(*, options: Mapping[str, object] | None = None) -> Callable[[T], T]: ...
def compile(function: Any = None, *, options: Mapping[str, object] | None = None) -> Any:
    """Compile a function, written in loops, of a graph (its first argument, or its second after `self`) and tensors.

    The body is run with a `GraphView` for the graph (docs/loops.md says what it may do). The call returns what the body
    returns, and fields that the body sets become fields of the graph. Each loop is run once for all edges or nodes
    together, with the same result as running it for one after the other. If that result would depend on their order, or
    is not known, the call raises LoopError, whose message ends with the line.

    The function is compiled at its first call, as `graphweave.compile(function, options=options)` does; inside a
    compiled model it is traced with the model. GRAPHWEAVE_EAGER_KERNELS=0 runs PyTorch's own operations instead.
    """
    if function is None:
        return functools.partial(compile, options=options)
    if not callable(function):
        raise TypeError(f"graphweave.loops.compile takes a function (got {type(function).__name__}). Pass a function.")
    checked_choices(options)
    code = getattr(function, "__code__", None)
    if code is not None:
        check_code(code)
    chosen = dict(options or {})

    @functools.wraps(function)
    def looped(*args: object, **kwargs: object) -> object:
        place = 1 if args and isinstance(args[0], torch.nn.Module) else 0
        if len(args) <= place:
            raise TypeError(
                f"{function.__name__} takes a graph as its first argument, by position. Pass the graph first."
            )
        source = source_of(args[place])
        ends, fields = source.parts()
        before, after = args[:place], args[place + 1 :]
        if torch.compiler.is_compiling():
            out, written = evaluate(function, ends, fields, before, after, kwargs, False)
        else:
            out, written = _run(function, chosen, ends, fields, before, after, kwargs)
        source.store(written)
        return out

    return cast(Any, looped)


def evaluate(
    function: Callable[..., Any], ends: LoopEdges, fields: LoopFields, before: tuple[object, ...],
    after: tuple[object, ...], kwargs: Mapping[str, object], checked: bool,
) -> tuple[Any, LoopFields]:  # fmt: skip
    """The results of `function` for the graph, and the fields that it sets. `checked` says that it has run as
    Python."""
    view = GraphView(ends, fields, checked)
    out = function(*before, view, *after, **kwargs)
    written = view.results()
    for leaf in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(leaf, (LoopValue, Edge, EdgeEnd, Node, GraphView)):
            raise LoopError(
                "a function written in loops returned something of its graph. "
                "Return fields: g.ndata['x'], g.edata['x']."
            )
    return out, written


def _run(function: Callable[..., object], options: dict[str, object], *args: Any) -> Any:
    try:
        if is_plain():
            return evaluate(function, *args, False)  # type: ignore[call-arg]
        key = _key(function, options, *args)
        if key not in _checked:
            _check(function, *args)
            _checked.add(key)
        return shared(key, evaluate, function, *args, True, options=options)
    except Exception as error:
        found = located(error)
        if found is error:
            raise
        raise found from error


def _key(
    function: Callable[..., object], options: dict[str, object], ends: LoopEdges, fields: LoopFields, *args: Any
) -> Hashable:
    """The key of a call. Calls of one function, with features of the same sizes, share compiled code."""
    frames = (fields.sources, fields.destinations, fields.edges)
    widths = tuple((name, x.shape[1:], x.dtype) for frame in frames for name, x in frame.items())
    tensors = tuple((x.shape[1:], x.dtype) for x in tree_leaves(args) if isinstance(x, Tensor))
    same = ends.sources is ends.destinations
    return "loops", code_of(function), tuple(sorted(options.items())), same, widths, tensors


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's log about wrong shapes, which repeats the error at length."""
    log = logging.getLogger(torch._subclasses.fake_tensor.__name__)
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was


def _check(
    function: Callable[..., object], ends: LoopEdges, fields: LoopFields, before: tuple[object, ...],
    after: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:  # fmt: skip
    """Run the body as Python, on shapes alone. A trace knows that something is wrong, but not at which line."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tree: object) -> Any:
        return tree_map_only(Tensor, mode.from_tensor, tree)

    sources = mode.from_tensor(ends.sources)
    destinations = sources if ends.sources is ends.destinations else mode.from_tensor(ends.destinations)
    nodes = fake(fields.sources)
    others = nodes if fields.sources is fields.destinations else fake(fields.destinations)
    try:
        with mode, torch.no_grad(), _quiet():
            evaluate(
                function, LoopEdges(fake(ends.src), fake(ends.dst), sources, destinations),
                LoopFields(nodes, others, fake(fields.edges)), fake(before), fake(after), fake(kwargs), False,
            )  # fmt: skip
    except _NEEDS_DATA:
        return
