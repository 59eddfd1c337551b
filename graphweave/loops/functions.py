"""The functions of the language, for values of edges and nodes and for tensors (Hector, table 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from graphweave.loops.matmul import dot_prd, linear, outer_prod
from graphweave.loops.rowwise import of_tensors
from graphweave.loops.values import LoopValue, Operand

__all__ = ["dot_prd", "linear", "outer_prod"]


def _call(name: str, function: Callable[..., object], *args: object, **kwargs: object) -> object:
    anywhere = any(isinstance(x, LoopValue) for x in args)
    return LoopValue.answers[name](*args, **kwargs) if anywhere else function(*args, **kwargs)


def dot_prod(x: object, y: object) -> Operand:
    """`dot_prd`, which Hector's table 2 also spells this way."""
    return dot_prd(x, y)


def exp(x: Operand) -> Operand:
    """e^x, number by number."""
    return torch.exp(x)


def leakyrelu(x: Operand, negative_slope: float = 0.01) -> Operand:
    """x where it is positive, else negative_slope * x."""
    return functional.leaky_relu(x, negative_slope)


def relu(x: Operand) -> Operand:
    """x where it is positive, else 0."""
    return torch.relu(x)


def sigmoid(x: Operand) -> Operand:
    """1 / (1 + e^-x)."""
    return torch.sigmoid(x)


def tanh(x: Operand) -> Operand:
    """The hyperbolic tangent."""
    return torch.tanh(x)


def maximum(x: object, y: object) -> Operand:
    """The larger of two, number by number. n["m"] = maximum(n["m"], e["x"]) gathers; ties share the gradient evenly."""
    return _call("maximum", of_tensors(torch.maximum), x, y)


def minimum(x: object, y: object) -> Operand:
    """The smaller of two, number by number. n["m"] = minimum(n["m"], e["x"]) gathers, as `maximum` does."""
    return _call("minimum", of_tensors(torch.minimum), x, y)


def where(condition: object, x: object, y: object) -> Operand:
    """x where the condition holds, else y."""
    return _call("where", torch.where, condition, x, y)


def concat(parts: Sequence[Operand], dim: int = -1) -> Operand:
    """The features of all `parts`, one after the other along `dim`."""
    values = any(isinstance(x, LoopValue) for x in parts)
    return LoopValue.answers["cat"](parts, dim) if values else torch.cat(list(parts), dim)


def reshape(x: Operand, *sizes: object) -> Operand:
    """The features of each row in another shape: reshape(x, 4, -1)."""
    return x.reshape(*sizes)


def sum(x: Operand, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Operand:
    """The sum over all features, or over dim `dim`. A sum over edges is written n["x"] += e["x"]."""
    return torch.sum(x, dim=dim, keepdim=keepdim)


def mean(x: Operand, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Operand:
    """The mean over all features, or over dim `dim`."""
    return torch.mean(x, dim=dim, keepdim=keepdim)
