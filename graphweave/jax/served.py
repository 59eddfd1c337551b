"""Kernels on edges that a foreign call of XLA brings along: Python makes the formats of the edges, and runs kernels.

Edges are known by their numbers, not by where they lie, since XLA reuses its memory. So the kernels of a forward and a
backward, and of calls that come again with the same edges, share what is made of them.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.core.errors import IndexRangeError
from graphweave.jax.native import CallTable, native_library
from graphweave.runtime.index_records import own_memory
from graphweave.runtime.segments import OnOneGraph
from graphweave.runtime.threads import num_threads

_MOST_INDICES = 128
"""The cache remembers at most this many index tensors, those used last. Their formats have a limit of their own."""

_MOST_BYTES = 1 << 28
"""Index tensors beyond these many bytes together are forgotten, but for the last two, which are a graph's."""

_MOST_BOUND = 4
"""A table remembers its kernels on at most this many graphs, those used last."""

_SAMPLED = 64
"""Numbers of an index by which it is looked up before it is compared whole."""

_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _INTERNAL = 3, 8, 13
"""XLA's codes of errors."""

_CODES: dict[type[Exception], int] = {IndexRangeError: _INVALID_ARGUMENT, MemoryError: _RESOURCE_EXHAUSTED}

Addresses: TypeAlias = Sequence[int]
"""The addresses of operands, then of results: an array of native code, which does not tell its length."""

Bind = Callable[[Sequence[Tensor]], OnOneGraph]
"""Index tensors -> the kernels on their graph."""

IndexShape = tuple[int, torch.dtype]
"""How many numbers an index has, and their type."""


class ServedTable(CallTable):
    """Kernels whose operands are indices, then values that the kernels read.

    `values` are the tensors that they read, and None for each operand that is no index and for each result.
    """

    __slots__ = ("_bind", "_bound", "_indices", "_num_given", "_values")

    def __init__(
        self,
        bind: Bind,
        names: Sequence[str],
        indices: Sequence[IndexShape],
        values: Sequence[Tensor | None],
        nbytes: Sequence[int],
        threads: int | None,
    ) -> None:
        """`names`, `nbytes` and `threads` are as in `KernelTable`, but no result is memory for values inside."""
        super().__init__(names, nbytes)
        self._bind, self._indices, self._values = bind, tuple(indices), tuple(values)
        self._bound: OrderedDict[tuple[int, ...], OnOneGraph] = OrderedDict()  # which keeps the index tensors alive
        _tables[self.id] = self
        self._num_given = len(indices) + sum(t is None for t in values)
        native_library().gw_xla_add_served(
            self.id,
            ctypes.cast(_native_serve, ctypes.c_void_p),
            self._num_given,
            num_threads(threads),
            threads is not None,
            self._nbytes,
        )

    def run(self, given: Addresses, threads: int) -> None:
        """Run on the addresses `given`, of operands and results. Errors as formats raise them."""
        index = [_known_index(given[i], *shape) for i, shape in enumerate(self._indices)]
        graph = self._on(index)
        operands = iter(given[len(index) : self._num_given])
        graph.run([next(operands) if t is None else t.data_ptr() for t in self._values], threads)

    def _on(self, index: Sequence[Tensor]) -> OnOneGraph:
        key = tuple(map(id, index))
        with _lock:
            found = self._bound.get(key)
            if found is not None:
                self._bound.move_to_end(key)
                return found
        made = self._bind(index)
        with _lock:
            self._bound[key] = made
            if len(self._bound) > _MOST_BOUND:
                self._bound.popitem(last=False)
        return made


_tables: WeakValueDictionary[int, ServedTable] = WeakValueDictionary()

_lock = locks.lock()
"""Held while one of the caches of this file is read or changed: XLA calls from threads of its own."""


def _serve(table: int, given: Addresses, threads: int, said: int, room: int) -> int:
    try:
        _tables[table].run(given, threads)
    except Exception as error:  # native code would lose it, and take unwritten memory for results
        text = f"graphweave: {error}".encode()[: room - 1]
        ctypes.memmove(said, text + b"\0", len(text) + 1)
        return next((code for kind, code in _CODES.items() if isinstance(error, kind)), _INTERNAL)
    return 0


_native_serve = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64
)(_serve)

_indices: OrderedDict[Hashable, Tensor] = OrderedDict()


def _known_index(address: int, count: int, dtype: torch.dtype) -> Tensor:
    """The index at `address`, as a tensor that is the same one for the same numbers as long as it is remembered."""
    if not count:
        return torch.empty(0, dtype=dtype, device="cpu")
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    view = torch.frombuffer(memory, dtype=dtype, count=count)
    key = count, dtype, view[:: -(-count // _SAMPLED)].numpy().tobytes()
    with _lock:
        kept = _indices.get(key)
        if kept is not None and torch.equal(kept, view):
            _indices.move_to_end(key)
            return kept
        made = _indices[key] = view.clone()
        _indices.move_to_end(key)
        own_memory.put(made, True)
        _forget_oldest()
    return made


def _forget_oldest() -> None:
    left = sum(t.nbytes for t in _indices.values())
    while len(_indices) > 2 and (len(_indices) > _MOST_INDICES or left > _MOST_BYTES):
        left -= _indices.popitem(last=False)[1].nbytes
