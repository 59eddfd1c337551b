"""`graphweave.compile`: torch.compile with this backend and the capture settings that message passing needs."""

from __future__ import annotations

import functools
import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, TypeVar, cast

import torch
import torch._dynamo
from torch._dynamo import convert_frame
from torch._dynamo.exc import TorchDynamoException, TorchRuntimeError
from torch._dynamo.utils import graph_break_reasons
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._pytree import tree_leaves

from graphweave.compiler.report import record_eager
from graphweave.core.counters import bump
from graphweave.core.errors import SettingsError
from graphweave.core.interrupts import interrupt_in
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.frontends.dynamo.argument_names import parameters_of
from graphweave.frontends.dynamo.backend import graphweave, parse_options, warn_once, with_mode
from graphweave.frontends.dynamo.capture_settings import (
    CAPTURE,
    MOST_COMPILATIONS,
    ONE_APART,
    SHAPES,
    CaptureSettings,
    asked,
)  # fmt: skip
from graphweave.frontends.dynamo.lazy import make_parameters
from graphweave.frontends.dynamo.polyfills import polyfilled
from graphweave.frontends.dynamo.reasons import at, line_of, not_traced, reason_of, unconverted
from graphweave.frontends.dynamo.sparse_arguments import Place, given_back, is_sparse, places_in, places_of, swapped
from graphweave.frontends.dynamo.sparse_matrix import in_use, stand_in
from graphweave.frontends.dynamo.torch_logs import pages_in_a_line
from graphweave.frontends.dynamo.turns import Turns
from graphweave.frontends.dynamo.uncompiled import inside_a_transform, method, transformed, what_is_meant

_log = logger(__name__)
T = TypeVar("T", bound=Callable[..., Any])

_ALWAYS = {
    "allow_rnn": True,  # of LSTM, which PyTorch traces wrongly, an equal is in place (`polyfills.py`)
    "skip_nnmodule_hook_guards": False,  # a hook that a module is given after the first call counts
}
_TRIED = (
    CaptureSettings({**CAPTURE, **_ALWAYS}, SHAPES),
    CaptureSettings({**CAPTURE, **_ALWAYS}, ONE_APART),  # where a size of 1 that is not compiled in meets a larger one
    CaptureSettings(_ALWAYS, SHAPES),
)
"""Settings in the order in which they are tried. Under the last of them frames that cannot be traced run as Python."""

