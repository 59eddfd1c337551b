"""The cost model of schedules: about how long a kernel takes, by the bytes it moves and the caches they come from.

Gathered rows cost most. A row of r bytes lies in ceil(r / 64) lines, and each comes from the smallest cache that holds
all rows which are gathered together: those of one range of sources and one tile of features. More tiles go through the
indices more often, more ranges write and fold more partial results. The times below are rough values for a server's
processor, not measured ones: the model only decides what is measured first, and what is not measured at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from graphweave.analysis.cones import map_type, type_of
from graphweave.analysis.statistics import Statistics
from graphweave.analysis.work import BANDWIDTH, VECTOR_RATE
from graphweave.compiler.plan import KernelPlan, Plan
from graphweave.core.schedule import Schedule
from graphweave.ir.loop.nodes import Role
from graphweave.ir.message.infer import numel
from graphweave.lower.parameters import Column, NodeTensor
from graphweave.lower.scheduled import walks_edges
from graphweave.tuning.machine import Caches

LINE = 64
"""Bytes of a line of a cache."""

_SECOND, _LAST, _MEMORY = 1.2e-9, 3e-9, 9e-9
"""Seconds to gather a line from a core's second-level cache, from the last cache, and from memory."""

_UNFETCHED = 1.6
"""Factor of lines from beyond the second-level cache where nothing is prefetched."""

_STEP = 0.8e-9
"""Seconds that an edge takes besides its rows: its index, and the loop."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A kernel that walks edges: the rows that it computes, its `edges`, the rows that edges gather and their bytes,
    the bytes of results for a row, the bytes that it streams, and the width of its results in numbers."""

    rows: int
    edges: int
    sources: int
    gathered: int
    result: int
    streamed: int
    width: int


def walk_of(plan: Plan, kernel: KernelPlan, statistics: Statistics) -> Walk | None:
    """The edges that a kernel walks; None if it walks no edges."""
    m = kernel.lowered.map
    if m is None or not walks_edges(kernel.lowered.kernel):
        return None
    along = map_type(plan.program, m)
    ends = [
        map_type(plan.program, b.other).cod for b in kernel.lowered.bindings if isinstance(b, Column) and b.map == m
    ]
    gathered = result = streamed = width = 0
    for buffer, b in zip(kernel.lowered.kernel.buffers, kernel.lowered.bindings, strict=True):
        if not isinstance(b, NodeTensor):
            continue
        t = type_of(plan.program, b.ref)
        size = numel(t.shape) * t.dtype.itemsize
        writes = buffer.role in (Role.output, Role.total)
        if t.space in ends and not writes:
            gathered += size
        else:
            streamed += size * statistics.rows(t.space)
        if writes:
            width = max(width, numel(t.shape))
            result += size if t.space == along.cod else 0
    sources = max((statistics.rows(s) for s in ends), default=0) if gathered else 0
    return Walk(
        statistics.rows(along.cod), statistics.rows(along.dom), sources, gathered, result, streamed, max(width, 1)
    )


def walks_of(plan: Plan, statistics: Statistics) -> tuple[Walk, ...]:
    """The edges that the kernels of a plan walk, or those of its kernels whose schedule is sought by name."""
    by_name, kernels = plan.options.schedules, list(plan.kernels.values())
    if by_name is not None:
        kernels = [k for k in kernels if by_name.seeks(k.name, k.lines(plan.program))]
    found = (walk_of(plan, kernel, statistics) for kernel in kernels)
    return tuple(walk for walk in found if walk is not None)


def predicted(walks: Iterable[Walk], schedule: Schedule, caches: Caches, threads: int) -> float:
    """Seconds that the kernels take by `schedule`, on so many threads."""
    return sum(_seconds(walk, schedule, caches) for walk in walks) / threads


def _seconds(walk: Walk, schedule: Schedule, caches: Caches) -> float:
    passes = walk.width // tile if (tile := _tile(schedule.feature_tile)) and walk.width % tile == 0 else 1
    inner = walk.width // passes // schedule.register_tile if schedule.register_tile else 1
    ranges = schedule.source_partitions or 1
    seconds = passes * max(1, inner) * walk.edges * _STEP + walk.streamed / BANDWIDTH
    seconds += walk.edges * walk.width / VECTOR_RATE
    if walk.gathered:
        together = walk.gathered / passes
        lines = math.ceil(together / LINE) * passes
        seconds += walk.edges * lines * _line(walk.sources * together / ranges, schedule, caches)
    if schedule.in_pieces:
        pieces = min(walk.edges, walk.rows * ranges)
        seconds += 3 * pieces * walk.result / BANDWIDTH + passes * pieces * _STEP
    return seconds


def _line(bytes_together: float, schedule: Schedule, caches: Caches) -> float:
    """Seconds of a line out of rows that have so many bytes together: shares of them come from each cache."""
    if bytes_together <= caches.second:
        return _SECOND
    far = _UNFETCHED if schedule.prefetch == 0 else 1.0
    if bytes_together <= caches.last:
        return _LAST * far
    share = caches.last / bytes_together
    return (share * _LAST + (1 - share) * _MEMORY) * far


def _tile(tile: int | tuple[int, ...] | None) -> int | None:
    return math.prod(tile) if isinstance(tile, tuple) else tile


def rows_at_ends(walks: Iterable[Walk]) -> int:
    """Bytes of the largest set of rows that a kernel gathers."""
    return max((walk.sources * walk.gathered for walk in walks), default=0)
