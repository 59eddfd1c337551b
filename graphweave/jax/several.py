"""Message passing along several relations of a graph as one program, whose relations share kernels as PyTorch's do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import jax
from jax import Array
from torch import Tensor

from graphweave.core.schedule import COMPILERS_CHOICE
from graphweave.core.types import DType, Space
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.graph.structure import Structure
from graphweave.graph.transform import local_var
from graphweave.jax.differentiable import call
from graphweave.jax.elementwise import DTYPE_OF
from graphweave.jax.graph_function import GraphFunction, shaped
from graphweave.jax.importer import EdgeMap, GraphSpaces, IndexOf, Rows
from graphweave.jax.kernel_graph import KernelGraph
from graphweave.jax.moves import End
from graphweave.jax.tensors import ArrayTensor, EndTensor, argument, array_of
from graphweave.tensorlike.answers import NotExpressible
from graphweave.udf.run import Results

_MOST_GRAPHS = 16
"""The cache remembers at most this many graphs of several relations with their kernels, those used last."""


class SeveralRelations:
    """The relations of a graph, numbered: relation r leads along the ends "src{r}" and "dst{r}" of "edge{r}", and
    nodes of type t are the rows "node{t}"."""

    def __init__(self, graph: Structure) -> None:
        self._graph = graph
        self._types = {ntype: f"node{i}" for i, ntype in enumerate(graph.node_frames)}
        self._numbers = {key: i for i, key in enumerate(graph.relations)}

    def call(
        self,
        function: Callable[..., Results],
        inputs: Sequence[Mapping[str, Tensor]],
        inside: Callable[[], AbstractContextManager[None]],
    ) -> Results:
        """`function(graph, *inputs)` by kernels. It is traced within `inside()`. DataError or NotExpressible for what
        one program cannot express."""
        given = [*self._fields(), *((self._types[t], x) for each in inputs for t, x in each.items())]
        traced = [(end, index) for end, index in self._ends() if isinstance(index, ArrayTensor)]
        names: list[tuple[str, str]] = []

        def plain(*arrays: Array) -> Sequence[Array]:
            made = iter([argument(x, a, rows) for (rows, x), a in zip(given, arrays, strict=False)])
            ends = dict(zip((end for end, _ in traced), arrays[len(given) :], strict=True))
            graph = self._inner(made, ends)
            own = [dict(zip(each, made, strict=False)) for each in inputs]
            with inside():
                out = function(graph, *own)
            names[:] = [(t, name) for t, fields in out.items() for name in fields]
            return [array_of(self._checked(x, t)) for t, fields in out.items() for x in fields.values()]

        args = [*(array_of(x) for _, x in given), *(array_of(index) for _, index in traced)]
        jax.eval_shape(plain, *map(shaped, args))  # which tells the names of the results
        arguments: list[Rows] = [rows for rows, _ in given]
        arguments += [IndexOf(end) for end, _ in traced]
        results = tuple(self._types[t] for t, _ in names)
        whole = GraphFunction(plain, tuple(arguments), results, self._walked(), "relations", COMPILERS_CHOICE)
        found: Results = {}
        for (ntype, name), x in zip(names, call(whole, *args), strict=True):
            found.setdefault(ntype, {})[name] = ArrayTensor(x)
        return found

    # ---------------------------------------------------------------- the graph that the function gets

    def _fields(self) -> Iterator[tuple[str, Tensor]]:
        """The fields of nodes, then of edges, each with the name of its rows."""
        for ntype, frame in self._graph.node_frames.items():
            yield from ((self._types[ntype], x) for x in frame._fields.values())
        for key, frame in self._graph.edge_frames.items():
            yield from ((f"edge{self._numbers[key]}", x) for x in frame._fields.values())

    def _inner(self, made: Iterator[Tensor], traced: Mapping[End, Array]) -> Structure:
        """The graph with arguments of a kernel in the place of fields and edges."""
        graph = local_var(self._graph)
        for frame in (*graph.node_frames.values(), *graph.edge_frames.values()):
            frame._fields.update({name: next(made) for name in frame._fields})
        for key, number in self._numbers.items():
            relation = self._graph.relations[key]
            ends = [
                EndTensor.at(end, traced[end], None) if end in traced else EndTensor.at(end, array_of(index), index)
                for end, index in _ends_of(number, relation)
            ]
            graph.relations[key] = Relation(*key, *ends)
        return graph

    def _checked(self, x: object, ntype: str) -> Tensor:
        rows = self._graph.node_frames[ntype].num_rows
        if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[0] != rows:
            raise NotExpressible(f"a result of nodes of type {ntype!r} is no tensor with a row for each")
        return x

    # ---------------------------------------------------------------- the graph that kernels walk

    def _ends(self) -> Iterator[tuple[End, Tensor]]:
        for key, number in self._numbers.items():
            yield from _ends_of(number, self._graph.relations[key])

    def _walked(self) -> KernelGraph:
        """The graph as programs know it, the same one for the same index tensors and sizes."""
        key = (
            tuple(self._identity(key) for key in self._numbers),
            tuple(frame.num_rows for frame in self._graph.node_frames.values()),
        )
        if key not in _graphs:
            known = {end: index for end, index in self._ends() if not isinstance(index, ArrayTensor)}
            _graphs[key] = KernelGraph(self._spaces(), known)
            if len(_graphs) > _MOST_GRAPHS:
                _graphs.popitem(last=False)
        _graphs.move_to_end(key)
        return _graphs[key]

    def _identity(self, key: CanonicalEtype) -> Hashable:
        relation = self._graph.relations[key]
        types = list(self._types)
        ends = types.index(key[0]), types.index(key[2])
        if isinstance(relation.src, ArrayTensor):
            return ends, relation.num_edges, relation.src.dtype
        return ends, id(relation.src), id(relation.dst)  # which the graph of this key keeps alive

    def _spaces(self) -> GraphSpaces:
        spaces: dict[Rows, Space] = {name: Space(name) for name in self._types.values()}
        rows = {Space(self._types[t]): frame.num_rows for t, frame in self._graph.node_frames.items()}
        maps = {}
        for key, number in self._numbers.items():
            relation, edges = self._graph.relations[key], Space(f"edge{number}")
            spaces[str(edges)], rows[edges] = edges, relation.num_edges
            for end, ntype, index in (("src", key[0], relation.src), ("dst", key[2], relation.dst)):
                maps[f"{end}{number}"] = EdgeMap(edges, Space(self._types[ntype]), _dtype(index))
        return GraphSpaces(spaces, rows, maps)


_graphs: OrderedDict[Hashable, KernelGraph] = OrderedDict()


def _ends_of(number: int, relation: Relation) -> Iterator[tuple[End, Tensor]]:
    yield f"src{number}", relation.src
    yield f"dst{number}", relation.dst


def _dtype(index: Tensor) -> DType:
    return DTYPE_OF[str(index.dtype).removeprefix("torch.")]
