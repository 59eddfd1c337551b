"""`graphweave.compile`: torch.compile with this backend and the capture settings that message passing needs."""

from __future__ import annotations

import functools
import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from inspect import signature
from typing import Any, TypeVar, cast

import torch
import torch._dynamo
from torch._dynamo import convert_frame
from torch._dynamo.exc import TorchDynamoException, TorchRuntimeError
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from graphweave.compiler.report import record_eager
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.frontends.dynamo.backend import graphweave, parse_options, warn_once, with_mode
from graphweave.frontends.dynamo.capture_settings import CAPTURE, MOST_COMPILATIONS, SHAPES
from graphweave.frontends.dynamo.lazy import make_parameters
from graphweave.frontends.dynamo.polyfills import polyfilled
from graphweave.frontends.dynamo.torch_logs import pages_in_a_line

_log = logger("frontends")
T = TypeVar("T", bound=Callable[..., Any])

_LIMITS = {"recompile_limit": MOST_COMPILATIONS, "accumulated_recompile_limit": 1024}
_RNN = {"allow_rnn": True}
"""Recurrent layers are traced; of LSTM, which PyTorch traces wrongly, an equal is in place (`polyfills.py`)."""

_ISOLATED: dict[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in signature(torch.compile).parameters else {}
)
"""Code that compiled functions share (a layer of a library behind a graph break, a frame of ours) is compiled for each
of them on its own, and the limit on its compilations counts for each (PyTorch 2.13)."""

_TRACE_ERRORS = (TorchDynamoException, GuardOnDataDependentSymNode)


def compile(
    model: T, *, mode: str | None = None, dynamic: bool | None = True, options: Mapping[str, Any] | None = None
) -> T:
    """`model`, a module or function, running as fused kernels, forward and backward.

    A module keeps its parameters, state_dict keys and class-specific attributes: the result shares them with `model`.
    One compilation serves graphs of any size (`dynamic=True`); feature sizes are compiled in. What cannot be captured
    becomes a graph break, what cannot be compiled runs as PyTorch calls; `graphweave.counters()` tells, and
    `graphweave.explain` says why.

    `options`: `verify=True` runs every region beside the interpreter and raises VerifyError where they differ.
    `recompute` says what the backward computes again instead of keeping it from the forward: "auto" what costs O(1)
    operations an element on edges, so that nothing of edges x features is kept; "never" nothing, as eager; "always" all
    but matrix products and calls left to PyTorch, on nodes and along edges too (least memory, most time).
    `mode="reduce-overhead"`, or the option `cuda_graphs=True`, replays calls on a CUDA device as CUDA graphs: the third
    call on a graph of the same sizes is captured, later ones copy their arguments, replay, and copy the results
    (`compiler/cuda_graph.py`). It does nothing for tensors on the CPU. `mode="default"` is None.
    Raises SettingsError for an unknown option or mode, TypeError for what is not callable. Calls raise IndexRangeError
    (an IndexError) where an index is out of range.
    """
    if not callable(model):
        raise TypeError(f"graphweave.compile takes a module or a function (got {type(model).__name__})")
    options = with_mode(mode, options)
    parse_options(options)
    if isinstance(model, torch.nn.Module):
        return cast(T, CompiledModule(model, dynamic, options))
    call = _Captured(model, dynamic, options)

    @functools.wraps(model)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    compiled._gw_original = model  # type: ignore[attr-defined]
    compiled._gw_arguments = (dynamic, options)  # type: ignore[attr-defined]
    return cast(T, compiled)


