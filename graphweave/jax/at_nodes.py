"""A function of one edge, with products and sums of features that depend on one end alone computed on its nodes.

`leaky_relu((src @ w) @ a)` multiplies rows of sources; there are fewer of them than edges. Message programs have rules
for that (Zhang et al., "Understanding GNN Computational Graph", section 4), but a gradient that JAX has made of the
function on edges has products on edges in more forms than rules can gather. So this is done before JAX differentiates:
the function is traced once more for as many rows as there are nodes, and where both traces are the same up to the
number of rows, the equations that lead to products are taken from that one, and their results pulled.

Only operations that are finite, with finite gradients, wherever their operands are finite are computed on nodes. A node
without edges contributes to no result, so it must not spoil gradients by 0 times infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from graphweave.core.log import logger
from graphweave.jax.importer import Rows
from graphweave.jax.moves import pull

_log = logger(__name__)

_HEAVY = frozenset({"dot_general", "reduce_sum"})
"""Primitives that are worth computing on nodes."""

_SAFE = _HEAVY | {
    "mul", "add", "add_any", "sub", "neg", "tanh", "logistic", "sin", "cos", "max", "min", "select_n", "square", "abs",
    "convert_element_type", "broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice",
    "concatenate", "copy", "copy_p", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "iota", "erf",
}  # fmt: skip
"""Operations that are finite with finite gradients wherever their operands are finite, unless numbers overflow."""

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call"})


class AtNodes:
    """`at_nodes(*xs)`: the result of a function of one edge for all edges, of arguments that have the rows `kinds`."""

    def __init__(self, traces: Mapping[Rows, Any], kinds: Sequence[Rows], rows: Mapping[Rows, int]) -> None:
        """`traces`: the function's jaxpr for the rows of edges, and of those ends that it may be computed on."""
        self._traces, self._kinds, self._rows = traces, tuple(kinds), rows
        edge = traces["edge"].jaxpr
        self._levels: dict[Any, Rows] = dict.fromkeys(edge.constvars, "unit")
        self._levels.update(zip(edge.invars, kinds, strict=True))
        self._safe: dict[Any, bool] = dict.fromkeys(self._levels, True)
        self._dims: dict[Any, int] = dict.fromkeys(edge.invars, 0)
        """For each value that may be computed on nodes, the dim of its rows."""
        for i, eqn in enumerate(edge.eqns):
            own = [v for v in eqn.invars if _is_var(v)]
            level = _joined({self._levels[v] for v in own})
            safe = all(self._safe[v] for v in own) and _all_safe(eqn)
            self._levels.update(dict.fromkeys(eqn.outvars, level))
            if level in ("src", "dst") and level in traces:
                safe = safe and self._find_rows(eqn, traces[level].jaxpr.eqns[i])
            self._safe.update(dict.fromkeys(eqn.outvars, safe))
        self._stays = self._on_nodes(edge)

    def _find_rows(self, eqn: Any, on_nodes: Any) -> bool:
        """Whether each result has one dim of rows: that in which the results of both traces differ."""
        for v, w in zip(eqn.outvars, on_nodes.outvars, strict=True):
            differ = [d for d, (n, m) in enumerate(zip(v.aval.shape, w.aval.shape, strict=True)) if n != m]
            if len(differ) != 1:
                return False
            self._dims[v] = differ[0]
        return True

    def _on_nodes(self, edge: Any) -> set[int]:
        """The equations that are computed on nodes: products and sums, and those that compute their operands."""
        needed: set[Any] = set()
        found = set[int]()
        for i, eqn in _backwards(edge):
            level = self._levels[eqn.outvars[0]]
            if level not in self._traces or level == "edge" or not self._safe[eqn.outvars[0]]:
                continue
            if _any_heavy(eqn) or not needed.isdisjoint(eqn.outvars):
                found.add(i)
                needed.update(v for v in eqn.invars if _is_var(v))
        return found

    def __call__(self, *xs: Any) -> Any:
        edge = self._traces["edge"].jaxpr
        made: dict[tuple[Any, Rows], Any] = {}
        for (var, x), kind in zip(zip(edge.invars, xs, strict=True), self._kinds, strict=True):
            made[var, kind] = x
        for level, trace in self._traces.items():
            made.update(((var, level), c) for var, c in zip(edge.constvars, trace.consts, strict=True))
        needed = self._needed(edge)
        for i, eqn in enumerate(edge.eqns):
            for level in self._traces:
                if (i, level) in needed:
                    self._compute(made, i, eqn, level)
        return self._value(made, edge.outvars[0], "edge")

    def _needed(self, edge: Any) -> set[tuple[int, Rows]]:
        """Equations, each with the rows on which it is computed."""
        wanted: set[tuple[Any, Rows]] = {(edge.outvars[0], "edge")} if _is_var(edge.outvars[0]) else set()
        out: set[tuple[int, Rows]] = set()
        for i, eqn in _backwards(edge):
            own = self._levels[eqn.outvars[0]]
            levels = {level for v in eqn.outvars for level in self._traces if (v, level) in wanted}
            for level in {own if i in self._stays and level == "edge" else level for level in levels}:
                out.add((i, level))
                wanted.update((v, level) for v in eqn.invars if _is_var(v))
        return out

    def _compute(self, made: dict[tuple[Any, Rows], Any], i: int, eqn: Any, level: Rows) -> None:
        whole = self._traces[level].jaxpr
        own = whole.eqns[i]
        given = {v: self._value(made, e, level) for v, e in zip(own.invars, eqn.invars, strict=True) if _is_var(v)}
        alone = whole.replace(constvars=[], invars=[*given], eqns=[own], outvars=own.outvars)
        for v, x in zip(eqn.outvars, jax.core.eval_jaxpr(alone, [], *given.values()), strict=True):
            made[v, level] = x

    def _value(self, made: dict[tuple[Any, Rows], Any], var: Any, level: Rows) -> Any:
        if not _is_var(var):
            return jnp.asarray(var.val, var.aval.dtype)
        if (var, level) not in made:
            end = self._levels[var]
            assert level == "edge" and end in ("src", "dst")
            dim = self._dims[var]
            pulled = pull(jnp.moveaxis(made[var, end], dim, 0), end, self._rows["edge"])
            made[var, level] = jnp.moveaxis(pulled, 0, dim)
        return made[var, level]


