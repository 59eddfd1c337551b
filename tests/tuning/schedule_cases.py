"""Schedules drawn at random, and functions over edges whose results they must not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from graphweave.core.errors import ScheduleError
from graphweave.core.schedule import EDGE_FORMATS, EDGE_ORDERS, ROW_ORDERS, VECTOR_BYTES, WALKS, Schedule
from tests.programs.graphs import EdgeList

Function = Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]

HEADS, WIDTH = 2, 4
"""Feature dimensions of the functions' arguments."""

_FIELDS: dict[str, Any] = {
    "walk": WALKS,
    "edge_format": EDGE_FORMATS,
    "row_order": ROW_ORDERS,
    "edge_order": EDGE_ORDERS,
    "source_partitions": (1, 2, 3, 50),
    "feature_tile": (1, 2, 4, 8, (1, 2), (2, 2), (1, 4)),
    "register_tile": (1, 2, 4),
    "rfactor": (4, 32),
    "vector_bytes": VECTOR_BYTES,
    "unroll": (1, 2, 5),
    "prefetch": (0, 1, 7),
    "product_tile": (1, 3, 16),
    "threads": (1, 2),
    "chunks": (1, 2, 5, 300),
}


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Legal schedules of the CPU. A field that contradicts one drawn before is left out."""
    made = Schedule()
    for name in draw(st.permutations(sorted(_FIELDS))):
        value = draw(st.sampled_from((None, *_FIELDS[name])))
        try:
            made = replace(made, **{name: value})
        except ScheduleError as error:
            assert "must be" in str(error) and "got" in str(error)
    return made


def taken(schedule: Schedule, make: Callable[[Schedule], Any]) -> tuple[Schedule, Any]:
    """The part of `schedule` that a function takes, and what `make` makes of it. Each refusal names its field and says
    why."""
    while True:
        try:
            return schedule, make(schedule)
        except ScheduleError as error:
            told = [name for name, value in schedule.given.items() if f"can take {name}={value!r}: " in str(error)]
            assert len(told) == 1, str(error)
            schedule = replace(schedule, **{told[0]: None})


def tensors(graph: EdgeList, seed: int = 0) -> dict[str, Tensor]:
    """Leaves of float64 that require gradients: rows of sources, of destinations, of edges, and weights."""
    generator = torch.Generator().manual_seed(seed)
    rows = {"u": graph.num_src, "v": graph.num_dst, "e": len(graph.src)}
    shapes: dict[str, tuple[int, ...]] = {name: (count, HEADS, WIDTH) for name, count in rows.items()}
    shapes |= {"a": (HEADS, WIDTH), "w": (HEADS * WIDTH, HEADS * WIDTH)}
    drawn = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    return {n: (2 * t).requires_grad_() for n, t in drawn.items()}


def _summed(t: dict[str, Tensor], message: Tensor, dst: Tensor) -> Tensor:
    return message.new_zeros(t["v"].shape[0], *message.shape[1:]).index_add(0, dst, message)


def copied(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """sum of u"""
    return _summed(t, t["u"][src], dst)


def weighted(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """sum of u e, with the mean of each head of e"""
    return _summed(t, t["u"][src] * t["e"].mean(2, keepdim=True), dst)


def difference(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """sum of tanh(u - v)"""
    return _summed(t, torch.tanh(t["u"][src] - t["v"][dst]), dst)


def largest(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """maximum of u + v, 0 where there is none"""
    message = t["u"][src] + t["v"][dst]
    rows = dst[:, None, None].expand_as(message)
    return message.new_zeros(t["v"].shape).scatter_reduce(0, rows, message, "amax", include_self=False)


def gaussian(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """sum of exp(-(u - v)^2) e"""
    return _summed(t, torch.exp(-((t["u"][src] - t["v"][dst]) ** 2)) * t["e"], dst)


def mlp(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """sum of relu((u * v) W) over all heads: a product on edges that no rule moves to nodes"""
    return _summed(t, torch.relu((t["u"][src] * t["v"][dst]).flatten(1) @ t["w"]), dst)


def dots(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """dot product of u and v for each head and edge"""
    return (t["u"][src] * t["v"][dst]).sum(2)


def attention(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """sum of softmax(a (u + v)) u over the edges of a node, for each head"""
    score = torch.nn.functional.leaky_relu(((t["u"][src] + t["v"][dst]) * t["a"]).sum(2))
    rows = dst[:, None].expand_as(score)
    top = score.new_full((t["v"].shape[0], HEADS), -torch.inf).scatter_reduce(0, rows, score.detach(), "amax")
    weight = torch.exp(score - top[dst])
    norm = _summed(t, weight, dst)
    return _summed(t, (weight / norm[dst])[:, :, None] * t["u"][src], dst)


FUNCTIONS: tuple[Function, ...] = (copied, weighted, difference, largest, gaussian, mlp, dots, attention)
