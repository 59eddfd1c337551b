"""Functions of a graph as functions of JAX with gradients of any order.

Such a function is a trace of jax.numpy with pulls and pushes (`moves.py`). Its forward runs the kernels of that trace.
Its backward is another such function: JAX traces the vjp of the forward's trace, and kernels run that, so it has a
backward of its own. It computes again what it needs of the forward, and nothing of edges x features is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from graphweave.jax.fixed_graph import FixedGraph
from graphweave.jax.importer import Rows, import_jaxpr


@dataclass(frozen=True, eq=False)
class GraphFunction:
    """`plain` is traced, with pulls and pushes, on arguments whose dim 0 counts `arguments`; so do `results`. Errors
    call it `what`."""

    plain: Callable[..., Sequence[Any]]
    arguments: tuple[Rows, ...]
    results: tuple[Rows, ...]
    graph: FixedGraph
    what: str


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Perturbed:
    """Which arguments want gradients."""

    arguments: tuple[int, ...]


def call(function: GraphFunction, *args: Any) -> list[Any]:
    """The results of `function`, by kernels; differentiable in arguments of floating-point numbers."""
    closed = jax.make_jaxpr(function.plain)(*map(_shaped, args))
    jaxpr_args = (*args, *closed.consts)
    return _called(closed, function, *jaxpr_args)


def _shaped(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def _called(closed: Any, function: GraphFunction, *args: Any) -> list[Any]:
    """`args` are those of the function, then what its trace closes over."""
    shared: list[Rows] = ["unit"] * len(closed.consts)
    arguments = (*function.arguments, *shared)
    own = len(function.arguments)

    def plain(*xs: Any) -> Sequence[Any]:
        return jax.core.eval_jaxpr(closed.jaxpr, xs[own:], *xs[:own])

    @jax.custom_vjp
    def f(*xs: Any) -> list[Any]:
        return _run(closed.jaxpr, function, arguments, xs)

    def forward(*xs: Any) -> Any:
        values = [x.value for x in xs]
        wanted = tuple(i for i, x in enumerate(xs) if x.perturbed and jnp.issubdtype(x.value.dtype, jnp.floating))
        return f(*values), (values, _Perturbed(wanted))  # not the kernels: an outer gradient differentiates this, too

    def backward(kept: Any, given: Sequence[Any]) -> tuple[Any, ...]:
        values, wanted = kept[0], kept[1].arguments
        out: list[Any] = [None] * len(values)
        if not wanted or all(isinstance(g, SymbolicZero) for g in given):
            return tuple(out)
        tangents = [jnp.zeros(g.shape, g.dtype) if isinstance(g, SymbolicZero) else g for g in given]
        back = GraphFunction(
            _gradients(plain, wanted, len(values)), (*arguments, *function.results),
            tuple(arguments[i] for i in wanted), function.graph, function.what,
        )  # fmt: skip
        for i, g in zip(wanted, call(back, *values, *tangents), strict=True):
            out[i] = g
        return tuple(out)

    f.defvjp(forward, backward, symbolic_zeros=True)
    return f(*args)


def _gradients(plain: Callable[..., Sequence[Any]], wanted: Sequence[int], count: int) -> Callable[..., Sequence[Any]]:
    """`gradients(*values, *tangents)` of the values numbered `wanted`, of `count`."""

    def gradients(*xs: Any) -> Sequence[Any]:
        def of_wanted(*own: Any) -> tuple[Any, ...]:
            values = list(xs[:count])
            for i, x in zip(wanted, own, strict=True):
                values[i] = x
            return tuple(plain(*values))

        _, vjp = jax.vjp(of_wanted, *(xs[i] for i in wanted))
        return vjp(tuple(xs[count:]))

    return gradients


def _run(jaxpr: Any, function: GraphFunction, arguments: Sequence[Rows], args: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr whose constants are its last arguments."""
    graph = function.graph
    whole = jaxpr.replace(invars=[*jaxpr.invars, *jaxpr.constvars], constvars=[])
    imported = import_jaxpr(whole, arguments, function.results, graph.frame, what=function.what)
    arrays = {name: jnp.asarray(args[i]) for name, i in imported.arguments.items()}
    arrays.update((name, jnp.asarray(c)) for name, c in imported.constants.items())
    made = graph.run(imported.program)(arrays)
    return [jnp.broadcast_to(x.reshape(r.made), r.shape) for x, r in zip(made, imported.results, strict=True)]
