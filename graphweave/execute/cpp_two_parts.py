"""A kernel in two parts, one of which runs while rows travel between ranks.

Rows that no halo row is needed for are computed while halo rows come, the others once they are there. Of rows that are
sent back to their owners, the halo rows are computed first, and the own rows while those travel. Parts number the rows
that read nothing of others first, so both are stretches of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.ranks import LinkName, halo_rows
from graphweave.execute.cpp_step import NONE_SENT, CppStep, OnGraph
from graphweave.ir.loop.interp import FOLDS
from graphweave.ir.message.nodes import Ref
from graphweave.ir.tape.nodes import Late
from graphweave.runtime.edge_subsets import first_reaching
from graphweave.runtime.threads import num_threads


class CppTwoParts:
    """`parts(rows, indices, inputs) -> (*outputs, finish)` runs one part of a step; `finish()` runs the other.

    With `late` values, the first part has the rows before the first one that reads a halo row. With `back`, a link, it
    has the halo rows, which are the last of the step's rows. Outputs in `sent` have memory for the halo rows, too.
    """

    def __init__(
        self, step: CppStep, late: Sequence[Late] = (), back: LinkName | None = None,
        sent: Mapping[Ref, LinkName] = NONE_SENT,
    ) -> None:  # fmt: skip
        self.step, self._back, self._sent = step, back, sent
        self._late = tuple({(one.map, one.link): one for one in late}.values())
        self._last: tuple[Any, ...] = (None, None, None)

    def __call__(self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[object]:
        step = self.step
        outputs = step.make_outputs(rows, self._sent)
        held = [t if t.is_contiguous() else t.contiguous() for t in inputs]
        there = step.on_graph(rows, indices)
        long = there.long
        before, after = self._cut(there.chunks, self._row(rows, indices))
        first, second = (before, after) if self._back is None else (after, before)
        long_first = self._back is not None
        run = _Runs(step, there, outputs, step.addresses(there, held, outputs))
        whole = long is not None and long.is_all

        def divide() -> None:
            if long is not None and there.divided is not None:
                there.divided(long, run.ptrs, {b.name: outputs[i] for b, i in step._totals})

        if not whole:
            run(first)
        if long_first:
            run.settle()
            divide()

        bump("overlapped_kernels")

        def finish(alive: tuple[list[Tensor], OnGraph] = (held, there)) -> None:
            if not whole or step._totals:
                run(second if not whole else there.chunks)
            run.settle()
            if not long_first:
                divide()
            step._finish(rows, indices, outputs)

        return [*outputs, finish]

    def _row(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> int:
        """The row that divides the parts."""
        if self._back is not None:
            return rows[0] - halo_rows(self._back)
        step, row = self.step, rows[0]
        walked = step.plan.lowered.map
        assert walked is not None
        with step._indices(rows, indices) as index:
            for one in self._late:
                own = rows[step.spaces.index(one.space)] - halo_rows(one.link)
                wide = step._is_wide(rows, [index[m].values for m in step.maps])
                row = min(row, first_reaching(index[walked], own, index[one.map], wide))
        return row

    def _cut(self, chunks: Tensor, row: int) -> tuple[Tensor, Tensor]:
        """The chunks before and after a row, remembered for the last ones."""
        if self._last[0] is not chunks or self._last[1] != row:
            self._last = chunks, row, cut(chunks, row)
        found: tuple[Tensor, Tensor] = self._last[2]
        return found


class _Runs:
    """Runs a kernel on some chunks after others. Its totals are folded over all runs."""

    def __init__(self, step: CppStep, there: OnGraph, outputs: list[Tensor], ptrs: list[int]) -> None:
        self._step, self._there, self._outputs, self.ptrs = step, there, outputs, ptrs
        self._totals: list[list[Tensor]] = []

    def __call__(self, chunks: Tensor) -> None:
        self._there.kernel(self.ptrs, self._there.sizes, chunks, num_threads(self._step._schedule.threads))
        self._totals.append([self._outputs[i].clone() for _, i in self._step._totals])

    def settle(self) -> None:
        """Write the totals over all runs so far to the outputs."""
        for at, (buffer, i) in enumerate(self._step._totals):
            assert buffer.fold is not None
            found = self._totals[0][at]
            for more in self._totals[1:]:
                found = FOLDS[buffer.fold](found, more[at])
            self._outputs[i].copy_(found)


def cut(chunks: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """The chunks before and after `row`, int64 boundaries as `runtime/launch.py` says; a part without rows is one empty
    chunk. A chunk that is left out stays so in both parts."""
    starts = torch.where(chunks < 0, ~chunks, chunks)
    first, end = int(starts[0]), int(starts[-1])
    if row <= first:
        return torch.tensor([first, first], device="cpu"), chunks
    if row >= end:
        return chunks, torch.tensor([end, end], device="cpu")
    at = int(torch.searchsorted(starts, row))
    within = chunks[at - 1 : at] < 0  # the chunk that begins before the row
    begin = torch.where(within, ~torch.tensor([row], device="cpu"), torch.tensor([row], device="cpu"))
    rest = chunks[at:] if int(starts[at]) == row else torch.cat([begin, chunks[at:]])
    return torch.cat([chunks[:at], torch.tensor([row], device="cpu")]), rest
