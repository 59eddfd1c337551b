"""Applies rules that never lose at every node until none applies, and drops dead nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphweave.ir.message.builder import Builder, with_operands
from graphweave.ir.message.nodes import Program, Ref
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.rules import (
    column_counts,
    common,
    constants,
    copies_apart,
    join_orders,
    join_parts,
    join_reshapes,
    join_selects,
    narrow_early,
    scale_out,
    slice_products,
    typed_linear,
    unbroadcast,
)
from graphweave.passes.rules.rule import Rule
from graphweave.passes.substitute import substitute

ALWAYS: tuple[Rule, ...] = (
    constants.RULE,
    unbroadcast.RULE,
    join_reshapes.RULE,
    join_parts.RULE,
    narrow_early.RULE,
    join_selects.RULE,
    join_orders.RULE,
    common.RULE,
    column_counts.RULE,
    typed_linear.RULE,
    copies_apart.RULE,
    scale_out.GATHERED,
    slice_products.RULE,
)

_MAX_RULES = 16
"""At most this many rules are applied one after the other at one node."""


@dataclass(frozen=True, slots=True)
class Simplify:
    name: str = "simplify"
    rules: tuple[Rule, ...] = ALWAYS

    def __call__(self, program: Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` simplified; the same object where no rule applies."""
        build = Builder()
        rules = [r for r in (*self.rules, *facts.added.always) if r.name not in facts.choices.left_out]
        where: dict[Ref, Ref] = {}
        fired = False
        for ref, node in enumerate(program.nodes):
            first = build.add(with_operands(node, where.__getitem__), program.locs[ref])
            where[ref] = simplified(build, first, rules)
            fired = fired or where[ref] != first
        if not fired:
            return unchanged(program)
        outputs = [None if r is None else where[r] for r in program.outputs]
        keep = [where[r] for r in facts.keep]
        done = substitute(build, len(build.nodes), {}, outputs, keep, program.spaces)
        return Rewritten(done.program, {r: done.where[at] for r, at in where.items() if at in done.where})


def simplified(build: Builder, ref: Ref, rules: Iterable[Rule] = ALWAYS) -> Ref:
    """A simpler node equal to `ref`, or `ref`."""
    for _ in range(_MAX_RULES):
        new = next((n for rule in rules if (n := rule.apply(build, ref)) is not None), None)
        if new is None or new == ref:
            break
        ref = new
    return ref
