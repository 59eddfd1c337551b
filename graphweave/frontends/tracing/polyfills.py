"""Replaces functions that break the graph by polyfills while a compiled function is called.

They are in place during the whole call, since guards of compiled code ask for them too. Only libraries that are already
imported are changed. `library_polyfills.py` and `sparse_polyfills.py` hold the polyfills.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphweave.core import locks
from graphweave.frontends.sparse import library_polyfills, sparse_polyfills

_lock = locks.lock()


class _Group:
    """Polyfills that stay in place as long as some call needs them."""

    def __init__(self, polyfills: Sequence[tuple[str, tuple[str, ...], Any]]) -> None:
        self._polyfills = [(module, path[:-1], path[-1], polyfill) for module, path, polyfill in polyfills]
        self._originals: list[tuple[Any, str, Any]] = []
        self.calls = 0

    def enter(self) -> None:
        self.calls += 1
        if self.calls > 1:
            return
        modules, originals = sys.modules, self._originals
        for module, path, name, polyfill in self._polyfills:
            owner: Any = modules.get(module)
            for step in path:
                owner = getattr(owner, step, None)
            original = getattr(owner, name, None)
            if original is not None:
                originals.append((owner, name, original))
                setattr(owner, name, polyfill)

    def leave(self) -> None:
        self.calls -= 1
        while self.calls == 0 and self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)


_always, _for_sparse = _Group(library_polyfills.POLYFILLS), _Group(sparse_polyfills.POLYFILLS)
_on_ranks = _Group(library_polyfills.ON_RANKS)


@contextmanager
def polyfilled(*, sparse: bool = True, ranks: bool = False) -> Iterator[None]:
    """Within the block, polyfills are in place. Blocks may be nested, and entered by several threads.

    Polyfills for sparse tensors are in place only with `sparse`: there are many of them, and setting them takes longer
    than everything else that a small call does in Python. Those for functions over parts are in place with `ranks`.
    """
    groups = (_always, *((_for_sparse,) if sparse else ()), *((_on_ranks,) if ranks else ()))
    with _lock:
        for group in groups:
            group.enter()
    try:
        yield
    finally:
        with _lock:
            for group in groups:
                group.leave()


def in_place() -> bool:
    """Whether polyfills are in place, which means that some compiled function is being called."""
    return _always.calls > 0
