"""Calls of a compiled program replayed as CUDA graphs (`options={"cuda_graphs": True}`).

A CUDA graph serves arguments of one kind. The kind consists of the shape, strides and dtype of each tensor and the
value of each number; for index tensors it is the memory and the version, since formats are made from them outside the
CUDA graph. The first calls of a kind run plainly, which builds formats and compiles kernels. The next call runs on a
side stream, on tensors that the CUDA graph owns, as the documentation of CUDA graphs demands, and is then captured.
Each later call copies its arguments to those tensors, replays, and copies the results.

The copies are the cost: each call reads and writes its arguments (including parameters) and its results once more, and
each CUDA graph holds memory for both in addition to its own. Results are copied so that no later replay overwrites
tensors that the user or autograd holds. Results that lie in memory of an index, or of a value of the prelude, are
returned without a copy: they do not change, and the backward recognises its graph by them.

Random numbers follow PyTorch's generator of the device: seeds are drawn within the CUDA graph by `aten.randint`, and a
replay advances the generator as a call does. The launches of a replay are not counted as `kernel_launches`.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.compiler.plan import Plan
from graphweave.core import locks
from graphweave.core.boxed import Boxed
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.core.options import Options
from graphweave.execute.capturable import CallWatch, structure, why_not
from graphweave.runtime.capturing import capturing
from graphweave.runtime.cuda_stream import CudaDevice, GraphDevice
from graphweave.runtime.memo import lent
from graphweave.runtime.tracked import Versions, ordinary, place, versions_of
from graphweave.runtime.triton_kernel import precision

_log = logger(__name__)
_lock = locks.reentrant_lock()
"""Held while one call of one thread uses the tensors that a CUDA graph owns."""

PLAIN_CALLS = 2
"""Number of plain calls of one kind before its CUDA graph is captured. A mini-batch seen once or twice is not worth a
capture."""

GRAPHS = 8
"""Limit on the kinds of arguments that a program remembers. The least recently used one is dropped first."""

Key: TypeAlias = tuple[Hashable, ...]


def graph_device(options: Options) -> GraphDevice | None:
    """The device that captures programs for `options`; None for the CPU, which has no CUDA graphs."""
    return CudaDevice(options.device) if torch.device(options.device).type == "cuda" else None


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured call: `own[i]` stands for argument i, and `results` are the outputs of the captured program."""

    replay: Callable[[], None]
    own: tuple[Any, ...]
    results: tuple[Any, ...]
    made: frozenset[int]  # ids of results that a replay writes
    read: tuple[Tensor, ...]  # tensors of caches that the graph reads, which must stay alive and unchanged
    versions: tuple[int, ...]  # versions of `read` when the graph was captured


@dataclass(slots=True)
class _Kind:
    """Arguments of one kind. `tensors` are aliases of the index tensors, so that their memory is not reused."""

    tensors: tuple[Tensor, ...]
    versions: Versions
    calls: int = 0
    graph: _Graph | None = None


