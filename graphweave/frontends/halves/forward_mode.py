"""Derivatives in forward mode, which are not compiled: compiled code gives an error in place of a wrong result."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.autograd import forward_ad

from graphweave.core.errors import DerivativeError


def in_forward_mode() -> bool:
    """Whether derivatives are computed in forward mode, which Dynamo does not trace: `torch.autograd.forward_ad`, and
    what is built on it."""
    return forward_ad._current_level >= 0


def refuse_forward_mode(run: Callable[..., object], about: str) -> Callable[..., object]:
    """`run`, the compiled code of a graph, with an error in place of results without their tangents."""

    def checked(*args: object) -> object:
        if in_forward_mode() and any(isinstance(t, Tensor) and _has_tangent(t) for t in args):
            raise DerivativeError(
                f"derivatives of {about} in forward mode (torch.autograd.forward_ad) are not compiled. Use "
                "graphweave.compile, which runs the function eagerly there, or call it under "
                '`torch.compiler.set_stance("force_eager")`.'
            )
        return run(*args)

    return checked


def _has_tangent(t: Tensor) -> bool:
    return forward_ad.unpack_dual(t).tangent is not None
