"""The graph and the features of a call, checked, and functions of one edge traced on their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from graphweave.core.edge_functions import EdgeFunction, Features, fields_of, with_fields, wrong_rows
from graphweave.core.errors import DataError
from graphweave.core.schedule import COMPILERS_CHOICE, Schedule
from graphweave.jax.differentiable import call
from graphweave.jax.fixed_graph import graph_in_any_form
from graphweave.jax.graph_function import GraphFunction
from graphweave.jax.importer import Rows, import_jaxpr
from graphweave.jax.moves import pull

_ENDS = ("src", "dst", "edge")


class EdgeData:
    """A graph with features of its sources, destinations and edges."""

    def __init__(self, graph: Any, src: Features, dst: Features, edge: Features, num_dst: int | None = None) -> None:
        """DataError names the argument that does not fit."""
        self._given: dict[Rows, Features] = {"src": src, "dst": dst, "edge": edge}
        rows: dict[Rows, int | None] = {end: _rows(end, self._given[end]) for end in _ENDS}
        self.graph = graph_in_any_form(graph, rows, num_dst)
        counts = {"src": self.graph.num_src, "dst": self.graph.num_dst, "edge": self.graph.num_edges}
        for end in _ENDS:
            for field, x in fields_of(self._given[end]):
                if x.shape[0] != counts[end]:
                    raise wrong_rows(end, field, x.shape, counts[end])
        self.arrays = [jnp.asarray(x) for end in _ENDS for _, x in fields_of(self._given[end])]
        self.kinds: tuple[Rows, ...] = tuple(end for end in _ENDS for _ in fields_of(self._given[end]))

    def traced(self, what: str, function: EdgeFunction) -> Callable[..., Any]:
        """`function` of the rows of all edges, of `arrays`. Raises DataError if it does not return one row for each
        edge, mixes rows, or does something that kernels cannot do."""
        edges = self.graph.num_edges
        shapes = [jax.ShapeDtypeStruct((edges, *x.shape[1:]), x.dtype) for x in self.arrays]
        closed, out = jax.make_jaxpr(lambda *xs: function(*self._arguments(xs)), return_shape=True)(*shapes)
        if not isinstance(out, jax.ShapeDtypeStruct):
            raise DataError(f"{what} must return an array (got {type(out).__name__}). Return one row for each edge.")
        if len(out.shape) == 0 or out.shape[0] != edges:
            raise DataError(
                f"{what} returned an array of shape {list(out.shape)}, but there are {edges} edges."
                " Return one row for each edge."
            )
        whole = closed.jaxpr.replace(invars=[*closed.jaxpr.invars, *closed.jaxpr.constvars], constvars=[])
        arguments: list[Rows] = ["edge"] * len(self.arrays)
        arguments += ["unit"] * len(closed.consts)
        import_jaxpr(whole, arguments, ("edge",), self.graph.walked.frame, what=what, row_wise=True)

        def on_edges(*xs: Any) -> Any:
            pairs = zip(xs, self.kinds, strict=True)
            rows = (pull(x, end, edges) if end == "src" or end == "dst" else x for x, end in pairs)
            return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *rows)[0]

        return on_edges

    def called(self, what: str, plain: Callable[..., Any], rows: Rows, schedule: Schedule | Literal["auto"]) -> Any:
        """The results of `plain` on `arrays`, by kernels. Dim 0 of a result counts `rows`."""
        chosen = COMPILERS_CHOICE if isinstance(schedule, str) else schedule
        graph, kinds = self.graph.walked, self.kinds
        spaces = [graph.frame.spaces[kind] for kind in kinds]
        same = [(id(x), space) for x, space in zip(self.arrays, spaces, strict=True)]
        places = list(dict.fromkeys(same))  # an array that is given twice is one argument

        def of_arrays(*xs: Any) -> list[Any]:
            return [plain(*(xs[places.index(key)] for key in same))]

        first = [same.index(key) for key in places]
        arguments = (*(kinds[i] for i in first), *self.graph.kinds)
        function = GraphFunction(of_arrays, arguments, (rows,), graph, what, chosen)
        return call(function, *(self.arrays[i] for i in first), *self.graph.indices)[0]

    def _arguments(self, rows: Sequence[Any]) -> list[Features]:
        left = list(rows)
        out = []
        for end in _ENDS:
            count = len(fields_of(self._given[end]))
            out.append(with_fields(self._given[end], left[:count]))
            left = left[count:]
        return out


def _rows(name: str, x: Features) -> int | None:
    """Rows of the first array of `x`; None if it has none."""
    if isinstance(x, Mapping) and not all(isinstance(key, str) for key in x):
        raise DataError(f"{name} must be an array or a dict of arrays by name (got keys {list(x)}). Use names.")
    found = None
    for field, value in fields_of(x):
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise DataError(
                f"{name}{field} must be an array or a dict of arrays (got {type(value).__name__}). Pass one of these."
            )
        if len(value.shape) == 0:
            raise DataError(f"{name}{field} must be an array [rows, ...] (got a scalar). Give it one row for each.")
        found = value.shape[0] if found is None else found
    return found
