"""`graphweave.compile`: torch.compile with this backend and the capture settings that message passing needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch

from graphweave.core.choices import OPTIONS
from graphweave.core.errors import SettingsError
from graphweave.core.settings import settings
from graphweave.frontends.dynamo.compiled_module import CompiledModule
from graphweave.frontends.dynamo.loaded_later import LoadedLater
from graphweave.frontends.dynamo.mode import with_mode
from graphweave.frontends.dynamo.uncompiled import what_is_meant
from graphweave.runtime import early

T = TypeVar("T", bound=Callable[..., Any])


@overload
def compile(
    model: T, *, fullgraph: bool = ..., dynamic: bool | None = ..., backend: str = ..., mode: str | None = ...,
    options: Mapping[str, object] | None = ..., disable: bool = ..., background: bool = ...,
) -> T: ...  # fmt: skip


@overload
def compile(
    model: None = None, *, fullgraph: bool = ..., dynamic: bool | None = ..., backend: str = ...,
    mode: str | None = ..., options: Mapping[str, object] | None = ..., disable: bool = ..., background: bool = ...,
) -> Callable[[T], T]: ...  # fmt: skip


def compile(
    model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = True, backend: str = "graphweave",
    mode: str | None = None, options: Mapping[str, object] | None = None, disable: bool = False,
    background: bool = False, **unknown: object,
) -> Any:  # fmt: skip
    """Compile `model`, a module or function, so that it runs as fused kernels, forward and backward.

    A module keeps its parameters, state_dict keys and class-specific attributes: the result shares them with `model`.
    One compilation serves graphs of any size (`dynamic=True`); feature sizes are compiled in. Code that cannot be
    captured becomes a graph break, and code that cannot be compiled runs as PyTorch calls; `graphweave.counters()`
    counts them, and `graphweave.explain` says why.

    The arguments are those of `torch.compile`, with the same meaning. Without `model` the result is a decorator. With
    `fullgraph=True` an error is raised in place of a graph break or an eager call. `backend` can only be "graphweave".
    `disable=True` returns `model` as it is.

    With `background=True` no call waits for the compiler: calls run as PyTorch's own while a thread compiles, and
    change over between two calls. Results differ then by rounding, at a time that is not repeatable (docs/training.md).
    `graphweave.ready` waits for the thread.

    `options`: `verify=True` runs the captured graph, and a slow reference of every kernel, with each call and raises
    VerifyError where results, gradients, or strides and memory that a result promises differ.
    `recompute` says what the backward computes again instead of keeping it from the forward. With "auto" it recomputes
    values on edges that cost O(1) operations an element, so that no value of edges x features is kept. With "never" it
    recomputes nothing, as in eager mode. With "sums" it also takes sums over edges that only it needs, which "auto"
    leaves to the forward. With "always" it recomputes everything on nodes and edges but matrix products and calls left
    to PyTorch, which takes the most time.
    `chunks=True` runs chains of row-wise work, such as the two products of an MLP, for chunks of rows, so that wide
    rows between them never exist for all nodes; the backward computes them again.
    `saved="bfloat16"` rounds wide float32 rows that wait for the backward, "auto" only where `memory` needs it.
    `memory` is the budget of a step, in bytes or as "2G" (docs/switches.md).
    `mode="reduce-overhead"`, or the option `cuda_graphs=True`, replays calls on a CUDA device as CUDA graphs: the third
    call on a graph of the same sizes is captured, later ones copy their arguments, replay, and copy the results
    (`execute/cuda_graph.py`). It does nothing for tensors on the CPU. `mode="default"` is the same as None.
    `unseen_edits=False` leaves out the check at each call for edits of an index tensor that PyTorch does not see, such
    as edits through NumPy (`runtime/unseen_edits.py`).
    `schedule`, a `graphweave.Schedule`, says how kernels walk edges and features, in place of the compiler's choice
    (docs/schedules.md); the first call raises ScheduleError if no kernel can take one of its fields. A dict gives one
    to the kernels of a line ("model.py:12"), to a half ("backward") or to a kernel ("forward_0"). `"tune"` measures
    candidates in the first call, for at most `budget` seconds (60) a captured graph, and takes the best; see
    `graphweave.tune`.
    Raises SettingsError for an unknown option or mode and for a value that it cannot have, TypeError for an unknown
    argument, for a class, and for an object that is not callable. Calls raise IndexRangeError (an IndexError) if an
    index is out of range.
    """
    _check_arguments(fullgraph, dynamic, backend, disable, background, unknown)
    given = {"fullgraph": fullgraph, "dynamic": dynamic, "mode": mode, "options": options, "disable": disable,
             "background": background}  # fmt: skip
    if model is None:
        _check_options(with_mode(mode, options))
        return functools.partial(compile, **given)
    _check_model(model)
    settings()  # refuses an unusable environment variable here, not in the middle of a compilation
    if disable:
        return model
    model = what_is_meant(model)
    options = with_mode(mode, options)
    _check_options(options)
    early.begin_on_new_machine()
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, dynamic, options, fullgraph, background)
    call = LoadedLater(model, dynamic, options, fullgraph, background)

    @functools.wraps(model)
    def compiled(*args: object, **kwargs: object) -> object:
        return call(*args, **kwargs)

    compiled._gw_original = model  # type: ignore[attr-defined]
    compiled._gw_call = call  # type: ignore[attr-defined]
    compiled._gw_arguments = (dynamic, options, fullgraph)  # type: ignore[attr-defined]
    return compiled


def _check_options(options: Mapping[str, object]) -> None:
    """SettingsError for an unknown option, and for a value that an option cannot have."""
    if options:
        from graphweave.frontends.dynamo.captured_request import checked_choices

        checked_choices(options)


def _check_model(model: object) -> None:
    """TypeError for a class, and for an object that is not callable."""
    if isinstance(model, type):
        raise TypeError(
            f"graphweave.compile: {model.__name__} is a class; expected a module or a function. Make an object first: "
            f"graphweave.compile({model.__name__}(...))."
        )
    if not callable(model):
        raise TypeError(
            f"graphweave.compile: {model!r} cannot be called; expected a module or a function (got a "
            f"{type(model).__name__}). Pass the model itself."
        )


def _check_arguments(
    fullgraph: object,
    dynamic: object,
    backend: object,
    disable: object,
    background: object,
    unknown: Mapping[str, object],
) -> None:
    """SettingsError for values that arguments cannot have, TypeError for unknown arguments."""
    for name, value in unknown.items():
        if name in OPTIONS:
            raise TypeError(
                f"graphweave.compile: {name!r} is an option, not an argument (got {name}={value!r}). Pass "
                f"options={{{name!r}: {value!r}}}."
            )
        raise TypeError(
            f"graphweave.compile: unknown argument {name!r} (got {name}={value!r}); there are fullgraph, dynamic, "
            f"backend, mode, options, disable and background. Pass one of these."
        )
    if backend != "graphweave":
        raise SettingsError(
            f"backend must be 'graphweave' (got {backend!r}). Leave it out, or call torch.compile for another backend."
        )
    for name, value in {"fullgraph": fullgraph, "disable": disable, "background": background}.items():
        if value not in (True, False):
            raise SettingsError(f"{name} must be True or False (got {value!r}). Pass one of these.")
    if dynamic not in (None, True, False):
        raise SettingsError(f"dynamic must be True, False or None (got {dynamic!r}). Pass one of these.")
