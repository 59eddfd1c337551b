"""Segments: kernels that follow one another, as one native call (`native/segments.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from struct import Struct, pack

from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.errors import DataError
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.index_records import Record, cache, record_of
from graphweave.runtime.native_library import library
from graphweave.runtime.threads import num_threads

_DONE, _MISSING, _NOT_ROW, _NO_ROOM, _WRITTEN, _UNEQUAL, _NO_INDEX, _GAPS, _ONE_BY_ONE = range(9)
"""What a native call returns."""


class Failure(ctypes.Structure):
    """The structure of `native/segments.cpp`."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("at", "position", "builds", "hits", "grown"))


class Segment:
    """`segment(rows, indices, values, inside)` runs the kernels; any thread may call."""

    def __init__(self, numbers: Sequence[int], names: Sequence[str], ends: Sequence[tuple[int, bool]], num_rows: int,
                 num_values: int) -> None:  # fmt: skip
        """`numbers` as `native/segments.cpp` reads them. `names` are those of the kernels. `ends` are, for each index,
        the position of the number of rows into which it leads, and whether its negative values count from the end."""
        self._native = library()
        self._names, self._ends = tuple(names), tuple(ends)
        self._pack = Struct(f"{num_rows + len(self._ends) + num_values + 1}q").pack
        self._rows = Struct(f"{num_rows}q").pack
        self._address = self._native.gw_segment_new(pack(f"{len(numbers)}q", *numbers))
        self._run = self._native.gw_segment_run

    def __del__(self) -> None:
        self._native.gw_segment_free(self._address)

    def forget(self) -> None:
        """Release the graph of the last call."""
        self._native.gw_segment_forget(self._address)

    def computed(self) -> list[tuple[int, int]]:
        """For each kernel, the rows that it computed in the last call and the edges that it was given. Empty if nothing
        is kept of that call."""
        out = (ctypes.c_int64 * (2 * len(self._names)))()
        known = self._native.gw_segment_computed(self._address, out)
        return list(zip(out[::2], out[1::2], strict=True)) if known else []

    def nbytes(self, rows: Sequence[int]) -> int:
        """The bytes of the values inside, for these row counts."""
        return int(self._native.gw_segment_bytes(self._address, self._rows(*rows)))

    def __call__(
        self, rows: Sequence[int], indices: Sequence[Tensor], values: list[Tensor], inside: int
    ) -> list[Tensor] | None:
        """Run on `values`, what is read and then what is written, and on memory at the address `inside`.

        Returns the values, in which those that are read are contiguous; they must be kept until the caller is done.
        None if the kernels must be called one by one, since the graph has long rows, or more than 32 bits count.
        The interpreter's lock is released meanwhile. MemoryError, DataError and IndexRangeError as formats raise them.
        """
        failure = Failure()
        places = [t._cdata for t in indices]
        numbers = self._pack(*rows, *places, *[t._cdata for t in values], inside)
        status = self._run(self._address, numbers, False, num_threads(), ctypes.byref(failure))
        if not status:
            bump("kernel_launches", len(self._names))
            if failure.builds:
                self._count(failure, self._index(rows, indices) if failure.grown else ())
            return values
        return self._again(status, failure, rows, indices, values, inside)

    def _again(
        self, status: int, failure: Failure, rows: Sequence[int], indices: Sequence[Tensor], values: list[Tensor],
        inside: int,
    ) -> list[Tensor] | None:  # fmt: skip
        """What the caller does after a first try: give records of new indices, and copy values that have gaps."""
        index = self._index(rows, indices)
        held: list[Record] = []
        copied = False
        while status in (_MISSING, _GAPS) and not (copied and status == _GAPS):
            if status == _GAPS:
                values, copied = [t.contiguous() for t in values], True
            else:
                for one in index:
                    formats.check(one, one.wide)
                held = [record_of(one) for one in index]
            places = [t._cdata for t in indices]
            numbers = self._pack(*rows, *places, *[t._cdata for t in values], inside)
            numbers += pack(f"{len(held)}q", *[record.handle.address for record in held])
            status = self._run(self._address, numbers, bool(held), num_threads(), ctypes.byref(failure))
        self._count(failure, index)
        if status == _DONE:
            bump("kernel_launches", len(self._names))
            return values
        if status != _ONE_BY_ONE:
            self._refuse(status, failure, index)
        return None

    def _index(self, rows: Sequence[int], indices: Sequence[Tensor]) -> list[Index]:
        return [Index(t, rows[at], wrap) for t, (at, wrap) in zip(indices, self._ends, strict=True)]

    def _count(self, failure: Failure, index: Sequence[Index]) -> None:
        """Count what was made and found, and note the sizes of records that have grown."""
        bump("format_builds", failure.builds)
        bump("format_hits", failure.hits)
        for one in index:
            record = cache.get(one.key, (one.values,))
            if record is not None:
                cache.resize(one.key, record.nbytes)

    def _refuse(self, status: int, failure: Failure, index: Sequence[Index]) -> None:
        """Raise the error that `status` stands for."""
        match status:
            case _ if status == _NO_ROOM and failure.position == -1:
                raise MemoryError(
                    f"kernel {self._names[failure.at]} could not allocate its scratch memory."
                    " Free some, or take a smaller graph."
                )
            case _ if status == _NO_INDEX:
                formats.check(index[failure.at], wide=True)
            case _ if status == _UNEQUAL:
                raise DataError(formats.unequal(index[failure.at].values, index[failure.position].values))
            case _:
                formats.refuse(failure.position, index[failure.at])
        raise AssertionError(f"status {status} of a segment")
