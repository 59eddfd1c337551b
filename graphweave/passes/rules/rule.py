"""The type of rewrite rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Ref

Apply: TypeAlias = Callable[[Builder, Ref], Ref | None]
"""Builds, for node `ref`, an equal value from nodes that exist already; None where the rule does not apply."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`before -> after` in words, for `explain`; `apply` checks legality and edits. Whether that pays others decide."""

    name: str
    before: str
    after: str
    apply: Apply


@dataclass(frozen=True, slots=True)
class AddedRules:
    """Rules from outside (`graphweave.extend.rule`): `always` wherever they apply, `by_cost` where they gain."""

    always: tuple[Rule, ...] = ()
    by_cost: tuple[Rule, ...] = ()

    def __iter__(self) -> Iterator[Rule]:
        yield from (*self.always, *self.by_cost)
