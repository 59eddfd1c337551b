"""Functions of a graph as functions of JAX with gradients of any order.

Such a function is a trace of jax.numpy with pulls and pushes (`moves.py`), and kernels run that. Where JAX asks for its
gradient, its forward and its backward are the halves of one program (`halves.py`).

A gradient of these halves is that of the function and of the vjp of its trace, as if nothing had been saved: each is
another such function, which computes again what it needs, and has gradients of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from graphweave.jax.graph_function import GraphFunction, imported, shaped
from graphweave.jax.halves import GraphHalves
from graphweave.jax.importer import IndexOf, Rows, needed_by
from graphweave.jax.tables import with_tables


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Perturbed:
    """Which of `count` arguments need gradients."""

    arguments: tuple[int, ...]
    count: int


def call(function: GraphFunction, *args: Array) -> list[Array]:
    """The results of `function`, by kernels; differentiable in arguments of floating-point numbers."""
    closed = jax.make_jaxpr(function.plain)(*map(shaped, args))
    jaxpr, tables, kinds = with_tables(closed)
    needed = needed_by(jaxpr)
    given = [*args, *tables, *closed.consts]
    shared: list[Rows] = ["unit"] * len(closed.consts)
    rows = [*function.arguments, *kinds, *shared]
    variables = [*jaxpr.invars, *jaxpr.constvars]
    own = [i for i, v in enumerate(variables) if v in needed or isinstance(rows[i], IndexOf)]
    eqns = [e for e in jaxpr.eqns if not needed.isdisjoint(e.outvars)]
    whole = jaxpr.replace(invars=[variables[i] for i in own], constvars=[], eqns=eqns)

    def plain(*xs: Array) -> Sequence[Array]:
        return jax.core.eval_jaxpr(whole, (), *xs)

    results = function.results * len(jaxpr.outvars) if len(function.results) == 1 else function.results
    kept = replace(function, plain=plain, arguments=tuple(rows[i] for i in own), results=results)
    return _in_halves(kept, whole, *(given[i] for i in own))


_texts: ContextVar[list[str] | None] = ContextVar("texts", default=None)


def text_of(run: Callable[[], Any]) -> str:
    """The code of the kernels of the `call` that `run()` makes: first without gradients, then its forward and backward
    with gradients in every argument that can have one. `run` is traced, and no kernel runs."""
    texts: list[str] = []
    token = _texts.set(texts)
    try:
        jax.eval_shape(run)
    finally:
        _texts.reset(token)
    return "\n".join(texts)


def _in_halves(function: GraphFunction, jaxpr: Any, *args: Array) -> list[Array]:
    """The results of a jaxpr whose constants are its last arguments."""
    texts = _texts.get()
    if texts is not None:
        texts += _told(function, jaxpr, args)
    made: dict[tuple[int, ...], GraphHalves] = {}  # for the arguments that need gradients

    whole = _with_batches(function, lambda *xs: _run(function, jaxpr, xs))

    @jax.custom_vjp
    def f(*xs: Array) -> list[Array]:
        return whole(*xs)

    def forward(*xs: Array) -> Any:
        values, wanted = [x.value for x in xs], _wanted(xs)
        if not wanted.arguments or not _is_floating(jaxpr):
            return f(*values), (values, [], _Perturbed((), len(xs)))
        if wanted.arguments not in made:
            made[wanted.arguments] = GraphHalves(function, wanted.arguments, values)
        ahead = _with_batches(function, made[wanted.arguments].forward)
        results = _again(function, ahead)(*values)
        count = len(function.results)
        return results[:count], (values, results[count:], wanted)

    def backward(kept: Any, given: Sequence[Array]) -> tuple[Array, ...]:
        values, saved, wanted = kept
        tangents = _tangents(given)
        if not wanted.arguments or tangents is None:
            return (None,) * wanted.count
        count, halves = len(values) + len(tangents), made[wanted.arguments]

        def back(*xs: Array) -> list[Array]:
            return halves.backward(xs[: len(values)], xs[len(values) : count], xs[count:])

        gradients = function.gradients(wanted.arguments)
        found = _again(gradients, _with_batches(gradients, back))(*values, *tangents, *saved)
        return _placed(found, wanted)

    f.defvjp(forward, backward, symbolic_zeros=True)
    return f(*args)


def _with_batches(function: GraphFunction, run: Callable[..., list[Array]]) -> Callable[..., list[Array]]:
    """`run`, of which `vmap` is a call of `function` with the batch among the features: one walk along the edges for
    all of its elements. A batch of edges is one of graphs, which are walked one after the other.

    `run` takes the arguments of `function` and then what a forward has saved, and gives its results and then what a
    backward needs. In a batch nothing is saved: a batched forward gives zeros, which a batched backward does not read.
    """
    own, results = len(function.arguments), len(function.results)

    @jax.custom_batching.custom_vmap
    def f(*xs: Array) -> list[Array]:
        return run(*xs)

    @f.def_vmap
    def rule(size: int, batched: Sequence[bool], *xs: Array) -> tuple[list[Array], list[bool]]:
        given = list(zip(xs, batched, strict=True))
        if any(b and isinstance(kind, IndexOf) for b, kind in zip(batched, function.arguments, strict=False)):
            return _one_by_one(run, xs, batched)
        assert any(batched[:own]), "what is saved is never a batch alone"
        rows = [_is_rows(kind) for kind in function.arguments]
        moved = [jnp.moveaxis(x, 0, 1) if b and r else x for (x, b), r in zip(given[:own], rows, strict=True)]
        made = call(function.batched(batched[:own]), *moved)
        made = [jnp.moveaxis(y, 1, 0) if _is_rows(r) else y for y, r in zip(made, function.results, strict=True)]
        every = jax.eval_shape(run, *(jax.ShapeDtypeStruct(x.shape[int(b) :], x.dtype) for x, b in given))
        kept = [jnp.zeros(y.shape, y.dtype) for y in every[results:]]
        return [*made, *kept], [True] * results + [False] * len(kept)

    return f


def _one_by_one(
    run: Callable[..., list[Array]], xs: Sequence[Array], batched: Sequence[bool]
) -> tuple[list[Array], list[bool]]:
    def of_element(own: Sequence[Array]) -> list[Array]:
        rest = iter(own)
        return run(*(next(rest) if b else x for x, b in zip(xs, batched, strict=True)))

    made = jax.lax.map(of_element, [x for x, b in zip(xs, batched, strict=True) if b])
    return made, [True] * len(made)


def _is_rows(rows: Rows) -> bool:
    return rows != "unit"


def _is_floating(jaxpr: Any) -> bool:
    return all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in jaxpr.outvars)


def _told(function: GraphFunction, jaxpr: Any, args: Sequence[Array]) -> list[str]:
    trace = imported(function, jaxpr)
    texts = [function.graph.run(trace, function.schedule).code.text]
    wanted = [i for i, x in enumerate(args) if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    if wanted and _is_floating(jaxpr):
        texts.append(GraphHalves(function, wanted, args).text)
    return texts


def _again(function: GraphFunction, run: Callable[..., list[Array]]) -> Callable[..., list[Array]]:
    """`run` with the gradients of `function`. `run` takes the arguments of `function` and further ones, and gives its
    results and further ones; the further ones have no gradients."""
    own, results = len(function.arguments), len(function.results)

    @jax.custom_vjp
    def f(*xs: Array) -> list[Array]:
        return run(*xs)

    def forward(*xs: Array) -> Any:
        values = [x.value for x in xs]
        wanted = _Perturbed(_wanted(xs[:own]).arguments, len(xs))
        return f(*values), (values[:own], wanted)  # not `run`: an outer gradient differentiates this, too

    def backward(kept: Any, given: Sequence[Array]) -> tuple[Array, ...]:
        values, wanted = kept
        tangents = _tangents(given[:results])
        if not wanted.arguments or tangents is None:
            return (None,) * wanted.count
        return _placed(call(function.gradients(wanted.arguments), *values, *tangents), wanted)

    f.defvjp(forward, backward, symbolic_zeros=True)
    return f


def _wanted(xs: Sequence[Array]) -> _Perturbed:
    found = tuple(i for i, x in enumerate(xs) if x.perturbed and jnp.issubdtype(x.value.dtype, jnp.floating))
    return _Perturbed(found, len(xs))


def _tangents(given: Sequence[Array]) -> list[Array] | None:
    """The tangents, or None if all are zero."""
    if all(isinstance(g, SymbolicZero) for g in given):
        return None
    return [jnp.zeros(g.shape, g.dtype) if isinstance(g, SymbolicZero) else g for g in given]


def _placed(gradients: Sequence[Array], wanted: _Perturbed) -> tuple[Array, ...]:
    out: list[Array] = [None] * wanted.count
    for i, g in zip(wanted.arguments, gradients, strict=True):
        out[i] = g
    return tuple(out)


def _run(function: GraphFunction, jaxpr: Any, args: Sequence[Array]) -> list[Array]:
    trace = imported(function, jaxpr)
    arrays = {name: jnp.asarray(args[i]) for name, i in trace.arguments.items()}
    arrays.update((name, jnp.asarray(c)) for name, c in trace.constants.items())
    made = function.graph.run(trace, function.schedule)(arrays)
    return [jnp.broadcast_to(x.reshape(r.made), r.shape) for x, r in zip(made, trace.results, strict=True)]
