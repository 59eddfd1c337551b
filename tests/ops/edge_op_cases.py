"""Functions of one's own on edges, and dense references of operators on edges: edge by edge, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.graphs import EdgeList

F, HEADS = 6, 2


def row_of(x: Any, i: int) -> Any:
    """Row i of a tensor, or of each tensor of a dict, as one row."""
    if x is None:
        return None
    return {name: t[i : i + 1] for name, t in x.items()} if isinstance(x, Mapping) else x[i : i + 1]


def by_edge(edges: EdgeList, function: Callable[..., Tensor], src: Any, dst: Any, edge: Any) -> list[Tensor]:
    """The results of `function` for each edge by itself, without the dim of rows."""
    ends = zip(edges.src.tolist(), edges.dst.tolist(), strict=True)
    return [function(row_of(src, u), row_of(dst, v), row_of(edge, e))[0] for e, (u, v) in enumerate(ends)]


def received(edges: EdgeList, values: list[Tensor]) -> list[list[Tensor]]:
    out: list[list[Tensor]] = [[] for _ in range(edges.num_dst)]
    for value, v in zip(values, edges.dst.tolist(), strict=True):
        out[v].append(value)
    return out


def folded(values: list[Tensor], reduce: Any) -> Tensor:
    """Folds the values of one destination, which has at least one."""
    if isinstance(reduce, tuple):
        combine, _ = reduce
        total = values[0][None]
        for value in values[1:]:
            total = combine(total, value[None])
        return total[0]
    stacked = torch.stack(values)
    by_name: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0), "min": lambda x: x.amin(0),
        "prod": lambda x: x.prod(0),
    }  # fmt: skip
    return by_name[reduce](stacked)


def dense_spmm(
    edges: EdgeList, message: Callable[..., Tensor], reduce: Any, shape: tuple[int, ...], src: Any = None,
    dst: Any = None, edge: Any = None,
) -> Tensor:  # fmt: skip
    """The definition of `spmm`; `shape` is that of one message."""
    nothing = reduce[1] if isinstance(reduce, tuple) else 1.0 if reduce == "prod" else 0.0
    rows = [
        folded(values, reduce) if values else torch.full(shape, nothing, dtype=torch.float64)
        for values in received(edges, by_edge(edges, message, src, dst, edge))
    ]
    return torch.stack(rows) if rows else torch.zeros(0, *shape, dtype=torch.float64)


def dense_sddmm(
    edges: EdgeList, function: Callable[..., Tensor], shape: tuple[int, ...], src: Any, dst: Any, edge: Any
) -> Tensor:
    values = by_edge(edges, function, src, dst, edge)
    return torch.stack(values) if values else torch.zeros(0, *shape, dtype=torch.float64)


def dense_attend(
    edges: EdgeList, score: Callable[..., Tensor], value: Callable[..., Tensor], shape: tuple[int, ...],
    src: Any, dst: Any, edge: Any,
) -> Tensor:  # fmt: skip
    scores = received(edges, by_edge(edges, score, src, dst, edge))
    values = received(edges, by_edge(edges, value, src, dst, edge))
    rows = []
    for s, v in zip(scores, values, strict=True):
        if not s:
            rows.append(torch.zeros(shape, dtype=torch.float64))
            continue
        weights = torch.softmax(torch.stack(s), 0)
        while weights.dim() < 1 + len(shape):
            weights = weights.unsqueeze(-1)
        rows.append((weights * torch.stack(v)).sum(0))
    return torch.stack(rows) if rows else torch.zeros(0, *shape, dtype=torch.float64)


# ---------------------------------------------------------------- user-defined functions


@dataclass(frozen=True)
class Own:
    """`make` gives the function, of the weights that it closes over, and what it returns a row; `reduce` of `spmm`,
    None for `sddmm`."""

    make: Callable[[nn.Module], Callable[..., Tensor]]
    shape: tuple[int, ...]
    reduce: Any = "sum"
    weights: Callable[[], nn.Module] = nn.Identity


class _Weights(nn.Module):
    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(11)
        drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) * 0.5 for shape in shapes]
        self.w = nn.ParameterList(drawn)


def _mlp(m: Any) -> Callable[..., Tensor]:
    return lambda src, dst, edge: torch.relu((src["h"] + dst["h"]) @ m.w[0])


def _edge_conditioned(m: Any) -> Callable[..., Tensor]:
    return lambda src, dst, edge: torch.einsum("nf,nfj->nj", src["h"], (edge["x"] @ m.w[0]).view(-1, F, 3))


def _gaussian(m: Any) -> Callable[..., Tensor]:
    def message(src: Any, dst: Any, edge: Any) -> Tensor:
        gap = ((src["h"] - dst["h"]) ** 2).sum(-1, keepdim=True)
        return torch.exp(-gap / (2 * m.w[0].exp() ** 2)) * src["h"]

    return message


def _complex(m: Any) -> Callable[..., Tensor]:
    def message(src: Any, dst: Any, edge: Any) -> Tensor:
        (a, b), (c, d) = src["h"].chunk(2, -1), edge["h"].chunk(2, -1)
        return torch.cat([a * c - b * d, a * d + b * c], -1)

    return message


def _gated(m: Any) -> Callable[..., Tensor]:
    return lambda src, dst, edge: torch.sigmoid(src["h"] @ m.w[0] + dst["h"] @ m.w[1] + edge["h"]) * src["h"]


OWN: dict[str, Own] = {
    "mlp": Own(_mlp, (4,), "max", lambda: _Weights((F, 4))),
    "edge_conditioned": Own(_edge_conditioned, (3,), "mean", lambda: _Weights((2, F * 3))),
    "gaussian": Own(_gaussian, (F,), "sum", lambda: _Weights(())),
    "max_plus": Own(lambda m: lambda src, dst, edge: src["h"] + edge["s"][:, None], (F,), "max"),
    "min_plus": Own(lambda m: lambda src, dst, edge: src["h"] + edge["s"][:, None], (F,), "min"),
    "log_sum_exp": Own(lambda m: lambda src, dst, edge: src["h"] * edge["h"], (F,), (torch.logaddexp, -torch.inf)),
    "complex_product": Own(_complex, (F,)),
    "gated": Own(_gated, (F,), "sum", lambda: _Weights((F, F), (F, F))),
    "residual_relu": Own(lambda m: lambda src, dst, edge: torch.relu(src["h"] + edge["h"]), (F,)),
    "tanh_of_difference": Own(lambda m: lambda src, dst, edge: torch.tanh(src["h"] - dst["h"]), (F,)),
    "noisy_or": Own(lambda m: lambda src, dst, edge: 1 - torch.sigmoid(src["h"] * edge["h"]), (F,), "prod"),
    "outer_product": Own(lambda m: lambda src, dst, edge: src["h"][:, :, None] * edge["x"][:, None, :], (F, 2)),
    "cosine": Own(
        lambda m: lambda src, dst, edge: functional.cosine_similarity(src["h"], dst["h"], dim=-1), (), None
    ),
    "bilinear": Own(
        lambda m: lambda src, dst, edge: torch.einsum("nf,fg,ng->n", src["h"], m.w[0], dst["h"]), (), None,
        lambda: _Weights((F, F)),
    ),
    "distance": Own(lambda m: lambda src, dst, edge: (src["h"] - dst["h"]).abs().sum(-1) * edge["s"], (), None),
}  # fmt: skip
"""Functions that read `src` and `dst` {"h": [rows, F]} and `edge` {"h": [E, F], "x": [E, 2], "s": [E]}."""


def _heads(x: Tensor) -> Tensor:
    return x.view(-1, HEADS, F // HEADS)


def _gatv2(m: Any) -> Callable[..., Tensor]:
    def score(src: Any, dst: Any, edge: Any) -> Tensor:
        return (functional.leaky_relu(_heads(src["h"] + dst["h"] + edge["h"]), 0.2) * m.w[0]).sum(-1)

    return score


SCORES: dict[str, tuple[Callable[[nn.Module], Callable[..., Tensor]], Callable[[], nn.Module]]] = {
    "dot": (lambda m: lambda src, dst, edge: (_heads(src["h"]) * _heads(dst["h"])).sum(-1) / 3**0.5, nn.Identity),
    "dot_and_bias": (
        lambda m: lambda src, dst, edge: (_heads(src["h"]) * _heads(dst["h"])).sum(-1) + edge["x"], nn.Identity,
    ),
    "gatv2": (_gatv2, lambda: _Weights((HEADS, F // HEADS))),
}  # fmt: skip
"""Score functions for `attend`, which return [E, heads]."""


def heads_of_source(src: Any, dst: Any, edge: Any) -> Tensor:
    """The value of `attend`, [E, heads, F / heads]."""
    return _heads(src["h"])


def data(edges: EdgeList, seed: int = 5) -> tuple[Tensor, ...]:
    """Leaves for `OWN`: h of sources, h of destinations, h, x and s of edges."""
    generator = torch.Generator().manual_seed(seed)
    count = edges.src.shape[0]
    shapes = ((edges.num_src, F), (edges.num_dst, F), (count, F), (count, 2), (count,))
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


def packed(src: Tensor, dst: Tensor, h: Tensor, x: Tensor, s: Tensor) -> dict[str, dict[str, Tensor]]:
    return {"src": {"h": src}, "dst": {"h": dst}, "edge": {"h": h, "x": x, "s": s}}
