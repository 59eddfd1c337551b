"""Calls generated kernels with as little Python as possible, and makes the row boundaries of their chunks.

Every kernel has one C signature:

    extern "C" int32_t NAME(void* const* ptrs, const int64_t* sizes,
                            const int64_t* chunks, int64_t num_chunks, int32_t num_threads)

- `ptrs`: the indptr of each CSR, then each buffer in order of declaration;
- `sizes`: the kernel's sizes in order, then the largest degree of each CSR;
- `chunks`: `num_chunks + 1` row boundaries. A chunk is the unit of work and of partial reductions, so results do not
  depend on the number of threads. A kernel that walks edges leaves out a chunk whose first row r is written as ~r;
- the result is 0, or 1 if scratch memory could not be allocated.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from struct import Struct

import torch
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.runtime.threads import lend_threads

MAX_CHUNKS = 256
"""The rows of a kernel are divided into at most this many chunks."""

CHUNK_WORK = 1 << 14
"""A uniform chunk reads or writes at least this many numbers. This takes some microseconds, much longer than handing
the chunk to a thread."""


@lru_cache(maxsize=256)
def _pointers(count: int) -> Struct:
    return Struct(f"{count}P")


@lru_cache(maxsize=256)
def _integers(count: int) -> Struct:
    return Struct(f"{count}q")


def open_library(path: Path) -> ctypes.CDLL:
    """Load a shared library of kernels or of other native code. Its parallel loops use PyTorch's threads."""
    library = ctypes.CDLL(str(path))
    lend_threads(library)
    return library


class NativeKernel:
    """A compiled kernel. Until the call returns, the caller keeps alive every tensor whose address it passes."""

    __slots__ = ("_function", "_library", "address", "symbol")

    def __init__(self, library: ctypes.CDLL, symbol: str) -> None:
        """Raises AttributeError if the library has no such symbol."""
        function = library[symbol]
        # The two small arrays are passed as bytes: packing them costs a third of building ctypes arrays.
        function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        function.restype = ctypes.c_int32
        self.symbol = symbol
        self.address = ctypes.cast(function, ctypes.c_void_p).value or 0
        self._function = function
        self._library = library

    def __call__(self, ptrs: Sequence[int], sizes: Sequence[int], chunks: Tensor, num_threads: int) -> None:
        """Run the kernel on addresses (`Tensor.data_ptr()`), sizes, and int64 row boundaries `[num_chunks + 1]`.

        The GIL is released during the call. MemoryError if the kernel could not get its scratch memory.
        """
        status = self._function(
            _pointers(len(ptrs)).pack(*ptrs),
            _integers(len(sizes)).pack(*sizes),
            chunks.data_ptr(),
            chunks.numel() - 1,
            num_threads,
        )
        bump("kernel_launches")
        if status:
            raise MemoryError(
                f"kernel {self.symbol} could not allocate its scratch memory for sizes {list(sizes)}."
                " Free some, or take a smaller graph."
            )


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a kernel without edges, in numbers read or written. Its rows are divided into chunks by this."""

    row: int = 1
    """Work of one row."""

    chunk: int = CHUNK_WORK
    """Minimum work of a chunk. With totals it is larger, so that clearing and folding their parts is a small share."""

    tile: int = 1
    """Rows of a tile. Chunks begin where a tile begins."""


@lru_cache(maxsize=1024)
def uniform_chunks(num_rows: int, work: Work) -> Tensor:
    """Row boundaries, int64 `[num_chunks + 1]`, for rows of equal work.

    There are 1 to `MAX_CHUNKS` chunks, each with at least about `work.chunk` work; without rows there is one empty
    chunk. The result is cached, so callers must not write to it.
    """
    tiles, count = -(-num_rows // work.tile), chunk_count(num_rows, work)
    ends = array("q", [tiles * i // count * work.tile for i in range(count + 1)])
    ends[count] = num_rows
    with torch.inference_mode(False):  # torch.tensor of the list takes three times as long
        return torch.frombuffer(ends, dtype=torch.int64)


def chunk_count(num_rows: int, work: Work) -> int:
    """The number of chunks of `uniform_chunks`."""
    wanted = num_rows * max(work.row, 1) // work.chunk
    return max(1, min(wanted, MAX_CHUNKS, -(-num_rows // work.tile)))