_EACH_APART: dict[str, Any] = {
    name: value
    for name, value in (("isolate_recompiles", True), ("recompile_limit", MOST_COMPILATIONS))
    if name in signature(torch.compile).parameters
}
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

    `options`: `verify=True` runs the captured graph, and a slow reference of every kernel, beside each call and raises
    VerifyError where results, gradients, or strides and memory that a result promises differ.
    `recompute` says what the backward computes again instead of keeping it from the forward: "auto" what costs O(1)
    operations an element on edges, so that nothing of edges x features is kept; "never" nothing, as eager; "always" all
    but matrix products and calls left to PyTorch, on nodes and along edges too (least memory, most time).
    `mode="reduce-overhead"`, or the option `cuda_graphs=True`, replays calls on a CUDA device as CUDA graphs: the third
    call on a graph of the same sizes is captured, later ones copy their arguments, replay, and copy the results
    (`compiler/cuda_graph.py`). It does nothing for tensors on the CPU. `mode="default"` is None.
    `unseen_edits=False` leaves out what each call does to notice edits of an index tensor that PyTorch does not see, as
    those through NumPy are (`runtime/unseen_edits.py`).
    Raises SettingsError for an unknown option or mode and for a value that it cannot have, TypeError for what is not
    callable. Calls raise IndexRangeError (an IndexError) where an index is out of range.
    """
    if not callable(model):
        raise TypeError(
            f"graphweave.compile: {model!r} cannot be called; expected a module or a function (got a "
            f"{type(model).__name__}). Pass the model itself."
        )
    settings()  # a variable that cannot be used is refused here, by name, and not in the middle of a compilation
    if dynamic not in (None, True, False):
        raise SettingsError(f"dynamic must be True, False or None (got {dynamic!r}). Pass one of these.")
    model = cast(T, what_is_meant(model))
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
        backend = functools.partial(graphweave, options=dict(options or {}), parameters=parameters_of(target))

        def traced(*args: Any, **kwargs: Any) -> Any:
            # where this frame is left to Python, guards would be frames of their own, compiled for nothing
            if torch.compiler.is_dynamo_compiling():
                tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
                dense = [t for t in tensors if t.layout is torch.strided]
                for i, t in enumerate(t for t in dense if t.is_floating_point() and t.dim() > 1):
                    _guard_sizes(t, of_nodes=i == 0)
            return target(*args, **kwargs)

        # PyTorch keeps compiled code, and its limit on recompilations, by code object: one for each target
        traced.__code__ = traced.__code__.replace(co_name=f"traced_{name_of(target)}")
        self._target = target
        self._compiled: Any = torch.compile(traced, backend=backend, dynamic=dynamic, **_EACH_APART)
        self._settings = tuple(_with_floats(s) for s in _TRIED)
        self._traced = False
        self._whole = False  # captured without a break, so that nothing new is traced but for other sizes
        self._sparse_places: list[Place] | None = None
        self._turns = Turns()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # part of something larger that is compiled
            return self._target(*args, **kwargs)
        if inside_a_transform():
            transformed(name_of(self._target))
            return self._target(*args, **kwargs)
        return self._turns.take(self._with_stand_ins, args, kwargs)

    def _with_stand_ins(self, *args: Any, **kwargs: Any) -> Any:
        """Sparse tensors are captured as what stands for them, and given back as sparse tensors."""
        if self._sparse_places is None:
            self._sparse_places = places_of(self._target)
        places = self._sparse_places + places_in((*args, *kwargs.values()))
        if not places:
            return given_back(self._call(args, kwargs))
        with swapped(places):
            return given_back(self._call(args, kwargs))

    def _call(self, given: tuple[Any, ...], given_by_name: dict[str, Any]) -> Any:
        args = tuple(map(_as_traced, given))
        kwargs = {name: _as_traced(arg) for name, arg in given_by_name.items()}
        if not self._traced and isinstance(self._target, torch.nn.Module):
            make_parameters(self._target, args, kwargs)
        while self._settings and not self._hooked_everywhere():
            breaks = _graph_breaks()
            before = None if self._traced else _State(self._target)
            failed: Exception
            try:
                with polyfilled(sparse=in_use() or not self._whole), pages_in_a_line():
                    out = self._run(args, kwargs)
                self._traced = self._whole = True
                return out
            except Exception as error:
                if (interrupt := interrupt_in(error)) is not None:
                    raise interrupt from None
                if not _arose_in_tracing(error):
                    raise
                failed = error
            finally:
                broken = _breaks_since(breaks)
                bump("graph_breaks", broken)
                if broken:  # maybe by a sparse tensor that was not there before
                    self._sparse_places, self._whole = None, False
            if before is not None:
                before.restore()
            if isinstance(failed, TorchRuntimeError):
                self._raise_what_eager_raises(given, given_by_name)
            self._retreat(failed)
        bump("eager_fallbacks")
        return self._target(*given, **given_by_name)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        token = asked.set(self._settings[0][self._traced])
        try:
            if len(self._settings) > 1:
                return self._compiled(*args, **kwargs)
            with frame_by_frame():
                return self._compiled(*args, **kwargs)
        finally:
            asked.reset(token)

    def _hooked_everywhere(self) -> bool:
        """Hooks on all modules of the process (a profiler's, a tracker's) run where modules are called one by one."""
        if not _has_any_global_hook():
            return False
        warn_once(
            f"graphweave: {name_of(self._target)} runs eagerly while there are hooks on all modules (made by "
            "`register_module_forward_hook` or a like function). Remove them, or use hooks of single modules."
        )
        return True

    def _raise_what_eager_raises(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation refused its operands. If eager mode refuses them too, that is the error, in plain words."""
        before = _State(self._target)
        with torch.no_grad():
            self._target(*args, **kwargs)
        before.restore()

    def _retreat(self, error: Exception) -> None:
        """Trace with the next settings from now on, or run eagerly where there are none left."""
        name = name_of(self._target)
        why, where = reason_of(error)
        self._settings = self._settings[1:]
        if self._settings:
            _log.info("%s: tracing failed (%s); tracing with other settings", name, why)
            return
        record_eager(f"{name}{at(where or line_of(self._target))} could not be traced: {why}")
        warn_once(not_traced(name, where or line_of(self._target), why))


