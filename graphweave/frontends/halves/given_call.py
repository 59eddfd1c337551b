"""A call of a function that was traced with all keys of its dictionaries: which keys it gives, which of its results
exist, and which of its inputs have a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.frontends.spellings.given_values import GivenValues


@dataclass(slots=True)
class GivenCall:
    """`given` has the flags of keys that are given, as the bits of a number, and `as_traced` says that all arguments
    are traced as they are. `existing` says of each result whether it exists, and `unreached` has the positions of the
    inputs without a gradient, once the compiled graph has been called."""

    given: int
    as_traced: bool = False
    existing: tuple[bool | None, ...] = ()
    unreached: frozenset[int] = frozenset()


_call: ContextVar[GivenCall | None] = ContextVar("_call", default=None)


@contextmanager
def in_call(call: GivenCall) -> Iterator[None]:
    """Within the block, compiled code checks what `call` gives, and notes which results exist."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def check_call_under_way(values: GivenValues) -> None:
    """Raise NotGiven, before anything is compiled, if the results of a graph need what the call does not give."""
    call = _call.get()
    if call is not None:
        values.existing(call.given)


def are_as_traced() -> bool:
    """Whether the arguments of the call under way are known to be traced as they are."""
    call = _call.get()
    return call is not None and call.as_traced


def unreached_inputs() -> frozenset[int]:
    """The positions of the inputs that have no gradient in the call under way."""
    call = _call.get()
    return frozenset() if call is None else call.unreached


def _detached(inputs: tuple[object, ...], positions: Iterable[int]) -> tuple[object, ...]:
    """The inputs, some of which autograd does not see: it would visit each of them to find that it has no gradient."""
    changed = list(inputs)
    for at in positions:
        value = changed[at]
        assert isinstance(value, Tensor)
        changed[at] = value.detach()
    return tuple(changed)


def checked(run: Callable[..., object], values: GivenValues) -> Callable[..., object]:
    """`run`, a compiled graph, which runs only if its results exist in the call: NotGiven is raised before. Inputs that
    no gradient reaches in the call get none, as in eager mode."""

    def with_check(*inputs: object) -> object:
        call = _call.get()
        if call is not None:
            call.existing = values.existing(call.given)
            call.unreached = values.gradients.unreached(call.given, call.existing)
            if call.unreached and torch.is_grad_enabled():
                inputs = _detached(inputs, call.unreached)
        return run(*inputs)

    return with_check
