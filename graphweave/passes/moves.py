"""What rewriting tries: sets of rules at sets of sites, those first that only pay together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Gram, MapOf, MatMul, Pointwise, Program, Push, Ref, Reshape, Slice
from graphweave.passes.rules import (
    compose_maps,
    distribute,
    factor,
    feature_sum,
    injective_maps,
    linear_through_push,
    postpone,
    pull_scale,
    reciprocal,
    split_linear,
    totals,
)
from graphweave.passes.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Move:
    """`rules`, in order of preference, at each of `sites` and at what they make of them."""

    rules: tuple[Rule, ...]
    sites: tuple[Ref, ...]


Moves: TypeAlias = Callable[[Program, frozenset[Ref]], Iterator[Move]]
"""Moves of a program, of which some nodes depend on tangents, in the order in which they are tried."""

OUT_OF_PUSH = (distribute.RULE, feature_sum.RULE, factor.RULE)
TO_NODES = (split_linear.RULE, postpone.RULE, linear_through_push.OUT)
NARROWER = (linear_through_push.SCALE, linear_through_push.INTO, postpone.RULE)
ALONE = (
    injective_maps.RULE, totals.RULE, compose_maps.RULE, reciprocal.RULE, postpone.RULE, pull_scale.RULE,
    split_linear.RULE, linear_through_push.OUT,
)  # fmt: skip


def linear(program: Program, late: frozenset[Ref]) -> Iterator[Move]:
    """Everything linear on edges at once: the forward's product on edges goes only if the backward's goes too."""
    sites = tuple(r for r, n in enumerate(program.nodes) if isinstance(n, MatMul | Gram | Slice | Push))
    if sites:
        yield Move(TO_NODES, sites)


def products_of_push(program: Program, late: frozenset[Ref]) -> Iterator[Move]:
    """All products that read one pushed value, which then is not needed any more."""
    readers: dict[Ref, list[Ref]] = {}
    for ref, node in enumerate(program.nodes):
        if isinstance(node, MatMul | Gram):
            for r in dict.fromkeys(operands(node)):
                for push in _pushes_behind(program, r):
                    readers.setdefault(push, []).append(ref)
    for sites in readers.values():
        yield Move(NARROWER, tuple(sites))


def pushes(program: Program, late: frozenset[Ref]) -> Iterator[Move]:
    """All pushes along one map in one half of the program, then each alone."""
    found: dict[tuple[Ref, bool], list[Ref]] = {}
    for ref, node in enumerate(program.nodes):
        if isinstance(node, Push) and isinstance(program.nodes[node.map], MapOf):
            found.setdefault((node.map, ref in late), []).append(ref)
    for sites in found.values():
        yield Move(OUT_OF_PUSH, tuple(sites))
    for sites in found.values():
        if len(sites) > 1:
            for ref in sites:
                yield Move(OUT_OF_PUSH, (ref,))


def singles(program: Program, late: frozenset[Ref]) -> Iterator[Move]:
    for rule in ALONE:
        for ref in range(len(program.nodes)):
            yield Move((rule,), (ref,))


ORDER: tuple[Moves, ...] = (linear, products_of_push, pushes, singles)


def _pushes_behind(program: Program, ref: Ref) -> Iterator[Ref]:
    """The push that `ref` is, but for reshapes and a factor of its rows."""
    node = program.nodes[ref]
    if isinstance(node, Push):
        yield ref
    elif isinstance(node, Reshape):
        yield from _pushes_behind(program, node.x)
    elif isinstance(node, Pointwise):
        for r in node.args[:2]:
            if program.types[r] == program.types[ref]:
                yield from _pushes_behind(program, r)