def _as_traced(arg: Any) -> Any:
    """What is traced in place of an argument: for a sparse tensor a SparseMatrix; an index of no edges, `[2, 0]`, with
    the strides of one with edges, for which the compiled code has a guard.

    In lists and dicts too, as models of several types of edges take them, which are copied where something changes.
    """
    if type(arg) in (list, tuple):
        items = [_as_traced(x) for x in arg]
        return arg if all(map(operator.is_, items, arg)) else type(arg)(items)
    if type(arg) is dict:
        values = {key: _as_traced(x) for key, x in arg.items()}
        return arg if all(map(operator.is_, values.values(), arg.values())) else values
    if is_sparse(arg):
        return stand_in(arg)
    if (
        not isinstance(arg, torch.Tensor)
        or arg.layout is not torch.strided
        or arg.numel()
        or arg.is_floating_point()
        or not arg.is_contiguous()
    ):
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


def _with_floats(settings: CaptureSettings) -> tuple[CaptureSettings, CaptureSettings]:
    """`settings` for the first compilation and for later ones, which differ in whether Python floats (a slope, a rate)
    are compiled in. At first they are: as symbols most cannot stay, which PyTorch finds out late and then traces all
    over again. A function called with another value is traced with symbols.
    """
    fixed, symbols = ({**settings.dynamo, "specialize_float": is_fixed} for is_fixed in (True, False))
    return CaptureSettings(fixed, settings.shapes), CaptureSettings(symbols, settings.shapes)


@contextmanager
def frame_by_frame() -> Iterator[None]:
    """Inside, frames that cannot be traced run as Python, said aloud."""
    log = logging.getLogger(convert_frame.__name__)
    level = log.level
    log.setLevel(min(log.getEffectiveLevel(), logging.WARNING))  # a report that is not made could not be counted
    log.addFilter(_tell)
    try:
        with torch._dynamo.config.patch(suppress_errors=True):
            yield
    finally:
        log.removeFilter(_tell)
        log.setLevel(level)


def _tell(record: logging.LogRecord) -> bool:
    """Take over the report of a frame left to Python, whose text is a page of PyTorch's own frames."""
    error = record.exc_info[1] if record.exc_info else None
    if record.levelno != logging.WARNING or error is None:
        return True
    if (interrupt := interrupt_in(error)) is not None:
        raise interrupt
    why, where = reason_of(error)
    name, begins = unconverted(record.getMessage())
    if begins.startswith("graphweave/frontends/"):  # of ours: the user's functions inside are traced on their own
        return False
    bump("eager_fallbacks")
    record_eager(f"{name}{at(where or begins)} could not be traced: {why}")
    warn_once(not_traced(name, where or begins, why))
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
        owner = getattr(target, "__self__", target)  # of a method
        buffers = owner.buffers() if isinstance(owner, torch.nn.Module) else ()
        with torch.no_grad():
            self._buffers = [(b, b.clone()) for b in buffers]
        self._random = torch.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._random)
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):  # by value: eager batch norm changes no version
                    buffer.copy_(value)


def name_of(target: Callable[..., Any]) -> str:
    return str(getattr(target, "__name__", type(target).__name__))


def _graph_breaks() -> tuple[int, int, int]:
    """What PyTorch could not do, where it broke a graph, and how many reasons it has told.

    Branches and loops are only in the first, what depends on data only in the last, where one break may be told twice.
    """
    counts = torch._dynamo.utils.counters
    return sum(counts["unimplemented"].values()), sum(counts["graph_break"].values()), len(graph_break_reasons)


def _breaks_since(before: tuple[int, int, int]) -> int:
    now = _graph_breaks()
    counted = max(now[0] - before[0], now[1] - before[1], 0)
    lines = {str(r.user_stack[-1]) for r in graph_break_reasons[before[2] :] if r.user_stack}
    return max(counted, len(lines))


class CompiledModule(torch.nn.Module):
    """A module that shares parameters, buffers, submodules and attributes with `original` and runs compiled.

    `isinstance` takes it for one of the original's class, since code that asks wants what such a module has.
    """

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

    @property  # type: ignore[misc]
    def __class__(self) -> type[torch.nn.Module]:  # type: ignore[override]
        original = self.__dict__.get("_gw_original")
        return CompiledModule if original is None else original.__class__

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
            original = self.__dict__["_gw_original"]
            return method(original, name, getattr(original, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if "_gw_original" in self.__dict__:
            setattr(self._gw_original, name, value)
        else:
            super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """For copies and pickles, which would make an object of the class that `__class__` tells."""
        return _blank, (), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_gw_call"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__["_gw_call"] = _Captured(self._gw_original, *self._gw_arguments)

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        return f"compiled {type(self.__dict__['_gw_original']).__name__}"


def _blank() -> CompiledModule:
    return CompiledModule.__new__(CompiledModule)