def at_nodes(
    trace: Callable[[int], Any], edge: Any, kinds: Sequence[Rows], rows: Mapping[Rows, int]
) -> Callable[..., Any]:
    """The function whose jaxpr for the rows of edges is `edge`, and for n rows `trace(n)`."""
    traces: dict[Rows, Any] = {"edge": edge}
    for end in ("src", "dst"):
        if end in kinds and rows[end] < rows["edge"] and any(map(_any_heavy, edge.jaxpr.eqns)):
            try:
                found = trace(rows[end])
            except (TypeError, ValueError) as error:  # it contains the number of edges
                _log.info("a function of one edge is computed on edges alone: %s", error)
                continue
            if _alike(edge, found, rows["edge"], rows[end]):
                traces[end] = found
    return AtNodes(traces, kinds, rows)


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def _backwards(jaxpr: Any) -> list[tuple[int, Any]]:
    """The equations that have results, the last one first."""
    return [(i, eqn) for i, eqn in reversed(list(enumerate(jaxpr.eqns))) if eqn.outvars]


def _joined(levels: set[Rows]) -> Rows:
    levels = levels - {"unit"}
    if len(levels) > 1:
        return "edge"
    return next(iter(levels), "unit")


def _bodies(eqn: Any) -> list[Any]:
    found = [eqn.params[key] for key in _BODIES if key in eqn.params]
    return [getattr(body, "jaxpr", body) for body in found]


def _any_heavy(eqn: Any) -> bool:
    return eqn.primitive.name in _HEAVY or any(_any_heavy(e) for body in _bodies(eqn) for e in body.eqns)


def _all_safe(eqn: Any) -> bool:
    if eqn.primitive.name in _CALLS:
        return all(_all_safe(e) for body in _bodies(eqn) for e in body.eqns)
    return eqn.primitive.name in _SAFE


def _alike(one: Any, other: Any, edges: int, rows: int) -> bool:
    """Whether two jaxprs, open or closed, are the same, `rows` standing in the second where `edges` stands in the
    first."""
    consts, others = getattr(one, "consts", ()), getattr(other, "consts", ())
    if len(consts) != len(others) or not all(map(_same_array, consts, others)):
        return False
    one, other = getattr(one, "jaxpr", one), getattr(other, "jaxpr", other)

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, (tuple, list)):
            return isinstance(b, (tuple, list)) and len(a) == len(b) and all(map(same, a, b))
        if hasattr(a, "eqns") or hasattr(a, "jaxpr"):
            return (hasattr(b, "eqns") or hasattr(b, "jaxpr")) and _alike(a, b, edges, rows)
        if isinstance(a, int) and not isinstance(a, bool):
            return bool(a == b) or (a == edges and b == rows)
        if hasattr(a, "shape"):
            return _same_array(a, b)
        return callable(a) or bool(a == b)

    places: dict[Any, Any] = dict(zip(_defined(one), _defined(other), strict=False))

    def atoms(a: Any, b: Any) -> bool:
        if _is_var(a):
            return places.get(a) is b
        return isinstance(b, Literal) and _same_array(a.val, b.val)

    return len(one.eqns) == len(other.eqns) and all(
        e.primitive is f.primitive and len(e.invars) == len(f.invars) and all(map(atoms, e.invars, f.invars))
        and e.params.keys() == f.params.keys() and all(same(e.params[key], f.params[key]) for key in e.params)
        for e, f in zip(one.eqns, other.eqns, strict=True)
    ) and all(map(atoms, one.outvars, other.outvars))  # fmt: skip


def _defined(jaxpr: Any) -> list[Any]:
    """Its variables in the order in which they are defined."""
    return [*jaxpr.constvars, *jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]


def _same_array(one: Any, other: Any) -> bool:
    """Whether two arrays are the same object or hold the same numbers, which is not known of traced arrays."""
    traced = isinstance(one, jax.core.Tracer) or isinstance(other, jax.core.Tracer)
    return one is other or (not traced and np.array_equal(one, other))
