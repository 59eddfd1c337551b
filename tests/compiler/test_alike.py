"""One trial of a rewrite answers for all equal layers, and the search has a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from graphweave.analysis.cost import cost
from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import reached
from graphweave.analysis.statistics import Statistics
from graphweave.core.spans import PASSES, span
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import (
    Const,
    Gram,
    Input,
    MapOf,
    MatMul,
    Pointwise,
    Program,
    Pull,
    Push,
    Ref,
    RowsOfSegments,
    Type,
)
from graphweave.ir.message.verify import verify
from graphweave.lower import grouping
from graphweave.lower.grouping import group
from graphweave.lower.schedule import demand
from graphweave.passes import alike
from graphweave.passes import rewrite as rewriting
from graphweave.passes.moves import Move
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.rewrite import Rewrite
from graphweave.passes.rewritten import Rewritten, Step
from tests.programs.joint import Joint, joint
from tests.rewrite_support import attention

V, E = Space("V"), Space("E")
FACTS = PassFacts(statistics=Statistics(((V, 1000), (E, 20_000))))


@cache
def stack(layers: int, widths: tuple[int, ...] = (), *, shares: bool = False) -> Program:
    """Layers that gather, multiply by a weight of each edge, sum and multiply by a matrix. `widths` are those of the
    layers' results, 16 where nothing is given. With `shares`, each layer multiplies by a number of its own."""
    build = Builder()
    index = [build.add(Input(name, Type(E, (), DType.i64))) for name in ("source", "target")]
    weight = build.add(Input("weight", Type(E, (), DType.f32)))
    src, dst = (build.add(MapOf(r, V)) for r in index)
    h, width = build.add(Input("x", Type(V, (16,), DType.f32))), 16
    for i in range(layers):
        columns = widths[i] if i < len(widths) else 16
        w = build.add(Input(f"w{i}", Type(UNIT, (width, columns), DType.f32)))
        moved = build.add(Pointwise(Op.mul, (build.add(Pull(h, src)), weight)))
        summed = build.add(Push(moved, dst, Fold.sum))
        if shares:
            share = build.add(Const(0.4 / (i + 1), Type(UNIT, (), DType.f32)))
            summed = build.add(Pointwise(Op.mul, (summed, share)))
        h, width = build.add(Pointwise(Op.tanh, (build.add(MatMul(summed, w)),))), columns
    program = build.program([h], [(V, None), (E, None)])
    verify(program)
    return program


def relations(count: int) -> Program:
    """For each segment of the rows of `y`, the products of its rows and `x` by the type of the row; and `x` times the
    matrix of its type."""
    build, rows, types, whole = Builder(), Space("A"), Space("R"), Space("W")
    x, y = (build.add(Input(name, Type(space, (16,), DType.f32))) for name, space in (("x", rows), ("y", whole)))
    by_type = build.add(MapOf(build.add(Input("type", Type(rows, (), DType.i64))), types))
    matrix = build.add(Input("w", Type(types, (16, 16), DType.f32)))
    outputs = [build.add(MatMul(x, matrix, by_type))]
    for i in range(count):
        m = build.add(MapOf(build.add(RowsOfSegments((rows,) * count, (i,), rows)), whole))
        outputs.append(build.add(Gram(x, build.add(Pull(y, m)), by_type)))
    program = build.program(outputs, [(rows, None), (types, None), (whole, None)])
    verify(program)
    return program


def looked(program: Program, facts: PassFacts = FACTS) -> tuple[Rewritten, Counter[str]]:
    """The program rewritten by cost, and what the search counted."""
    with span(PASSES, "rewrite") as spent:
        done = Rewrite()(program, facts)
    return done, spent.counts


@pytest.mark.parametrize("shares", [False, True])
def test_the_search_weighs_no_more_programs_for_more_equal_layers(shares: bool) -> None:
    _, few = looked(stack(12, shares=shares))
    _, many = looked(stack(24, shares=shares))
    assert 0 < many["programs weighed"] == few["programs weighed"]
    assert many["answered by an equal layer"] > few["answered by an equal layer"] > 0


def test_the_search_weighs_no_more_programs_for_more_relations() -> None:
    facts = PassFacts(statistics=Statistics(((Space("A"), 1000), (Space("R"), 2), (Space("W"), 10_000))))
    _, few = looked(relations(6), facts)
    _, many = looked(relations(18), facts)
    assert 0 < many["programs weighed"] == few["programs weighed"]


