"""The divided rows of a region on the CPU. Their kernels are called one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from graphweave.codegen.cpp import SharedText, shared_text
from graphweave.core.counters import bump
from graphweave.core.types import DType, Fold
from graphweave.execute.divided_rows import divided_kernels, num_rows, own_tensors, verified
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.interp import FOLDS
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.infer import numel
from graphweave.lower.divide import NUM_HELD, NUM_PIECES, NUM_SLOTS, SLOT_PIECE, SLOTS
from graphweave.lower.piece_walk import PIECES
from graphweave.lower.scheduled import Scheduled
from graphweave.runtime import arena, kernel_cache, launch
from graphweave.runtime.chunks import equal_rows
from graphweave.runtime.launch import CHUNK_WORK, Work, uniform_chunks
from graphweave.runtime.long_rows import PRODUCTS, SUMS, LongRows, Weight
from graphweave.runtime.threads import num_threads
from graphweave.runtime.together import runs_of


def weight_of(kernel: loop.Kernel) -> Weight:
    """The weight of the rows of `kernel`. With products, a piece of a row leaves partial sums as large as those of the
    row."""
    inner = list(statements(kernel.body))
    products = any(
        isinstance(s, loop.TileMatMul | loop.TileGram) for t in inner if isinstance(t, loop.Tiles) for s in t.body
    )
    leaves = sum(numel(s.shape) * s.dtype.itemsize for s in inner if isinstance(s, loop.Alloc))
    return Weight(PRODUCTS, leaves) if products else SUMS


PIECE_TABLES = (SLOTS, PIECES, "piece_row", "piece_shift", "piece_slot", "slot_row", SLOT_PIECE)
"""Names of the tables of pieces, in the order of native code (`native/row_pieces.cpp`)."""

_ROWS = (NUM_PIECES, NUM_SLOTS, NUM_HELD)
_TYPES = (DType.f64, DType.f32, DType.i64, DType.i32, DType.i16, DType.i8, DType.u8, DType.bool)
_FOLD_ORDER = (Fold.sum, Fold.mul, Fold.max, Fold.min)
_GIVEN, _TABLE, _SCRATCH, _TOTAL = range(4)
"""Codes of `native/divided_rows.cpp`."""


class DividedRows:
    """The kernels that compute divided rows (the long ones, or all rows), compiled when they are first needed."""

    def __init__(self, made: Scheduled) -> None:
        kernel, self._schedule = made.whole, made.taken
        self._given = [*(csr.name for csr in kernel.csrs), *(b.name for b in kernel.buffers)]
        self._kernels = verified(made.pieces) if made.pieces else divided_kernels(kernel)
        self._functions: Sequence[launch.NativeKernel] = ()

    def build(self) -> None:
        """Compile the kernels, or find them in the cache."""
        if not self._functions:
            made = self.texts
            runs = runs_of(text for text, _ in made)
            with ThreadPoolExecutor(len(runs)) as pool:
                list(pool.map(kernel_cache.libraries, runs))
            self._functions = [kernel_cache.load(text, symbol) for text, symbol in made]

    @property
    def texts(self) -> list[SharedText]:
        """The C++ text of each kernel, and its name there."""
        return [shared_text(k) for k in self._kernels]

    def numbers(self, addresses: Sequence[Any] = ()) -> list[Any]:
        """The kernels as `native/divided_rows.cpp` reads them: once they are built, or with the `addresses` given."""
        addresses = addresses or [function.address for function in self._functions]
        given = {name: [_GIVEN, i] for i, name in enumerate(self._given)}
        places = given | {name: [_TABLE, i] for i, name in enumerate(PIECE_TABLES)}
        scratch: list[list[int]] = []
        totals: dict[str, list[int]] = {}
        kernels: list[list[int]] = []
        for kernel, address in zip(self._kernels, addresses, strict=True):
            pointers, own = [places[csr.name] for csr in kernel.csrs], list[list[int]]()
            for b in kernel.buffers:
                size = numel(b.shape)
                if b.role is loop.Role.total:
                    assert b.fold is not None
                    known = [_TYPES.index(b.dtype), _FOLD_ORDER.index(b.fold), given[b.name][1], size]
                    totals.setdefault(b.name, known)
                    own.append([list(totals).index(b.name)])
                    pointers.append([_TOTAL, own[-1][0]])
                    continue
                if b.name not in places:
                    assert b.rows is not None
                    places[b.name] = [_SCRATCH, len(scratch)]
                    scratch.append([_ROWS.index(b.rows), size * b.dtype.itemsize])
                pointers.append(places[b.name])
            over, sizes = _ROWS.index(kernel.sizes[0]), len(kernel.sizes) + len(kernel.csrs)
            kernels.append([address, over, sizes, *listed(own), *listed(pointers)])
        most = self._chunks_asked or launch.MAX_CHUNKS
        return [most, *listed(scratch), *listed(list(totals.values())), *listed(kernels)]

    @property
    def _chunks_asked(self) -> int | None:
        return self._schedule.chunks if self._schedule.in_pieces else None

    def __call__(self, long: LongRows, ptrs: Sequence[int], totals: Mapping[str, Tensor]) -> None:
        """Run the kernels, after the kernel itself. `ptrs` are that kernel's arguments. The parts of rows are folded
        into `totals`, given by name."""
        known = dict(zip(self._given, ptrs, strict=True))
        own = own_tensors(self._kernels, known, long.pieces, arena.empty)
        known.update((name, t.data_ptr()) for name, t in own.items())
        for kernel, function in zip(self._kernels, self._functions, strict=True):
            mine = {b.name: torch.empty_like(totals[b.name]) for b in kernel.buffers if b.role is loop.Role.total}
            known.update((name, t.data_ptr()) for name, t in mine.items())
            rows = num_rows(kernel, long.pieces)
            given = [known[csr.name] for csr in kernel.csrs] + [known[b.name] for b in kernel.buffers]
            # These kernels read only the first size. They have no stashes, which would need the largest degrees.
            sizes = [rows] + [0] * (len(kernel.sizes) - 1 + len(kernel.csrs))
            function(given, sizes, self._chunks(rows), num_threads(self._schedule.threads))
            for b in kernel.buffers:
                if b.fold is not None:
                    totals[b.name].copy_(FOLDS[b.fold](totals[b.name], mine[b.name]))
        bump("divided_launches")

    def _chunks(self, rows: int) -> Tensor:
        asked = self._chunks_asked
        return uniform_chunks(rows, Work(CHUNK_WORK)) if asked is None else equal_rows(rows, asked)


def listed(rows: Sequence[Sequence[int]]) -> list[int]:
    """The number of rows, and all rows: a list as native code reads it."""
    return [len(rows), *chain.from_iterable(rows)]
