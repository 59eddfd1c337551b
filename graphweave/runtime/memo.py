"""The memo: work that depends on the graph alone (self loops, degrees, norms) is done once for each graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.settings import settings
from graphweave.runtime import capturing
from graphweave.runtime.tracked import Key, TrackedCache, ordinary, place, unseen_edits, versions_of
from graphweave.runtime.unseen_edits import Watch

Results: TypeAlias = tuple[Tensor | int, ...]


@dataclass(frozen=True, slots=True)
class _Remembered:
    results: Results  # callers get aliases of these, so that rebinding or flagging one changes nothing here
    tensors: tuple[Tensor, ...]  # the results that are tensors
    versions: tuple[int, ...]  # versions of `tensors` when they were made


def alias(result: Tensor | int) -> Tensor | int:
    """Another tensor object for the same memory and version counter; `result` itself if a gradient flows through it."""
    return result.detach() if isinstance(result, Tensor) and not result.requires_grad else result


_lending = locks.lock()


def lent(result: Tensor | int) -> Tensor | int:
    """An alias of `result` for a user, who may edit it, which the next call notices. A copy if an earlier alias is
    alive.

    So results of two calls share no memory. If a user drops an index before the next call, that call returns the same
    index, whose formats are cached. During a capture, a CUDA graph gets the alias, and lends it itself later.
    """
    if not isinstance(result, Tensor) or result.requires_grad or capturing.active():
        return alias(result)
    with _lending:
        earlier = getattr(result, "_gw_lent", None)
        if earlier is not None and earlier() is not None:
            return result.clone()
        given = result.detach()
        result._gw_lent = weakref.ref(given)  # type: ignore[attr-defined]
    return given


class Memo:
    """Remembers results of pure functions of index tensors and integers: `memo(fn, edge_index, num_nodes)`.

    A result is returned again while its inputs are unchanged (see `tracked`) and nobody has edited the result itself.
    Results take at most GRAPHWEAVE_FORMAT_BYTES; the least recently used are dropped first. Calls with inference
    tensors, or tensors that require a gradient, are not remembered. Functions are distinguished by identity. All
    methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._cache: TrackedCache[_Remembered] = TrackedCache(lambda: settings().format_bytes)

    def __call__(self, fn: Callable[..., Results], *inputs: Tensor | int) -> Results:
        """The result of `fn(*inputs)`, a tuple of tensors and integers, possibly from an earlier call."""
        return tuple(map(alias, self.kept(fn, *inputs)))

    def kept(self, fn: Callable[..., Results], *inputs: Tensor | int) -> Results:
        """Like `__call__`, but returns the very tensors that are kept. They must not reach code that might rebind or
        flag them."""
        tensors = tuple(x for x in inputs if isinstance(x, Tensor))
        key = _key(fn, inputs)
        found = self._cache.get(key, tensors)
        if found is not None and tuple([t._version for t in found.tensors]) == found.versions:
            bump("hoist_hits")
            capturing.read(found.tensors)
            return found.results
        capturing.refuse("graph-only values")
        bump("hoist_builds")
        versions = versions_of(tensors)
        if versions is None or any(t.requires_grad for t in tensors):
            return fn(*inputs)
        with ordinary(), torch.no_grad():
            # Aliases are not views: PyTorch replaces views that are saved for a backward by other tensors.
            results = tuple(map(alias, fn(*inputs)))
            made = tuple(r for r in results if isinstance(r, Tensor))
        if versions_of(made) is None:  # `fn` used inference mode itself, so edits could not be noticed
            return results
        value = _Remembered(results, made, tuple([t._version for t in made]))
        self._cache.put(key, tensors, versions, value, made)
        return results

    def holds(self, fn: Callable[..., Results], *inputs: Tensor | int) -> bool:
        """Whether the next such call finds results of an earlier one."""
        tensors = tuple(x for x in inputs if isinstance(x, Tensor))
        found = self._cache.get(_key(fn, inputs), tensors)
        return found is not None and tuple([t._version for t in found.tensors]) == found.versions

    def drop(self, fn: Callable[..., Results], *inputs: Tensor | int) -> None:
        """Forget the results of such calls."""
        self._cache.drop(_key(fn, inputs))

    def clear(self) -> None:
        self._cache.clear()

    def stats(self) -> dict[str, int]:
        """The number of `entries`, and the `bytes` that they hold."""
        return self._cache.stats()


def _key(fn: Callable[..., Results], inputs: tuple[Tensor | int, ...]) -> Key:
    return (fn, *[place(x) if isinstance(x, Tensor) else (type(x), x) for x in inputs])


memo = Memo()
"""The memo that compiled programs share."""


class GivenOut:
    """`memo.kept` for a function whose results users get and may edit in a way that PyTorch does not see."""

    def __init__(self, positions: Iterable[int]) -> None:
        """`positions` are the positions of the results that users get; all of these are tensors."""
        self._watches = [(i, Watch()) for i in positions]

    def __call__(self, fn: Callable[..., Results], *inputs: Tensor | int) -> Results:
        """The results of `fn(*inputs)`, computed again if a user has edited them."""
        while True:
            results, before = memo.kept(fn, *inputs), unseen_edits()
            for i, watch in self._watches:
                watch(results[i])  # type: ignore[arg-type]
            if unseen_edits() == before:
                return results