class _Captured:
    """A callable under torch.compile, traced whole; where that fails, as far as each of its frames can be."""

    def __init__(self, target: Callable[..., Any], dynamic: bool | None, options: Mapping[str, Any] | None) -> None:
        backend = functools.partial(graphweave, options=dict(options or {}))

        def traced(*args: Any, **kwargs: Any) -> Any:
            # where this frame is left to Python, guards would be frames of their own, compiled for nothing
            if torch.compiler.is_dynamo_compiling():
                features = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
                features = [t for t in features if t.is_floating_point() and t.dim() > 1]
                for i, t in enumerate(features):
                    _guard_sizes(t, of_nodes=i == 0)
            return target(*args, **kwargs)

        # PyTorch keeps compiled code, and its limit on recompilations, by code object: one for each target
        traced.__code__ = traced.__code__.replace(co_name=f"traced_{_name(target)}")
        self._target = target
        self._compiled = torch.compile(traced, backend=backend, dynamic=dynamic, **_ISOLATED)
        self._modes: tuple[Callable[[], AbstractContextManager[Any]], ...] = (full_capture, frame_by_frame)
        self._traced = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_usual_strides, args))
        kwargs = {name: _usual_strides(arg) for name, arg in kwargs.items()}
        if not self._traced and isinstance(self._target, torch.nn.Module):
            make_parameters(self._target, args, kwargs)
        while self._modes:
            breaks = _graph_breaks()
            before = None if self._traced else _State(self._target)
            failed: Exception
            try:
                with self._modes[0](), _floats(fixed=not self._traced), polyfilled(), pages_in_a_line():
                    out = self._compiled(*args, **kwargs)
                self._traced = True
                return out
            except Exception as error:
                if not _arose_in_tracing(error):
                    raise
                failed = error
            finally:
                bump("graph_breaks", max(now - then for now, then in zip(_graph_breaks(), breaks, strict=True)))
            if before is not None:
                before.restore()
            if isinstance(failed, TorchRuntimeError):
                self._raise_what_eager_raises(args, kwargs)
            self._retreat(failed)
        bump("eager_fallbacks")
        return self._target(*args, **kwargs)

    def _raise_what_eager_raises(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation refused its operands. If eager mode refuses them too, that is the error, in plain words."""
        before = _State(self._target)
        with torch.no_grad():
            self._target(*args, **kwargs)
        before.restore()

    def _retreat(self, error: Exception) -> None:
        """Trace with the next settings from now on, or run eagerly where there are none left."""
        name = _name(self._target)
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        self._modes = self._modes[1:]
        if self._modes:
            _log.info("%s: tracing with data-dependent shapes failed (%s); tracing without", name, why)
            return
        record_eager(f"{name} could not be traced: {why}")
        warn_once(f"graphweave could not trace {name}; it runs eagerly. The trace failed with: {why}")


def _usual_strides(arg: Any) -> Any:
    """An index of no edges, `[2, 0]`, with the strides of one with edges, for which the compiled code has a guard.

    In lists and dicts too, as models of several types of edges take them, which are copied where something changes.
    """
    if type(arg) in (list, tuple):
        items = [_usual_strides(x) for x in arg]
        return arg if all(map(operator.is_, items, arg)) else type(arg)(items)
    if type(arg) is dict:
        values = {key: _usual_strides(x) for key, x in arg.items()}
        return arg if all(map(operator.is_, values.values(), arg.values())) else values
    if not isinstance(arg, torch.Tensor) or arg.numel() or arg.is_floating_point() or not arg.is_contiguous():
        return arg
    strides = tuple(math.prod(arg.shape[d + 1 :]) for d in range(arg.dim()))
    return arg if arg.stride() == strides else arg.as_strided(arg.shape, strides)


def _guard_sizes(features: torch.Tensor, *, of_nodes: bool) -> None:
    """Traced, not run: comparisons of sizes become guards of the compiled code.

    `of_nodes`: the first features of a call, which are those of nodes; others may be those of edges.
    """
    # One row has code of its own: squeeze() takes the dim of rows for one of features.
    if not of_nodes:
        if features.size(0) == 1:
            pass
    # With the number of nodes known not to be 0, nodes + a data-dependent number of edges is not 0 either, and
    # "if index.numel() == 0" does not break the graph of a layer that inserts self-loops. "Fewer than 2" is what
    # PyTorch remembers as a range; of "not 0 and not 1" it would know nothing about the sum.
    elif features.size(0) < 2 and features.size(0) == 1:
        pass
    # Feature sizes are compiled in: a range of symbolic length is what Dynamo makes a number of.
    if features.dim() == 2:
        for _ in range(features.size(1)):
            break


@contextmanager
def _floats(*, fixed: bool) -> Iterator[None]:
    """Whether Python floats (a slope, a rate) are compiled in. At first they are: as symbols most cannot stay, which
    PyTorch finds out late and then traces all over again. A function called with another value is traced with symbols.
    """
    with torch._dynamo.config.patch(specialize_float=fixed):
        yield


@contextmanager
def full_capture() -> Iterator[None]:
    """Settings of one call under which data-dependent shapes are captured instead of breaking the graph."""
    with torch._dynamo.config.patch({**CAPTURE, **_RNN, **_LIMITS}), shape_config.patch(SHAPES):  # type: ignore[attr-defined]
        yield


@contextmanager
def frame_by_frame() -> Iterator[None]:
    """Settings of one call under which only the frames that cannot be traced run as Python, said aloud."""
    log = logging.getLogger(convert_frame.__name__)
    level = log.level
    log.setLevel(min(log.getEffectiveLevel(), logging.WARNING))  # a report that is not made could not be counted
    log.addFilter(_tell)
    try:
        settings = {"suppress_errors": True, **_RNN, **_LIMITS}
        with torch._dynamo.config.patch(settings), shape_config.patch(SHAPES):  # type: ignore[attr-defined]
            yield
    finally:
        log.removeFilter(_tell)
        log.setLevel(level)


def _tell(record: logging.LogRecord) -> bool:
    """Take over the report of a frame left to Python, whose text is a page of PyTorch's own frames."""
    error = record.exc_info[1] if record.exc_info else None
    if record.levelno != logging.WARNING or error is None:
        return True
    why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    bump("eager_fallbacks")
    record_eager(f"a function could not be traced: {why}")
    warn_once(f"graphweave could not trace a function; it runs eagerly. The trace failed with: {why}")
    return False


def _arose_in_tracing(error: Exception) -> bool:
    """Did `error` come up while code was traced, rather than while it ran?"""
    if isinstance(error, _TRACE_ERRORS):  # which come without the frames of the tracer
        return True
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == convert_frame.__file__:
            return True
        trace = trace.tb_next
    return False


class _State:
    """What a call may have changed when a function behind a graph break cannot be traced: random state and buffers."""

    def __init__(self, target: Callable[..., Any]) -> None:
        buffers = target.buffers() if isinstance(target, torch.nn.Module) else ()
        with torch.no_grad():
            self._buffers = [(b, b.clone()) for b in buffers]
        self._random = torch.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._random)
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):  # by value: eager batch norm changes no version
                    buffer.copy_(value)