class CudaGraphs:
    """`graphs(args)` is `run(args)`, replayed as a CUDA graph where that is possible.

    Other calls run plainly and are counted, and the reason is logged once. A failed capture warns once.
    """

    def __init__(
        self, run: Boxed, name: str, device: GraphDevice, structure: frozenset[int] = frozenset(),
        why_not: str | None = None,
    ) -> None:  # fmt: skip
        """`structure` are the positions of index tensors among the arguments. `why_not` is a reason never to
        capture."""
        self._run, self._name, self._device = run, name, device
        self._structure = structure
        self._why_not: str | None = None
        self._said: set[str] = set()
        self._kinds: OrderedDict[Key, _Kind] = OrderedDict()
        if why_not is not None:
            self._never(why_not)

    @classmethod
    def of(cls, run: Boxed, plan: Plan, device: GraphDevice, *, verify: bool = False) -> CudaGraphs:
        return cls(run, str(plan.name), device, structure(plan), why_not(plan, verify=verify))

    def __call__(self, args: list[Any]) -> list[Any]:
        """Empties `args`, as `run` does."""
        if self._why_not is not None:
            return self._as_it_is(args)
        key = self._key(args)
        if isinstance(key, str):
            self._say(key)
            return self._as_it_is(args)
        tensors = tuple(args[i] for i in sorted(self._structure))
        versions = versions_of(tensors)
        if versions is None:
            self._say("an index tensor was made in inference mode, so that edits cannot be noticed")
            return self._as_it_is(args)
        with _lock:
            kind = self._kind(key, tensors, versions)
            if kind.graph is not None:
                bump("cuda_graph_replays")
                return self._replayed(kind.graph, args)
            if kind.calls >= PLAIN_CALLS:
                return self._captured(kind, args)
            kind.calls += 1
        return self._run(args)

    # -------------------------------------------------------- kinds of arguments

    def _key(self, args: list[object]) -> Key | str:
        """A key that is equal for calls of one kind, or a text that says why this call cannot have a CUDA graph."""
        stream = self._device.stream()
        if stream is None:
            return "the stream is being captured already"
        key: list[Hashable] = [stream, precision(), torch.are_deterministic_algorithms_enabled()]
        for i, arg in enumerate(args):
            if not isinstance(arg, Tensor):
                key.append((type(arg), arg))
            elif arg.device.type != self._device.kind:
                return f"an argument lies on {arg.device}"
            elif i in self._structure:
                key.append(place(arg))
            else:
                key.append((arg.shape, arg.stride(), arg.dtype, arg.device))
        return tuple(key)

    def _kind(self, key: Key, tensors: tuple[Tensor, ...], versions: Versions) -> _Kind:
        """The kind of a call. It starts from scratch if an index, or a value that its CUDA graph reads, has been
        edited."""
        kind = self._kinds.get(key)
        if kind is not None and kind.versions == versions and _as_they_were(kind.graph):
            self._kinds.move_to_end(key)
            return kind
        self._kinds.pop(key, None)
        kind = self._kinds[key] = _Kind(tuple(t.detach() for t in tensors), versions)
        while len(self._kinds) > GRAPHS:
            self._kinds.popitem(last=False)
        return kind

    # -------------------------------------------------------- capture and replay

    def _captured(self, kind: _Kind, args: list[Tensor | int]) -> list[object]:
        """The results of a call on tensors that the CUDA graph will own. The program is then captured with these
        tensors."""
        with ordinary(), torch.no_grad():
            own = tuple(self._own(i, a) if isinstance(a, Tensor) else a for i, a in enumerate(args))
        watch = CallWatch(self._device.kind)
        with ordinary(), torch.no_grad(), capturing(refuses=False) as read, watch:
            done = self._device.aside(lambda: self._run(list(own)))
        results = _given(done, own, args, frozenset(map(id, self._written_results(done, own, read))))
        del done  # the memory of the results returns to the side stream
        args.clear()
        if watch.why is not None:
            self._never(watch.why)
            bump("cuda_graph_skips")
            return results
        try:
            kind.graph = self._capture(own)
            bump("cuda_graph_captures")
        except Exception as error:
            self._failed(error)
        return results

    def _own(self, i: int, a: Tensor) -> Tensor:
        return a.detach() if i in self._structure else torch.empty_like(a).copy_(a)

    def _written_results(self, results: list[object], own: tuple[Any, ...], read: list[Tensor]) -> list[Tensor]:
        """The results that each call writes: those that are not arguments and share no memory with indices or
        caches."""
        known = {_storage(t) for t in (*(own[i] for i in self._structure), *read)}
        passed = {id(a) for a in own}
        tensors = {id(t): t for t in results if isinstance(t, Tensor)}
        return [t for t in tensors.values() if id(t) not in passed and _storage(t) not in known]

    def _capture(self, own: tuple[object, ...]) -> _Graph:
        given: list[Any] = []

        def work() -> list[Tensor]:
            given[:] = self._run(list(own))
            return self._written_results(given, own, read)

        with ordinary(), torch.no_grad(), capturing() as read:
            replay, made = self._device.capture(work)
        held = tuple(read)
        ids = frozenset(map(id, made))
        return _Graph(replay, own, tuple(given), ids, held, tuple(t._version for t in held))

    def _replayed(self, graph: _Graph, args: list[Tensor | int]) -> list[object]:
        pairs = [
            (mine, arg)
            for i, (mine, arg) in enumerate(zip(graph.own, args, strict=True))
            if isinstance(arg, Tensor) and i not in self._structure
        ]
        with torch.no_grad():
            if pairs:
                torch._foreach_copy_([mine for mine, _ in pairs], [arg for _, arg in pairs])
            graph.replay()
        results = _given(graph.results, graph.own, args, graph.made)
        args.clear()
        return results

    # -------------------------------------------------------- what cannot be captured

    def _as_it_is(self, args: list[object]) -> list[Tensor | int | None]:
        bump("cuda_graph_skips")
        return self._run(args)

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            _log.warning("%s runs without a CUDA graph: %s. Its results are the same.", self._name, why)

    def _never(self, why: str) -> None:
        self._why_not = why
        self._kinds.clear()
        self._say(why)

    def _failed(self, error: Exception) -> None:
        bump("cuda_graph_failures")
        cause = error.__context__ or error  # the end of a broken capture raises an error of its own
        why = f"its capture failed: {type(cause).__name__}: {cause}"
        _log.debug("%s: %s", self._name, why, exc_info=error)
        warnings.warn(
            f"graphweave: {self._name} runs without a CUDA graph: {why}. Leave out mode='reduce-overhead' or the "
            "option cuda_graphs, or report it, with GRAPHWEAVE_LOGS=+execute for the traceback.",
            stacklevel=2,
        )
        self._said.add(why)
        self._never(why)


def _given(results: Any, own: tuple[Tensor | int, ...], args: list[Tensor | int], made: frozenset[int]) -> list[object]:
    """The results for the caller: the caller's argument for each tensor in `own`, copies of results that were `made`,
    and the other results, which never change, lent."""
    mine = {id(a): args[i] for i, a in enumerate(own) if isinstance(a, Tensor)}
    copies: dict[int, Tensor] = {}
    new = {id(t): t for t in results if isinstance(t, Tensor) and id(t) in made}
    together = Counter(map(_place, new.values()))
    whole: dict[Hashable, Tensor] = {}  # copies of memory in which several results lie
    out: list[Any] = []
    with torch.no_grad():
        for t in results:
            if not isinstance(t, Tensor):
                out.append(t)
            elif id(t) in mine:
                out.append(mine[id(t)])
            elif id(t) in made:
                if id(t) not in copies:
                    copies[id(t)] = _in_copy(t, whole) if together[_place(t)] > 1 else t.clone()
                out.append(copies[id(t)])
            else:
                out.append(lent(t))
    return out


def _in_copy(t: Tensor, whole: dict[Hashable, Tensor]) -> Tensor:
    """`t` inside a copy of the whole memory that it is part of, so that results which share memory still do."""
    if _place(t) not in whole:
        whole[_place(t)] = t.new_empty(0).set_(t.untyped_storage()).clone()
    return whole[_place(t)].as_strided(t.shape, t.stride(), t.storage_offset())


def _place(t: Tensor) -> tuple[int, torch.dtype]:
    return _storage(t), t.dtype


def _as_they_were(graph: _Graph | None) -> bool:
    return graph is None or all(t._version == v for t, v in zip(graph.read, graph.versions, strict=True))


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata
