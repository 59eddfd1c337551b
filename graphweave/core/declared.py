"""Operators that are declared while a process runs: members of `Op` beside the rows of `operators.py`."""

from __future__ import annotations

from graphweave.core.errors import DeclarationError
from graphweave.core.operators import Op, Operator


def declare(name: str, facts: Operator) -> Op:
    """A member of `Op` called `name`, as a row of `operators.py` is one, until it is withdrawn.

    Whatever looks up an operator by name (text, formulas) or goes over all of them finds it. Raises DeclarationError
    where an operator has this name.
    """
    if name in Op._member_map_:
        raise DeclarationError(f"an operator is called {name!r} already. Choose another name.")
    op = object.__new__(Op)
    op._name_, op._value_, op.facts = name, name, facts
    Op._member_map_[name] = Op._value2member_map_[name] = op
    Op._member_names_.append(name)
    return op


def withdraw(op: Op) -> None:
    """Programs that hold `op` keep it; it is found no more."""
    del Op._member_map_[op.value], Op._value2member_map_[op.value]
    Op._member_names_.remove(op.value)
