"""Decides whether a sum of row counts is zero, where data decides some of them and a guard can be set on others.

A layer that adds self-loops to filtered edges and asks `index.numel() == 0` asks whether u + n is 0, for u edges that
data leaves and n nodes. With a guard that there are nodes, it is not.
"""

from __future__ import annotations

from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_WHERE_POSITIVE: dict[type, bool] = {
    sympy.Eq: False, sympy.Ne: True, sympy.Gt: True, sympy.Ge: True, sympy.Lt: False, sympy.Le: False,
}  # fmt: skip
"""A comparison of two sides -> whether it holds if the left side is the greater one."""
_MIRRORED: dict[type, type] = {sympy.Gt: sympy.Lt, sympy.Ge: sympy.Le, sympy.Lt: sympy.Gt, sympy.Le: sympy.Ge}


def truth_of(condition: Any) -> bool | None:
    """The truth of a SymBool that compares such a sum with zero, after a guard that part of the sum is positive; None
    for other conditions, and where that part is zero in this trace."""
    relation = condition.node.expr
    if type(relation) not in _WHERE_POSITIVE:
        return None
    env = condition.node.shape_env
    for difference, kind in (
        (relation.lhs - relation.rhs, type(relation)),
        (relation.rhs - relation.lhs, _MIRRORED.get(type(relation), type(relation))),
    ):
        if _is_positive(sympy.expand(difference), env):
            return _WHERE_POSITIVE[kind]
    return None


def _is_positive(total: Any, env: object) -> bool:
    """Whether `total` is a sum of counts, of which one is positive, perhaps by a guard that this adds."""
    terms = total.as_coefficients_dict()
    if not all(factor > 0 and all(_is_count(s, env) for s in term.free_symbols) for term, factor in terms.items()):
        return False
    if not all(term.is_Symbol or term.is_Number for term in terms):
        return False
    if total.subs(dict.fromkeys(total.free_symbols, 0)) > 0:
        return True
    return any(_is_guarded(term, env) for term in terms if term.is_Symbol and not free_unbacked_symbols(term))


def _is_guarded(size: object, env: Any) -> bool:
    """Guard that a size is 1, or that it is 2 or more; False if it is 0 in this trace. PyTorch remembers "fewer than 2"
    as a range of the size, from which it concludes more than from "not 0"."""
    values = getattr(env, "backed_var_to_val", None) or getattr(env, "var_to_val", {})
    if not values.get(size, 0) > 0:
        return False
    few: Any = sympy.Lt(size, 2)
    return not env.evaluate_expr(few) or bool(env.evaluate_expr(sympy.Eq(size, 1)))


def _is_count(symbol: object, env: Any) -> bool:
    return bool(env.bound_sympy(symbol).lower >= 0)
