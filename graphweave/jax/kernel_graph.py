"""Graphs as the programs on them know them: spaces, maps, and the kernels of the programs that have run there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.schedule import Schedule
from graphweave.core.types import DType, Space
from graphweave.ir.message.nodes import Input, MapOf, Ref
from graphweave.jax.compiled import CompiledProgram, compiled, compiled_halves
from graphweave.jax.importer import EdgeMap, GraphSpaces, ImportedTrace
from graphweave.jax.moves import End
from graphweave.jax.run import GraphRun
from graphweave.runtime.index import INT32_MAX

T = TypeVar("T")

_MOST_RUNS = 128
"""A graph remembers at most this many programs, those used last."""


class KernelGraph:
    """A graph that programs walk. `frame` has its spaces and maps, and `indices` those index tensors of maps that are
    known when JAX traces; any other index is an argument of a program (`IndexOf`)."""

    def __init__(self, frame: GraphSpaces, indices: Mapping[str, Tensor]) -> None:
        self.frame = frame
        self._indices = indices
        self._runs: OrderedDict[Hashable, Any] = OrderedDict()

    def run(self, trace: ImportedTrace, schedule: Schedule) -> GraphRun:
        """The program of `trace` with its kernels on this graph. They run on as many threads as the schedule says, or
        as PyTorch uses when they are made."""

        def make() -> GraphRun:
            return self._run(trace, compiled(trace.program, trace.rows, schedule, self._knows(trace)))

        return self._with_kernels((trace.program, schedule), trace, make)

    def halves(
        self, trace: ImportedTrace, num_forward: int, tangents: frozenset[str], schedule: Schedule
    ) -> tuple[GraphRun, GraphRun, dict[Ref, str]]:
        """Forward and backward of a joint program (`compiled.compiled_halves`), and the values that the forward gives
        to the backward, each with the name of the backward's input. Arguments that both have are none of these, and
        the backward has what depends on known edges alone."""

        def make() -> tuple[GraphRun, GraphRun, dict[Ref, str]]:
            code = compiled_halves(trace.program, num_forward, tangents, trace.rows, schedule, self._knows(trace))
            forward = self._run(trace, code.forward)
            known = {name: forward.fixed[r] for r, name in code.saved if r in forward.fixed}
            inputs = {r for r, n in enumerate(forward.program.nodes) if isinstance(n, Input)}
            saved = {r: name for r, name in code.saved if name not in known and r not in inputs}
            return forward, self._run(trace, code.backward, known), saved

        return self._with_kernels((trace.program, num_forward, tangents, schedule), trace, make)

    def _run(self, trace: ImportedTrace, code: CompiledProgram, known: Mapping[str, Tensor] | None = None) -> GraphRun:
        return GraphRun(code, dict(trace.rows), {**self._indices, **trace.types, **(known or {})})

    def _knows(self, trace: ImportedTrace) -> bool:
        """Whether all indices along which the program walks are known when JAX traces."""
        nodes, known = trace.program.nodes, self._indices.keys() | trace.types.keys()
        indices = (nodes[n.index] for n in nodes if isinstance(n, MapOf))
        return all(isinstance(index, Input) and index.name in known for index in indices)

    def _with_kernels(self, key: Hashable, trace: ImportedTrace, make: Callable[[], T]) -> T:
        """The result of `make`, kept for programs on the same types of edges, which it holds."""
        types = tuple(map(id, trace.types.values()))
        return self.remembered((key, types, torch.get_num_threads()), make)

    def remembered(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, which is kept as long as it is among those used last."""
        if key not in self._runs:
            self._runs[key] = make()
            if len(self._runs) > _MOST_RUNS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(key)
        found: T = self._runs[key]
        return found


def spaces_of(num_src: int, num_dst: int | None, num_edges: int, index: DType) -> GraphSpaces:
    """The spaces of edges from `num_src` sources to `num_dst` destinations; None if both are the same nodes. DataError
    for more rows than kernels can count."""
    edges, sources = Space("edges"), Space("nodes" if num_dst is None else "sources")
    destinations = sources if num_dst is None else Space("destinations")
    rows = {sources: num_src, destinations: num_src if num_dst is None else num_dst, edges: num_edges}
    if max(rows.values()) > INT32_MAX:
        raise DataError(f"expected at most {INT32_MAX} rows and edges (got {num_edges} edges). Partition the graph.")
    maps: dict[End, EdgeMap] = {"src": EdgeMap(edges, sources, index), "dst": EdgeMap(edges, destinations, index)}
    return GraphSpaces({"src": sources, "dst": destinations, "edge": edges}, rows, maps)


@lru_cache(maxsize=64)
def sized_graph(num_src: int, num_dst: int | None, num_edges: int, index: DType) -> KernelGraph:
    """The graph of these sizes whose edges are arguments of programs: one for all such graphs."""
    return KernelGraph(spaces_of(num_src, num_dst, num_edges, index), {})


@lru_cache(maxsize=64)
def graph_of_rows(count: int) -> KernelGraph:
    """A graph of `count` edges without ends, for functions of rows."""
    edges = Space("edges")
    return KernelGraph(GraphSpaces({"edge": edges}, {edges: count}, {}), {})
