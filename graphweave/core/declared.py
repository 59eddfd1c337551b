"""Operators that are declared while a process runs: members of `Op` besides the rows of `operators.py`."""

from __future__ import annotations

from graphweave.core.errors import DeclarationError
from graphweave.core.operators import Op, Operator


def declare(name: str, facts: Operator) -> Op:
    """Adds a member called `name` to `Op`, equal in every respect to one that `operators.py` declares, and returns it.

    Lookups by name (from text, from formulas) and loops over all operators find it until `withdraw`. Raises
    DeclarationError if there is an operator of this name.
    """
    if name in Op._member_map_:
        raise DeclarationError(f"an operator is called {name!r} already. Choose another name.")
    op = object.__new__(Op)
    op._name_, op._value_, op.facts = name, name, facts
    Op._member_map_[name] = Op._value2member_map_[name] = op
    Op._member_names_.append(name)
    return op


def withdraw(op: Op) -> None:
    """Removes `op` from `Op`, so that no lookup finds it. Programs that hold `op` keep it."""
    del Op._member_map_[op.value], Op._value2member_map_[op.value]
    Op._member_names_.remove(op.value)
