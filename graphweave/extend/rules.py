"""Rewrite rules that users add to those of `passes/rules/`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

from graphweave.core.errors import DeclarationError, RuleError
from graphweave.extend.handle import Handle, entered, identity, known
from graphweave.frontends.halves import added_rules
from graphweave.frontends.halves.added_rules import When
from graphweave.ir.message.builder import Builder, operands
from graphweave.ir.message.nodes import Ref
from graphweave.passes.rules.rule import Apply, Rule


def rule(
    name: str, before: str, after: str, function: Callable[[Builder, Ref], Ref | None], *, when: When = "by cost"
) -> Handle:
    """Register the rewrite rule `before -> after`, two texts for `graphweave.explain`, under `name`.

    `function(build, ref)` looks at the node `build.nodes[ref]`, uses `build.add` to build an equal value from the
    operands of that node (`graphweave.extend.algebra` has the nodes), and returns its position. The value must have the
    same space, shape and dtype. None says that the rule does not apply. The function may not use `ref` itself, and
    cannot read tensors, since programs have none.

    `when="always"` applies the rule wherever it can be applied, once programs are simplified. This suits rules that
    never make a program slower. `when="by cost"` keeps its results where the cost model says that the whole program,
    forward and backward, gains: the rule is tried at all nodes together first, then at each node alone. The rule itself
    need not decide whether it pays off.

    Graphs that are compiled from now on, forward and backward, are rewritten by the rule; those that were compiled
    before are not affected. The handle revokes the rule, by `remove()` or at the end of a `with` block.

    A rule that changes values makes results silently wrong. `options={"verify": True}` finds it: calls raise
    VerifyError, which names the rule, its function's line, and the user's line where it was applied.

    Raises ValueError (DeclarationError) for a name that another rule has, or for another `when`. If the function
    raises, or returns what cannot replace the node (a value of another type, or one that contains the node itself), the
    graph is left to PyTorch with a warning that names the rule.
    """
    said = f"graphweave.extend.rule({name!r})"
    if not re.fullmatch(r"[\w-]+", name):
        raise DeclarationError(
            f"{said}: expected a name of letters, digits and hyphens (got {name!r}). Choose one such as 'monotone-max'."
        )
    if when not in get_args(When):
        raise DeclarationError(f"{said}: when must be 'always' or 'by cost' (got {when!r}). Pass one of these.")
    if not callable(function):
        raise DeclarationError(f"{said}: expected a function of a builder and a position (got {function!r}). Pass one.")
    key = (before, after, identity(function), when)
    found = known(f"rule {name}", key)
    if found is not None:
        return found
    made = Rule(name, before, after, _guarded(name, function))
    added_rules.add(made, when, line_of(function))
    return entered(f"rule {name}", key, lambda: added_rules.discard(made))


def line_of(function: Callable[..., object]) -> str:
    """The file and line where a function begins; "" if it is not written in Python."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _guarded(name: str, function: Callable[[Builder, Ref], Ref | None]) -> Apply:
    """`function`, with its result checked before it enters a program."""
    where = f"rule {name!r} ({line_of(function)})"

    def apply(build: Builder, ref: Ref) -> Ref | None:
        try:
            new = function(build, ref)
        except Exception as error:
            raise RuleError(
                f"{where} raised {type(error).__name__}: {error}, at {build.nodes[ref]}. Correct it"
            ) from error
        if new is None:
            return None
        if not isinstance(new, int) or not 0 <= new < len(build.nodes):
            raise RuleError(f"{where} gave {new!r}: expected the position of a node or None. Give what build.add gives")
        if build.types[new] != build.types[ref]:
            raise RuleError(
                f"{where} gave a value of {build.types[new]} for {build.nodes[ref]} of {build.types[ref]}. Correct it"
            )
        if new != ref and _uses(build, new, ref):
            raise RuleError(f"{where} built upon the node that it was to replace, {build.nodes[ref]}. Use its operands")
        return new

    return apply


def _uses(build: Builder, user: Ref, ref: Ref) -> bool:
    """Whether `user` needs `ref`. Operands come earlier."""
    todo, seen = [user], {user}
    while todo:
        for operand in operands(build.nodes[todo.pop()]):
            if operand == ref:
                return True
            if operand > ref and operand not in seen:
                seen.add(operand)
                todo.append(operand)
    return False
