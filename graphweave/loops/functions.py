"""The functions of the language, for values of edges and nodes and for tensors (Hector, table 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import exp, relu, sigmoid, tanh
from torch.nn import functional

from graphweave.loops.matmul import dot_prd, linear, outer_prod
from graphweave.loops.rowwise import of_tensors
from graphweave.loops.values import LoopValue

__all__ = ["dot_prd", "exp", "linear", "outer_prod", "relu", "sigmoid", "tanh"]


def _call(name: str, function: Any, *args: Any, **kwargs: Any) -> object:
    anywhere = any(isinstance(x, LoopValue) for x in args)
    return LoopValue.answers[name](*args, **kwargs) if anywhere else function(*args, **kwargs)


def dot_prod(x: object, y: object) -> Any:
    """`dot_prd`, which Hector's table 2 also spells this way."""
    return dot_prd(x, y)


def leakyrelu(x: Any, negative_slope: float = 0.01) -> Any:
    """x where it is positive, else negative_slope * x."""
    return functional.leaky_relu(x, negative_slope)


def maximum(x: object, y: object) -> Any:
    """The larger of two, number by number. n["m"] = maximum(n["m"], e["x"]) gathers; ties share the gradient evenly."""
    return _call("maximum", of_tensors(torch.maximum), x, y)


def minimum(x: object, y: object) -> Any:
    """The smaller of two, number by number. n["m"] = minimum(n["m"], e["x"]) gathers, as `maximum` does."""
    return _call("minimum", of_tensors(torch.minimum), x, y)


def where(condition: object, x: object, y: object) -> Any:
    """x where the condition holds, else y."""
    return _call("where", torch.where, condition, x, y)


def concat(parts: Sequence[Any], dim: int = -1) -> Any:
    """The features of all `parts`, one after the other along `dim`."""
    values = any(isinstance(x, LoopValue) for x in parts)
    return LoopValue.answers["cat"](parts, dim) if values else torch.cat(list(parts), dim)


def reshape(x: Any, *sizes: object) -> Any:
    """The features of each row in another shape: reshape(x, 4, -1)."""
    return x.reshape(*sizes)


def sum(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The sum over all features, or over dim `dim`. A sum over edges is written n["x"] += e["x"]."""
    return torch.sum(x, dim=dim, keepdim=keepdim)


def mean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The mean over all features, or over dim `dim`."""
    return torch.mean(x, dim=dim, keepdim=keepdim)
