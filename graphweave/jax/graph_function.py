"""Functions of a graph in jax.numpy, their gradients, and both as one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from graphweave.core.schedule import Schedule
from graphweave.jax.importer import ImportedTrace, Rows, import_jaxpr
from graphweave.jax.kernel_graph import KernelGraph


@dataclass(frozen=True, eq=False)
class GraphFunction:
    """`plain` is traced, with pulls and pushes, on arguments whose dim 0 counts `arguments`; so do `results`, where one
    may stand for all. Arguments that are indices of the graph's maps are read by no operation but these. Errors call it
    `what`. Its kernels follow `schedule`."""

    plain: Callable[..., Sequence[Array]]
    arguments: tuple[Rows, ...]
    results: tuple[Rows, ...]
    graph: KernelGraph
    what: str
    schedule: Schedule

    def gradients(self, wanted: Sequence[int]) -> GraphFunction:
        """`gradients(*values, *tangents)` of the arguments numbered `wanted`, a tangent for each result."""
        count = len(self.arguments)

        def plain(*xs: Array) -> Sequence[Array]:
            return self._vjp(wanted, xs[:count])[1](tuple(xs[count:]))

        return self._with_tangents(plain, tuple(self.arguments[i] for i in wanted))

    def joint(self, wanted: Sequence[int]) -> GraphFunction:
        """`joint(*values, *tangents)`: the results, then what `gradients` gives."""
        count = len(self.arguments)

        def plain(*xs: Array) -> Sequence[Array]:
            results, vjp = self._vjp(wanted, xs[:count])
            return [*results, *vjp(tuple(xs[count:]))]

        return self._with_tangents(plain, (*self.results, *(self.arguments[i] for i in wanted)))

    def batched(self, which: Sequence[bool]) -> GraphFunction:
        """The function of a batch of those arguments for which `which` is true. The batch is dim 1 of what has rows,
        arguments and results, and dim 0 of other data."""
        inside = [_batch_dim(rows) if b else None for rows, b in zip(self.arguments, which, strict=True)]

        def plain(*xs: Array) -> Sequence[Array]:
            outside = [_batch_dim(rows) for rows in self.results]
            return jax.vmap(lambda *ys: list(self.plain(*ys)), in_axes=inside, out_axes=outside)(*xs)

        return replace(self, plain=plain)

    def _vjp(self, wanted: Sequence[int], values: Sequence[Array]) -> Any:
        def of_wanted(*own: Array) -> tuple[Array, ...]:
            xs = list(values)
            for i, x in zip(wanted, own, strict=True):
                xs[i] = x
            return tuple(self.plain(*xs))

        return jax.vjp(of_wanted, *(values[i] for i in wanted))

    def _with_tangents(self, plain: Callable[..., Sequence[Array]], results: tuple[Rows, ...]) -> GraphFunction:
        return replace(self, plain=plain, arguments=(*self.arguments, *self.results), results=results)


def _batch_dim(rows: Rows) -> int:
    return 0 if rows == "unit" else 1


def shaped(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def imported(function: GraphFunction, jaxpr: Any) -> ImportedTrace:
    """The program of a jaxpr of `function`, whose arguments are the function's and then the constants of the jaxpr."""
    whole = jaxpr.replace(invars=[*jaxpr.invars, *jaxpr.constvars], constvars=[])
    shared: list[Rows] = ["unit"] * (len(whole.invars) - len(function.arguments))
    arguments = (*function.arguments, *shared)
    return import_jaxpr(whole, arguments, function.results, function.graph.frame, what=function.what)
