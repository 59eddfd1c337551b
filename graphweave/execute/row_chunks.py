"""Chains of steps that run for chunks of rows: as a step of a tape, and as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from graphweave.analysis.cones import space_of
from graphweave.core.types import UNIT
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.tape import nodes as tape
from graphweave.ir.tape.walk import makes_of, reads_of, rows_of
from graphweave.lower.row_chains import RowChain
from graphweave.runtime import arena

CHUNK_BYTES = 8 << 20
"""Bytes of the values that exist for one chunk alone. They are in the last cache when the chunk's next step reads
them."""

MIN_ROWS = 256
"""A chunk has at least this many rows, so that a product of them is no smaller than its overhead."""


def in_chunks(
    steps: Sequence[tape.Step], chain: RowChain, program: Program, constants: Iterable[Ref]
) -> list[tape.Step]:
    """The steps of a chain as one step that follows them for chunks of rows, after those of them that depend on no row
    of the chain."""
    own = {*chain.makes, *chain.totals}
    before, inside, made = list[tape.Step](), list[tape.Step](), set[Ref]()
    for step in steps:
        read, makes = reads_of(step), makes_of(step)
        if not made.isdisjoint(read) or any(r in own or space_of(program, r) == chain.space for r in makes):
            inside.append(step)
            made.update(makes)
        else:
            before.append(step)
    if not inside:
        return before
    fixed = tuple(r for r in constants if space_of(program, r) != chain.space)
    reads = tuple(dict.fromkeys(r for step in inside for r in reads_of(step) if r not in made and r not in fixed))
    rows = tuple(dict.fromkeys(s for step in inside for s in rows_of(step) if s != UNIT))
    makes, adds = (tuple(r for r in refs if r in made) for refs in (chain.makes, chain.totals))
    name, results = f"{chain.space.name}_chunk", tuple(tape.Output(r) for r in (*makes, *adds))
    used = tuple(r for r in fixed if any(r in reads_of(step) for step in inside))
    nested = tape.Tape(name, reads, tuple(inside), results, rows, used)
    sliced = tuple(r for r in reads if space_of(program, r) == chain.space)
    return [*before, tape.InChunks(chain.space, chain.nbytes, reads, sliced, rows, makes, adds, nested)]


def rows_of_chunk(nbytes: int) -> int:
    """The rows of a chunk with so many bytes in a row."""
    return max(MIN_ROWS, CHUNK_BYTES // max(nbytes, 1))


class RowChunks:
    """`chunks(rows, counts, values) -> results` follows a step of a tape. `rows` is the row count of its space, and
    `counts` and `values` are those that it asks for and reads. `run` follows its tape."""

    def __init__(self, step: tape.InChunks, run: Callable[[list[object]], list[Any]]) -> None:
        self._run, self._own, self._made = run, step.rows, len(step.makes)
        self._size = rows_of_chunk(step.nbytes)
        self._of_chunk = [space == step.space for space in step.rows]
        self._sliced = [r in step.sliced for r in step.reads]

    def __call__(self, rows: int, counts: Sequence[int], values: Sequence[Tensor]) -> list[Tensor]:
        chunks = max(1, -(-rows // self._size))
        results = list[Tensor]()
        for c in range(chunks):
            begin, end = rows * c // chunks, rows * (c + 1) // chunks
            given = [v[begin:end] if cut else v for v, cut in zip(values, self._sliced, strict=True)]
            own = [end - begin if of else n for n, of in zip(counts, self._of_chunk, strict=True)]
            found = self._run([*given, *own])
            if chunks == 1:
                return found
            if not results:
                whole = (arena.empty((rows, *t.shape[1:]), t.dtype) for t in found[: self._made])
                results = [*whole, *found[self._made :]]
            else:
                for total, part in zip(results[self._made :], found[self._made :], strict=True):
                    total += part
            for out, t in zip(results, found[: self._made], strict=False):
                out[begin:end] = t
        return results
