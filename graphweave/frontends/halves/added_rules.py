"""Rewrite rules that users add (`graphweave.extend.rule`): which are in force, and which of them changed a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor

from graphweave.analysis.flow import reached
from graphweave.compiler.compile import optimise
from graphweave.core.errors import GraphweaveError
from graphweave.core.lines import NOWHERE, Location
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.interp import interp
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.rules.rule import AddedRules, Rule

When: TypeAlias = Literal["always", "by cost"]

_rules: dict[str, tuple[Rule, When, str]] = {}
"""Name of a rule -> the rule, when it is applied, and the line of its function."""


def add(rule: Rule, when: When, line: str) -> None:
    _rules[rule.name] = rule, when, line


def discard(rule: Rule) -> None:
    del _rules[rule.name]


def is_any() -> bool:
    """Whether any rule is in force."""
    return bool(_rules)


def in_force() -> AddedRules:
    """The rules that a graph is compiled with now."""
    always, by_cost = (tuple(r for r, when, _ in _rules.values() if when == said) for said in ("always", "by cost"))
    return AddedRules(always, by_cost)


@dataclass(frozen=True, slots=True)
class Firing:
    """One application of a rule. The two outputs of `program` are the node and what the rule puts in its place."""

    rule: str
    program: ir.Program

    @property
    def line(self) -> Location:
        """The user's line from which the node came."""
        ref = self.program.outputs[0]
        return NOWHERE if ref is None else self.program.locs[ref]

    def said(self) -> str:
        found = _rules.get(self.rule)
        where = f" ({found[2]})" if found is not None else ""
        at = f", at {self.line}" if self.line else ""
        return f"The rule {self.rule!r}{where} has changed a value{at}: correct it, or remove it."

    def changes(
        self, data: Mapping[str, Any], rows: Mapping[Space, int], differs: Callable[[Tensor, Tensor], bool]
    ) -> bool:
        try:
            before, after = interp(self.program, data, rows)
        except (GraphweaveError, RuntimeError):
            return False
        return differs(after, before)


@dataclass(frozen=True, slots=True)
class Suspects:
    """A program that added rules have rewritten, kept so that the rule which changed a value can be found."""

    program: ir.Program
    given: PassFacts

    def firings(self) -> list[Firing]:
        """The changes that the rules make to the program, in order. They are found by applying the rules again."""
        seen: list[Firing] = []

        def watched(rule: Rule) -> Rule:
            def apply(build: Builder, ref: ir.Ref) -> ir.Ref | None:
                new = rule.apply(build, ref)
                if new is not None:
                    seen.append(Firing(rule.name, self._alone(build, ref, new)))
                return new

            return replace(rule, apply=apply)

        added = self.given.added
        again = AddedRules(tuple(map(watched, added.always)), tuple(map(watched, added.by_cost)))
        optimise(self.program, replace(self.given, added=again))
        return seen

    def culprit(self, data: Mapping[str, Any], differs: Callable[[Tensor, Tensor], bool]) -> Firing | None:
        """The first firing that gives another value on `data`, the values of the program's inputs by name.

        Firings that need inputs which are not among them, or rows that only the whole program tells, are skipped.
        """
        rows: dict[Space, int] = {}
        for node in self.program.nodes:
            if (
                isinstance(node, ir.Input)
                and node.name in data
                and isinstance(t := node.type, ir.Type)
                and t.space != UNIT
            ):
                rows[t.space] = data[node.name].shape[0]
        for firing in self.firings():
            inputs = {n.name for n in firing.program.nodes if isinstance(n, ir.Input)}
            if inputs <= data.keys() and firing.changes({name: data[name] for name in inputs}, rows, differs):
                return firing
        return None

    def _alone(self, build: Builder, *refs: ir.Ref) -> ir.Program:
        """The part of the program under rewriting that `refs` need."""
        kept = Builder()
        where: dict[ir.Ref, ir.Ref] = {}
        for ref in sorted(reached(refs, lambda r: operands(build.nodes[r]))):
            where[ref] = kept.add(with_operands(build.nodes[ref], where.__getitem__), build.locs[ref])
        return kept.program([where[r] for r in refs], self.program.spaces)
