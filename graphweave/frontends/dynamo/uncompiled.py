"""Reports by a warning and in `explain` the functions that run as plain PyTorch although a compiled object was
called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from graphweave.compiler.report import record_eager
from graphweave.core.counters import bump
from graphweave.core.log import warn_once


def inside_a_transform() -> bool:
    """Whether a transform of torch.func (grad, jacrev, vmap, jvp) is running, whose tensors Dynamo does not trace."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """Whether PyTorch traces a larger function, to compile or to export it, whose graph has what a compiled object
    computes."""
    return torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()


def runs_eagerly(why: str) -> None:
    """Count and report a call that runs eagerly. `why` also says what to do, and does not end in a full stop."""
    bump("eager_fallbacks")
    record_eager(why)
    warn_once(f"graphweave: {why}.")


def transformed(name: str) -> None:
    runs_eagerly(
        f"{name} runs eagerly inside of a transform of torch.func (grad, jacrev, vmap, ...). Compile the transformed "
        f"function instead: graphweave.compile(torch.func.grad(f)), with what is not compiled yet in f"
    )


def forwarded(name: str) -> None:
    runs_eagerly(
        f"{name} runs eagerly inside of torch.autograd.forward_ad, since derivatives in forward mode are not compiled. "
        "Take them in reverse mode (torch.autograd.grad), which is compiled"
    )


def method(original: nn.Module, name: str, value: object) -> object:
    """Attribute `name` of a compiled module's original.

    As in torch.compile, only the forward of a module is compiled, so any other method that is called with tensors
    reports that it runs eagerly.
    """
    if not isinstance(value, MethodType) or value.__self__ is not original or torch.compiler.is_dynamo_compiling():
        return value

    @functools.wraps(value)
    def eager(*args: object, **kwargs: object) -> object:
        if any(isinstance(x, Tensor) for x in tree_leaves((args, kwargs))):
            kind = type(original).__name__
            runs_eagerly(
                f"{name} of a compiled {kind} runs eagerly, since of a module its forward is compiled. Compile the "
                f"method, too: {name} = graphweave.compile(model.{name})"
            )
        return value(*args, **kwargs)

    eager._gw_method = value  # type: ignore[attr-defined]
    return eager


def what_is_meant(target: Callable[..., object]) -> Callable[..., Any]:
    """The function to compile: the original method if `target` is a method of a compiled module, else `target`."""
    meant: Callable[..., Any] = getattr(target, "_gw_method", target)
    return meant


def original_of(fn: Callable[..., object]) -> tuple[Callable[..., object], bool | None, Mapping[str, object] | None]:
    """The function or module that the user wrote, if `fn` is compiled, and the arguments `dynamic` and `options` with
    which it is compiled, or else the usual ones."""
    target = getattr(fn, "_gw_original", None) or getattr(fn, "_orig_mod", None) or fn
    dynamic, options, _ = getattr(fn, "_gw_arguments", (True, None, False))
    return target, dynamic, options
