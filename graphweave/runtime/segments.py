"""Segments: kernels that follow one another, as one native call (`native/segments.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from struct import Struct, pack
from typing import TypeAlias

import torch
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.errors import DataError
from graphweave.runtime import arena, formats, unseen_edits
from graphweave.runtime.index import Index
from graphweave.runtime.index_records import Record, cache, record_of
from graphweave.runtime.native_library import library
from graphweave.runtime.threads import num_threads

(_DONE, _MISSING, _NOT_ROW, _NO_ROOM, _WRITTEN, _UNEQUAL, _NO_INDEX, _GAPS, _TOO_MANY, _DIVIDED,
 _SCRATCH) = range(11)  # fmt: skip
"""Codes that a native call returns."""


class Failure(ctypes.Structure):
    """The structure of `native/segments.cpp`."""

    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("at", "position", "builds", "hits", "grown", "launches", "divided")
    )


Watch: TypeAlias = Callable[[int, bool], None]
"""Is told of each kernel, by its position, before it runs (False) and after (True)."""

_NativeWatch = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int32)
"""Its type in `native/segment_runs.cpp`."""


class Segment:
    """`segment(rows, indices, values, inside)` runs the kernels; any thread may call."""

    def __init__(self, numbers: Sequence[int], names: Sequence[str], ends: Sequence[tuple[int, bool]], num_rows: int,
                 num_values: int, divided: Callable[[int], Sequence[int]]) -> None:  # fmt: skip
        """`numbers` as `native/segments.cpp` reads them. `names` are those of the kernels. `ends` are, for each index,
        the position of the number of rows into which it leads, and whether its negative values count from the end.
        `divided` builds the kernels of a kernel's divided rows when a graph first has such, and gives their numbers
        (`native/divided_rows.cpp`)."""
        self._native = library()
        self.names, self._ends, self._divided = tuple(names), tuple(ends), divided
        self._pack = Struct(f"{num_rows + len(self._ends) + num_values + 3}q").pack
        self._graph = Struct(f"{num_rows + len(self._ends)}q").pack
        self._rows = Struct(f"{num_rows}q").pack
        self._address = self._native.gw_segment_new(pack(f"{len(numbers)}q", *numbers))
        self._run = self._native.gw_segment_run
        self._scratch = 0  # bytes of scratch memory that the last call that needed some has needed

    def __del__(self) -> None:
        self._native.gw_segment_free(self._address)

    def forget(self) -> None:
        """Release the graph of the last call."""
        self._native.gw_segment_forget(self._address)
        self._scratch = 0

    def computed(self) -> list[tuple[int, int]]:
        """For each kernel, the rows that it computed in the last call and the edges that it was given. Empty if nothing
        is kept of that call."""
        out = (ctypes.c_int64 * (2 * len(self.names)))()
        known = self._native.gw_segment_computed(self._address, out)
        return list(zip(out[::2], out[1::2], strict=True)) if known else []

    def nbytes(self, rows: Sequence[int]) -> int:
        """The bytes of the values inside, for these row counts."""
        return int(self._native.gw_segment_bytes(self._address, self._rows(*rows)))

    def __call__(
        self, rows: Sequence[int], indices: Sequence[Tensor], values: list[Tensor], inside: int,
        watch: Watch | None = None,
    ) -> list[Tensor] | None:  # fmt: skip
        """Run on `values`, what is read and then what is written, and on memory at the address `inside`. `watch` is
        told of each kernel.

        Returns the values, in which those that are read are contiguous; they must be kept until the caller is done.
        None if the kernels must be called one by one, since more than 32 bits count. The interpreter's lock is released
        meanwhile. MemoryError, DataError and IndexRangeError as formats raise them.
        """
        failure, size, told = Failure(), self._scratch, None
        if watch is not None:
            told = _NativeWatch(lambda kernel, ended: watch(kernel, bool(ended)))
        status = self._try(rows, indices, values, (inside, size), b"", failure, told)
        if not status and failure.builds and not failure.grown:
            bump("format_builds", failure.builds)
            bump("format_hits", failure.hits)
        elif status or failure.grown:
            graph, copied = _GraphOfCall(self, rows, indices), False
            while graph.settle(status, failure) or status == _SCRATCH or (status == _GAPS and not copied):
                if status == _GAPS:
                    values, copied = [t.contiguous() for t in values], True
                elif status == _SCRATCH:
                    size = self._scratch = failure.position
                status = self._try(rows, indices, values, (inside, size), graph.records, failure, told)
            if status == _TOO_MANY:
                return None
            graph.finish(status, failure)
        bump("kernel_launches", failure.launches)
        if failure.divided:
            bump("divided_launches", failure.divided)
        return values

    def _try(
        self, rows: Sequence[int], indices: Sequence[Tensor], values: Sequence[Tensor], memory: tuple[int, int],
        records: bytes, failure: Failure, told: object,
    ) -> int:  # fmt: skip
        """Call native code, with the `records` of the indices if there are any, and return its status. `memory` is the
        address of that inside, and the bytes of scratch memory."""
        inside, size = memory
        scratch = arena.empty((size,), torch.uint8) if size else None
        numbers = self._pack(
            *rows, *[t._cdata for t in indices], *[t._cdata for t in values], inside,
            0 if scratch is None else scratch.data_ptr(), size,
        )  # fmt: skip
        status = self._run(self._address, numbers + records, bool(records), num_threads(), ctypes.byref(failure), told)
        return int(status)

    def on_graph(self, rows: Sequence[int], indices: Sequence[Tensor]) -> OnOneGraph:
        """The segment on a graph, for callers that run it by themselves. Errors as a call raises them.
        Kernels of more than 32 bits must be given on that graph when the segment is made."""
        failure, graph, address = Failure(), _GraphOfCall(self, rows, indices), ctypes.c_void_p()
        while True:
            numbers = self._graph(*rows, *[t._cdata for t in indices]) + graph.records
            status = self._native.gw_bound_new(
                self._address, numbers, bool(graph.records), num_threads(), ctypes.byref(failure), ctypes.byref(address)
            )
            if not graph.settle(status, failure):
                break
        graph.finish(status, failure)
        assert address.value is not None
        return OnOneGraph(self, address.value, indices)


class OnOneGraph:
    """A segment on one graph, which native code runs by `address` (`gw_bound_run`) as long as the object lives."""

    def __init__(self, segment: Segment, address: int, indices: Sequence[Tensor]) -> None:
        self._native, self.address, self._alive = segment._native, address, (segment, tuple(indices))

    def __del__(self) -> None:
        self._native.gw_bound_free(self.address)

    @property
    def nbytes(self) -> int:
        """The bytes of the memory that a run needs."""
        return int(self._native.gw_bound_bytes(self.address))

    def run(self, values: Sequence[int], threads: int) -> None:
        """Run on the values at these addresses, what is read and then what is written. MemoryError names a kernel that
        had no memory."""
        inside = arena.empty((self.nbytes,), torch.uint8)
        failed = self._native.gw_bound_run(self.address, pack(f"{len(values)}q", *values), inside.data_ptr(), threads)
        if failed >= 0:
            raise _no_memory(self._alive[0].names[failed])


def _no_memory(kernel: str) -> MemoryError:
    return MemoryError(f"kernel {kernel} could not allocate its scratch memory. Free some, or take a smaller graph.")


class _GraphOfCall:
    """The graph of a call that native code could not finish by itself, and what Python has done about it."""

    def __init__(self, segment: Segment, rows: Sequence[int], indices: Sequence[Tensor]) -> None:
        self._segment = segment
        self._index = [Index(t, rows[at], wrap) for t, (at, wrap) in zip(indices, segment._ends, strict=True)]
        self._held: list[Record] = []
        self._grown = False

    @property
    def records(self) -> bytes:
        """The addresses of the records, if native code asks for such."""
        return pack(f"{len(self._held)}q", *[record.handle.address for record in self._held])

    def settle(self, status: int, failure: Failure) -> bool:
        """Give native code what it misses. False if it misses nothing, or what only its caller has."""
        bump("format_builds", failure.builds)
        bump("format_hits", failure.hits)
        self._grown |= failure.grown > 0
        if status == _MISSING:
            for one in self._index:
                formats.check(one, one.wide)
                unseen_edits.watch(one.values)  # other calls will find the record
            self._held = [record_of(one) for one in self._index]
            return True
        if status == _DIVIDED:
            numbers = self._segment._divided(failure.at)
            packed = pack(f"{len(numbers)}q", *numbers)
            self._segment._native.gw_segment_divided(self._segment._address, failure.at, packed)
            return True
        return False

    def finish(self, status: int, failure: Failure) -> None:
        """Note the sizes of records that have new formats; raise the error that `status` stands for, if it is one."""
        if self._grown:
            for one in self._index:
                record = cache.get(one.key, (one.values,))
                if record is not None:
                    cache.resize(one.key, record.nbytes)
        if status != _DONE:
            self._refuse(status, failure)

    def _refuse(self, status: int, failure: Failure) -> None:
        index = self._index
        match status:
            case _ if status == _NO_ROOM and failure.position == -1:
                raise _no_memory(self._segment.names[failure.at])
            case _ if status == _NO_INDEX:
                formats.check(index[failure.at], wide=True)
            case _ if status == _UNEQUAL:
                raise DataError(formats.unequal(index[failure.at].values, index[failure.position].values))
            case _:
                formats.refuse(failure.position, index[failure.at])
        raise AssertionError(f"status {status} of a segment")