def _name(target: Callable[..., Any]) -> str:
    return str(getattr(target, "__name__", type(target).__name__))


def _graph_breaks() -> tuple[int, int]:
    """What PyTorch could not do, and where it broke a graph: branches and loops are only in the first."""
    counts = torch._dynamo.utils.counters
    return sum(counts["unimplemented"].values()), sum(counts["graph_break"].values())


class CompiledModule(torch.nn.Module):
    """A module that shares parameters, buffers, submodules and attributes with `original` and runs compiled."""

    def __init__(self, original: torch.nn.Module, dynamic: bool | None, options: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.__dict__.update(
            _parameters=original._parameters,
            _buffers=original._buffers,
            _modules=original._modules,
            _non_persistent_buffers_set=original._non_persistent_buffers_set,
            training=original.training,
            _gw_original=original,
            _gw_arguments=(dynamic, options),
            _gw_call=_Captured(original, dynamic, options),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._gw_call(*args, **kwargs)

    def train(self, mode: bool = True) -> CompiledModule:
        self._gw_original.train(mode)
        self.__dict__["training"] = mode
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_gw_original"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_gw_original" in self.__dict__:
            setattr(self._gw_original, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_gw_call"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__["_gw_call"] = _Captured(self._gw_original, *self._gw_arguments)

    def extra_repr(self) -> str:
        return f"compiled {type(self.__dict__['_gw_original']).__name__}"
