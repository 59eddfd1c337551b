"""Tables that have a row for each type of edges, computed before the kernels that look rows up in them."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from graphweave.jax.importer import Rows, needed_by
from graphweave.jax.moves import lookup_p


def with_tables(closed: Any) -> tuple[Any, list[Array], list[Rows]]:
    """The jaxpr of `closed` with each table that depends on constants alone as a further argument; their values; and
    their rows. A table that depends on arguments stays: it is an argument, or has been made of one by a gradient."""
    jaxpr = closed.jaxpr
    known, eqns = set(jaxpr.constvars), []
    for eqn in jaxpr.eqns:
        if eqn.primitive is not lookup_p and all(_is_known(v, known) for v in eqn.invars):
            known.update(eqn.outvars)
            eqns.append(eqn)
    lookups = [e for e in jaxpr.eqns if e.primitive is lookup_p and e.invars[0] in known]
    if not lookups:
        return jaxpr, [], []
    tables = list({e.invars[0]: e.params["types"] for e in lookups}.items())
    names = [var for var, _ in tables]
    outside = jaxpr.replace(constvars=[], invars=jaxpr.constvars, outvars=names, eqns=eqns)
    needed = needed_by(outside)
    outside = outside.replace(eqns=[e for e in eqns if not needed.isdisjoint(e.outvars)])
    inside = [e for e in jaxpr.eqns if not set(e.outvars) & set(names)]
    values = jax.core.eval_jaxpr(outside, (), *closed.consts)
    return jaxpr.replace(invars=[*jaxpr.invars, *names], eqns=inside), values, [types for _, types in tables]


def _is_known(var: Any, known: set[Any]) -> bool:
    return hasattr(var, "val") or var in known
