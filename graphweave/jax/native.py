"""Kernels as foreign calls of XLA (`runtime/native/xla_call.cpp`). On a known graph no Python runs in a call. Edges
that come with a call get their formats there, which Python makes (`served.py`).

A call names its table by a random number, not by an address. So a compiled function that another process has cached is
refused there rather than run on addresses that mean nothing.
"""

from __future__ import annotations

import ctypes
import secrets
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from struct import pack
from typing import Any

import jax
import jaxlib
from torch import Tensor

from graphweave.core.errors import SettingsError
from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.native_library import library as runtime_library
from graphweave.runtime.native_numbers import Int32, Int64
from graphweave.runtime.segments import OnOneGraph
from graphweave.runtime.threads import num_threads
from graphweave.runtime.toolchain import toolchain

TARGET = "graphweave_kernels"
"""Name of the foreign call, which has one attribute, `table`."""

_NO_ROWS = 64
"""The address of a tensor without elements, which nobody reads. 0 stands for operands and results."""


class CallTable:
    """Kernels that a foreign call runs. Equal only to itself. XLA's executables keep it alive (`foreign.py`)."""

    __slots__ = ("__weakref__", "_names", "_nbytes", "id", "jitted")

    def __init__(self, names: Sequence[str], nbytes: Sequence[int]) -> None:
        """`names` are those of the kernels, and `nbytes` the sizes of the call's results."""
        register()
        self._nbytes = ctypes.create_string_buffer(pack(f"{len(nbytes)}q", *nbytes))
        self._names = ctypes.create_string_buffer("".join(f"{name}\0" for name in names).encode())
        self.jitted: Any = None
        """The table as a function under `jit`, once it has been called outside of one."""
        self.id = secrets.randbits(62)
        weakref.finalize(self, native_library().gw_xla_remove, self.id).atexit = False

    @property
    def threads(self) -> int:
        """The number of threads of a call that runs now."""
        found: int = native_library().gw_xla_threads(self.id)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._names.raw.decode().split(chr(0))).strip(', ')})"


class KernelTable(CallTable):
    """Kernels in order, and the values on which they work: the operands of a foreign call, then its results, of which
    the last is memory for values inside."""

    __slots__ = ("_alive", "_fixed")

    def __init__(
        self, graph: OnOneGraph, names: Sequence[str], values: Sequence[Tensor | None], nbytes: Sequence[int],
        threads: int | None = None,
    ) -> None:  # fmt: skip
        """`names` are those of the segment's kernels, for errors. `values` are the tensors that it reads, and None for
        each operand and result. There is a result for each of `nbytes`, and the memory inside.
        Kernels run on `threads` threads; without a number on those of `set_num_threads`, or on as many as PyTorch uses
        at this moment."""
        super().__init__(names, (*nbytes, graph.nbytes))
        addresses = [0 if t is None else t.data_ptr() or _NO_ROWS for t in values]
        self._fixed = ctypes.create_string_buffer(pack(f"{len(addresses)}q", *addresses))
        self._alive = graph, tuple(values)
        run = ctypes.cast(runtime_library().gw_bound_run, ctypes.c_void_p)
        native_library().gw_xla_add(
            self.id, run, graph.address, self._names, len(values), self._fixed, num_threads(threads),
            threads is not None, self._nbytes,
        )  # fmt: skip


def set_num_threads(count: int | None) -> None:
    """Kernels of JAX's functions run on `count` threads from the next call on, those of functions that have been
    compiled as well. None leaves each of them the number that PyTorch used when it was compiled. A schedule with a
    number of threads keeps it. SettingsError for a number below 1."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise SettingsError(f"expected a number of threads from 1 on, or None (got {count!r}). Pass one of these.")
    native_library().gw_xla_set_threads(count or 0)


@lru_cache(maxsize=1)
def register() -> None:
    """Tell XLA of the foreign call; once a process."""
    library = native_library()
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.gw_xla_call), platform="cpu")


def native_library() -> ctypes.CDLL:
    """The library of the foreign call and its tables."""
    return _native(toolchain())


@lru_cache(maxsize=8)
def _native(tools: object) -> ctypes.CDLL:
    """The native library. `tools` is only the key of the cache: other compiler settings give another library."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    # the version is part of the text, and so of the key under which the library is kept: the header belongs to it
    text = f'#define XLA_FFI_HEADER "{header}"\n#define GW_JAXLIB "{jaxlib.__version__}"\n'
    library = kernel_cache.library(text + sources.source("xla_call.cpp"))
    pointer = ctypes.c_void_p
    library.gw_xla_add.argtypes = (Int64, pointer, pointer, pointer, Int64, pointer, Int32, ctypes.c_bool, pointer)
    library.gw_xla_add.restype = None
    library.gw_xla_add_served.argtypes = (Int64, ctypes.c_void_p, Int64, Int32, ctypes.c_bool, pointer)
    library.gw_xla_add_served.restype = None
    library.gw_xla_remove.argtypes = (Int64,)
    library.gw_xla_remove.restype = None
    library.gw_xla_set_threads.argtypes = (Int32,)
    library.gw_xla_set_threads.restype = None
    library.gw_xla_threads.argtypes = (Int64,)
    library.gw_xla_threads.restype = ctypes.c_int32
    return library
