"""Functions that layers share: features of both ends of edges, scaling of nodes by degrees, initial weights."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph

Feat = Tensor | tuple[Tensor, Tensor]
"""Features of all nodes [N, F], or of sources and destinations ([N_src, F_src], [N_dst, F_dst])."""

Attended: TypeAlias = Tensor | tuple[Tensor | None, ...]
"""The result of a layer, or a tuple of the result and of the attention that was asked for."""

Width = int | tuple[int, int]
"""A number of features: one for both ends, or a pair (of sources, of destinations)."""


def both_ends(feat: Feat, graph: Graph) -> tuple[Tensor, Tensor]:
    """(features of sources, features of destinations). Both are the same tensor if `feat` is one tensor, or, in a
    block, the first rows of the sources, which are its destinations."""
    if isinstance(feat, tuple):
        return feat
    return feat, feat[: graph.num_dst_nodes()] if getattr(graph, "is_block", False) else feat


def both_widths(width: Width) -> tuple[int, int]:
    return width if isinstance(width, tuple) else (width, width)


def inverse_power(degrees: Tensor, power: float, dtype: torch.dtype) -> Tensor:
    """1 / max(degree, 1)^power, [N]."""
    exact = torch.promote_types(dtype, torch.float32)  # float16 holds integers exactly only up to 2048
    return degrees.clamp(min=1).to(exact).pow(-power).to(dtype)


def on_rows(factor: Tensor, x: Tensor) -> Tensor:
    """`factor` [N], reshaped to multiply the rows of `x` [N, ...].

    Layers scale nodes, not edges, by degrees, because the compiler can move a factor of nodes out of sums over edges,
    and to the narrower side of a product.
    """
    for _ in x.shape[1:]:
        factor = factor.unsqueeze(-1)
    return factor


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise DataError(f"{name} must be one of {', '.join(map(repr, choices))} (got {value!r}). Pass one of these.")
    return value


def reset_glorot(layer: nn.Module, *attention: Tensor) -> None:
    """Draw the weights of the linear children of `layer`, and `attention`, from Glorot's normal distribution with the
    gain of a ReLU, and set the children's biases to 0."""
    gain = nn.init.calculate_gain("relu")
    for child in layer.children():
        if isinstance(child, nn.Linear):
            nn.init.xavier_normal_(child.weight, gain=gain)
            if child.bias is not None:
                nn.init.zeros_(child.bias)
    for vector in attention:
        nn.init.xavier_normal_(vector, gain=gain)
