"""`relabel="auto"`: whether an order of nodes in which neighbours lie near each other pays, by measuring the graph.

Two things are measured. The *fresh share* of a graph's edges in an order is the share of gathered rows that are not in
the last cache any more (`core/locality.py`). The price of such a row is measured on this machine. So the seconds that
a step gains are known before and after the order was made, and it is made only if its making may pay for itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.analysis.cones import type_of
from graphweave.analysis.facts import Facts
from graphweave.core.locality import RowOrder, fresh_share, places_of
from graphweave.core.log import logger
from graphweave.core.types import Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.tuning.machine import caches
from graphweave.tuning.predict import LINE

_log = logger(__name__)

STEPS = 10
"""Steps in which an order has to pay for its making."""

ORDER_SECONDS = 1.5e-7
"""About what making the order takes for each edge. It is measured once the order is made."""

_PROBES = 100_000
"""Rows that are gathered to measure what a row from memory costs."""

_PROBE_LINES = 4


@dataclass(frozen=True, slots=True)
class _Gather:
    """Edges walk rows of `walked`, an index of each edge's row, and gather `lines` lines of a row named by `index`."""

    index: Tensor
    walked: Tensor
    num_rows: int
    row_bytes: int

    @property
    def lines(self) -> int:
        return math.ceil(self.row_bytes / LINE)

    def fresh(self, place: Tensor | None) -> float:
        """The share of gathers that leave the last cache, of which each thread has a part."""
        held = caches().last // torch.get_num_threads() // self.row_bytes
        index, walked = (t if place is None else place[t] for t in (self.index, self.walked))
        return fresh_share(walked, index, self.num_rows, held)


class OrderThatPays:
    """`chosen(program, ends)` is an order of nodes, or None, and the reason in words.

    `ends` has two maps of the same edges for each space that may be put into an order. `value` gives tensors that
    depend on the graph alone, None if they are not known. The graph is that of the first call.
    """

    def __init__(self, value: Callable[[Facts, ir.Ref], Tensor | None], rows: Mapping[Space, int]) -> None:
        self._value, self._rows = value, rows

    def __call__(self, program: ir.Program, ends: Mapping[Space, tuple[ir.Ref, ir.Ref]]) -> tuple[RowOrder | None, str]:
        with unset_fake_temporarily(), torch.no_grad():
            chosen, why = self._chosen(program, ends)
        _log.info("%s: %s", "nodes stay in their order" if chosen is None else f"nodes in the order {chosen!r}", why)
        return chosen, why

    def _chosen(self, program: ir.Program, ends: Mapping[Space, tuple[ir.Ref, ir.Ref]]) -> tuple[RowOrder | None, str]:
        facts = Facts(program)
        gains, cost = 0.0, 0.0
        for space, pair in ends.items():
            edges = self._edges(facts, space, pair)
            gathers = [] if edges is None else list(self._gathers(program, space, dict(zip(pair, edges, strict=True))))
            if edges is None or not gathers:
                continue
            before, count = [g.fresh(None) for g in gathers], edges[0].numel()
            most = sum(b * g.lines for b, g in zip(before, gathers, strict=True)) * count * seconds_a_line()
            if most * STEPS < count * ORDER_SECONDS:
                return None, (
                    f"at most {1e3 * most:.1f} ms of a step are spent on rows from beyond the caches, and making one"
                    f" takes about {count * ORDER_SECONDS:.2f} s"
                )
            begun = time.perf_counter()
            place = places_of(*edges, self._rows[space], "locality", keep=True)
            cost += time.perf_counter() - begun
            after = [g.fresh(place) for g in gathers]
            saved = sum((b - a) * g.lines for b, a, g in zip(before, after, gathers, strict=True)) * count
            gains += (saved - self._moved_lines(program, space)) * seconds_a_line()
        if not cost:
            return None, "the rows that edges gather fit into the caches"
        words = f"by locality gains about {1e3 * gains:.1f} ms a step, and takes {cost:.2f} s to make"
        return ("locality" if gains * STEPS > cost else None), words

    def _edges(self, facts: Facts, space: Space, pair: tuple[ir.Ref, ir.Ref]) -> tuple[Tensor, Tensor] | None:
        """Both ends of the edges; None if they are not known, or name rows that do not exist."""
        found, num_rows = [], self._rows.get(space)
        for m in pair:
            node = facts.program.nodes[m]
            index = self._value(facts, node.index) if isinstance(node, ir.MapOf) else None
            if index is None or num_rows is None or not _names_rows(index, num_rows):
                return None
            found.append(index)
        return found[0], found[1]

    def _gathers(self, program: ir.Program, space: Space, ends: Mapping[ir.Ref, Tensor]) -> Iterator[_Gather]:
        """The pulls of rows of `space` along either map whose rows do not fit into the last cache together."""
        num_rows = self._rows[space]
        for node in dict.fromkeys(n for n in program.nodes if isinstance(n, ir.Pull) and n.map in ends):
            t = type_of(program, node.x)
            row_bytes = numel(t.shape) * t.dtype.itemsize
            if t.space == space and num_rows * row_bytes > caches().last:
                walked = next(index for m, index in ends.items() if m != node.map)
                yield _Gather(ends[node.map], walked, num_rows, row_bytes)

    def _moved_lines(self, program: ir.Program, space: Space) -> int:
        """Lines of results and of gradients that come in, which are put into another order at each step, and lines of
        inputs, which are read once more to see whether they have changed."""
        results = [r for r in program.outputs if r is not None]
        inputs = [r for r, node in enumerate(program.nodes) if isinstance(node, ir.Input)]
        types = [t for r in (*results, *results, *inputs) if isinstance(t := program.types[r], ir.Type)]
        return sum(
            self._rows[space] * math.ceil(numel(t.shape) * t.dtype.itemsize / LINE) for t in types if t.space == space
        )


def _names_rows(index: Tensor, num_rows: int) -> bool:
    """Whether there are indices, and all of them name rows."""
    return bool(index.numel()) and int(index.min()) >= -num_rows and int(index.max()) < num_rows


@lru_cache(maxsize=1)
def seconds_a_line() -> float:
    """How much longer this machine takes to gather a line of a row from memory than from a cache, on all threads."""
    row = _PROBE_LINES * LINE // 4
    rows = 4 * caches().last // (_PROBE_LINES * LINE)
    x, out = torch.zeros(rows, row), torch.empty(_PROBES, row)
    generator = torch.Generator().manual_seed(0)
    near = max(1, caches().second // 2 // (_PROBE_LINES * LINE))
    taken = []
    for among in (rows, near):
        index = torch.randint(among, (_PROBES,), generator=generator)
        taken.append(min(_seconds(lambda index=index: torch.index_select(x, 0, index, out=out)) for _ in range(5)))  # type: ignore[misc]
    return max(0.0, taken[0] - taken[1]) / (_PROBES * _PROBE_LINES)


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