@pytest.mark.parametrize("widths", [(), (16, 4, 16, 64), (8, 16, 8, 16, 8)])
def test_choices_are_those_of_a_search_that_tries_each_layer(
    widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = stack(24, widths)
    done, counts = looked(program)
    monkeypatch.setattr(alike.Answers, "get", lambda self, edit: None)
    each, all_counts = looked(program)
    assert done == each and done.steps == each.steps
    assert all_counts["programs weighed"] > counts["programs weighed"]


def one_by_one(
    self: rewriting._Rewriting, move: Move, edit: alike.Edit, after: rewriting._After, others: Iterable[Move]
) -> tuple[rewriting._After, list[Step]]:
    return after, [after.step]


def seconds(done: Rewritten, facts: PassFacts) -> float:
    program = done.program
    return cost(Facts(program), facts.tangents_of(program)).seconds(facts.statistics)


PROGRAMS: dict[str, Callable[[int], Joint]] = {
    "attention": attention,
    "narrow, then wide": lambda layers: joint(stack(2 * layers, (16, 4) * layers)),
    "wide, then narrow": lambda layers: joint(stack(2 * layers, (64, 16) * layers)),
    "widths that repeat": lambda layers: joint(stack(3 * layers, (32, 8, 16) * layers)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_layers_that_gain_are_rewritten_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(FACTS, tangents=PROGRAMS[name](6).tangents)
    program = PROGRAMS[name](6).program
    done, counts = looked(program, facts)
    assert counts["taken with an equal layer"] > 0
    monkeypatch.setattr(rewriting._Rewriting, "_with_alike", one_by_one)
    each, more = looked(program, facts)
    assert counts["programs weighed"] < more["programs weighed"]
    assert seconds(done, facts) <= seconds(each, facts) * (1 + 1e-9)
    taken, taken_each = ([s for s in steps if s.taken] for steps in (done.steps, each.steps))
    assert Counter((s.rules, s.loc) for s in taken) == Counter((s.rules, s.loc) for s in taken_each)
    for step, before in zip(taken[1:], taken, strict=False):
        assert step.before == pytest.approx(before.after)


def test_small_gains_of_many_layers_are_made_if_together_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = attention(6)
    facts = replace(FACTS, tangents=layers.tangents)

    def reciprocals() -> list[Step]:
        done, _ = looked(layers.program, facts)
        return [s for s in done.steps if s.taken and s.rules == ("reciprocal",)]

    taken = reciprocals()
    whole = cost(Facts(layers.program), facts.tangents_of(layers.program)).seconds(facts.statistics)
    monkeypatch.setattr(rewriting, "_MIN_GAIN", 1.5 * max(s.seconds for s in taken) / whole)
    assert len(taken) == len(reciprocals()) == 12
    monkeypatch.setattr(rewriting._Rewriting, "_with_alike", one_by_one)
    assert len(reciprocals()) < 12


def test_layers_of_other_widths_do_not_look_alike() -> None:
    program = stack(4, (16, 4, 16, 16))
    facts = Facts(program)
    looks = alike.Looks(facts, FACTS.statistics, frozenset(), frozenset(r for r in program.outputs if r is not None))
    products = [r for r, n in enumerate(program.nodes) if isinstance(n, MatMul)]
    assert len({looks._of[r] for r in products}) == len(products)


def test_the_search_stops_at_its_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "_MAX_WEIGHED_NODES", 100)
    done, counts = looked(stack(6))
    assert counts["search stopped at its bound"] == 1
    assert counts["programs weighed"] == 3  # of about 40 nodes each
    verify(done.program)
    assert looked(stack(6))[0] == done, "the bound counts nodes, not seconds"


def test_a_group_waits_for_what_the_groups_before_it_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of groups say what a walk over all groups before them says."""
    told: list[bool] = []
    ordered, best = grouping._Grouping.ordered, grouping._Grouping._best

    def checked(self: grouping._Grouping) -> tuple[grouping.Group, ...]:
        for start in range(len(self.groups)):
            walked = reached([start], lambda g: self.groups[g].before)
            for target in range(len(self.groups)):
                told.append(self._waits_for(start, target))
                assert told[-1] == (target in walked), (start, target)
        return ordered(self)

    def checked_best(self: grouping._Grouping, ref: Ref, *given: Any) -> int:
        assert self._legal_groups(ref) == [g for g in self._candidates(ref) if self._legal(ref, g)]
        return best(self, ref, *given)

    monkeypatch.setattr(grouping._Grouping, "ordered", checked)
    monkeypatch.setattr(grouping._Grouping, "_best", checked_best)
    facts = Facts(stack(6, (16, 4, 16, 64)))
    given = frozenset[Ref]()
    made = group(facts, demand(facts, given, facts.row_products), given, facts.row_products)
    assert len(made.order) > 4 and set(told) == {False, True}


def test_names_of_inputs_do_not_count() -> None:
    program = stack(3)
    facts, ends = Facts(program), frozenset[Ref]()
    one = alike.Looks(facts, FACTS.statistics, frozenset(), ends)
    nodes = tuple(replace(n, name=f"{n.name}_") if isinstance(n, Input) else n for n in program.nodes)
    renamed = replace(program, nodes=nodes)
    other = alike.Looks(Facts(renamed), FACTS.statistics, frozenset(), ends)
    assert one._of == other._of
