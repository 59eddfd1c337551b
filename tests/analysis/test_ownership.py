"""Whose rows a rank has of each value, by one rule for each kind of node (`analysis/ownership_rules.py`)."""

from __future__ import annotations

from typing import get_args

import pytest

from graphweave.analysis.ownership import OwnedRows, Whose, WhyRefused
from graphweave.analysis.ownership_rules import RULES, owned_rows
from graphweave.analysis.row_orders import mixed_orders
from graphweave.core.errors import ShardError
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.parse import parse
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.shard import Shard
from tests.distributed.test_shard_program import ROWS_OF_TWO_TYPES, SHARDING, SUM_OF_NEIGHBOURS, TWO_TYPES

BETWEEN_RANKS = {ir.Exchange, ir.ExchangeBack, ir.AllReduce}
"""Nodes that only a program that is divided already has."""


def owned(text: str) -> OwnedRows:
    return owned_rows(parse(text), SHARDING)


def test_every_kind_of_node_has_a_rule_or_is_refused() -> None:
    assert set(get_args(ir.Node)) == RULES.keys() | BETWEEN_RANKS
    assert not RULES.keys() & BETWEEN_RANKS


def test_what_a_rank_has_stands_next_to_each_type() -> None:
    found = owned(SUM_OF_NEIGHBOURS)
    assert not found.refused
    whose = [value.whose.value for value in found.values]
    assert whose == [
        "mine", "mine", "all", "mine",  # edges, x, w, the tangent
        "mine", "mine", "halo", "mine",  # both ends of edges, and the maps to them
        "mine", "mine", "mine", "mine", "mine", "all",
    ]  # fmt: skip
    first, second = (found.values[r].numbers for r in (4, 5))
    assert str(first) == "Numbers(node_type='_N', leaves=True, segments=None)"
    assert str(second) == "Numbers(node_type='_N', leaves=False, segments=None)"


def test_a_divided_program_is_refused_by_its_first_node_between_ranks() -> None:
    divided = Shard()(parse(SUM_OF_NEIGHBOURS), PassFacts(sharding=SHARDING)).program
    found = owned_rows(divided, SHARDING)
    assert next((r.reason, r.words) for r in found.refused) == (WhyRefused.no_rule, ("exchange",))
    with pytest.raises(ShardError, match=r"no rule says whose rows 'exchange' makes"):
        found.check()


COUNT_OF_PAIRS = """
space V = n
space E = e
space P = u0
space R = 5
%0: any "i64[2, e]" = input edges
%1: V[4] f32 = input x
%2: E[] i64 = input kinds
%3: E[] i64 = call aten.select.int(%0, 0, 0)
%4: E[] i64 = call aten.select.int(%0, 0, 1)
%5: distinct E -> P = distinct %2, %3 P
%6: P[] i64 = distinctkey %5 1
%7: P[] i64 = distinctkey %5 0
%8: E[] i64 = distinctrow %5
%9: P -> V = map %6 to V
%10: P[4] f32 = pull %1, %9
%11: E -> P = map %8 to P
%12: E -> V = map %4 to V
%13: E[4] f32 = pull %1, %12
%14: P[4] f32 = push.sum %13, %11
"""
"""Pairs of a source and a kind, which several ranks may have, with sums over the edges of each pair."""

OF_PAIRS = {
    "a linear function": (
        "%15: P[4] f32 = neg %14\n%16: V[4] f32 = push.sum %15, %9\nreturn %16", None
    ),
    "a function that is not linear": (
        "%15: P[4] f32 = exp %14\n%16: V[4] f32 = push.sum %15, %9\nreturn %16", WhyRefused.partial_used
    ),
    "the largest": ("%15: V[4] f32 = push.max %14, %9\nreturn %15", WhyRefused.partial_used),
    "a result": ("return %14", WhyRefused.partial_given),
    "their rows": ("return %10, %14", WhyRefused.copied),
    "their number": ("%15: any \"Sym(u0)\" = call aten.sym_size.int(%10, 0)\nreturn %15", WhyRefused.copied),
    "rows that several ranks have": ("%15: V[4] f32 = push.sum %10, %9\nreturn %15", WhyRefused.partial_used),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_PAIRS)
def test_a_part_of_a_sum_goes_only_where_it_is_linear(name: str) -> None:
    rest, reason = OF_PAIRS[name]
    found = owned(COUNT_OF_PAIRS + rest)
    assert found.values[14].whose is Whose.partial
    assert [r.reason for r in found.refused[:1]] == ([] if reason is None else [reason])


def test_rows_told_apart_by_a_rank_s_own_rows_are_the_rank_s_own() -> None:
    """All edges to one destination are on one rank, so no other rank has the same destination among its own."""
    found = owned(COUNT_OF_PAIRS.replace("distinct %2, %3 P", "distinct %2, %4 P") + "return %10, %14")
    assert not found.refused
    assert (found.values[10].whose, found.values[14].whose) == (Whose.mine, Whose.mine)


def test_segments_of_several_types_are_told_apart() -> None:
    """The sum of two types' numbers of rows is no number of a row until it is known which are whose."""
    found = owned_rows(parse(ROWS_OF_TWO_TYPES), TWO_TYPES)
    assert [r.reason for r in found.refused] == [WhyRefused.numbers_computed]


SORTED = """
space V = n
space E = e
space K = u0
%0: any "i64[2, e]" = input edges
%1: E[] bool = input mask
%2: E[] i64 = input kinds
%3: K[] i64 = chosen %1 K
%4: K -> E = map %3 to E
%5: K[] i64 = pull %2, %4
%6: K[] i64 = order %5 descending=[true]
%7: K -> K = map %6 to K
%8: K[] i64 = pull %5, %7
"""
"""Kinds of the edges of a mask, as these stand and sorted."""

OF_SORTED = {
    "sorted rows next to others": ("%9: K[] i64 = sub %8, %5\nreturn %9", True),
    "sorted rows next to the numbers of others": ("%9: K[] bool = eq %8, %3\nreturn %9", True),
    "sorted rows alone": ("%9: K[] i64 = mul %8, %8\nreturn %9", False),
    "places among rows before a sort": ("%9: K[] i64 = pull %8, %7\nreturn %9", True),
    "the order in which they stood": (
        "%9: K[] i64 = order %6 descending=[false]\n%10: K -> K = map %9 to K\n%11: K[] i64 = pull %8, %10\nreturn %11",
        False,
    ),
    "sums along two orders": ("%9: K -> E = map %3 to E\n%10: E[] i64 = push.sum %8, %9\nreturn %10", True),
    "sums along one": ("%9: K[] i64 = push.sum %8, %7\n%10: K[] i64 = sub %9, %5\nreturn %10", False),
    "the number of rows chosen by a sorted mask": (
        "%9: K[] bool = ne %8, %8\n%10: E2[] i64 = chosen %9 E2\n%11: E2 -> K = map %10 to K\n"
        "%12: E2[] i64 = pull %5, %11\nreturn %12",
        True,
    ),
}


@pytest.mark.parametrize("name", OF_SORTED)
def test_rows_in_two_orders_are_not_combined(name: str) -> None:
    rest, mixes = OF_SORTED[name]
    program = parse(SORTED.replace("space K", "space E2 = u1\nspace K") + rest)
    sharded = frozenset(space for space, _ in program.spaces)
    assert bool(list(mixed_orders(program, sharded))) is mixes
    assert list(mixed_orders(program, frozenset())) == []
    if mixes:
        assert WhyRefused.two_orders in {refusal.reason for refusal in owned_rows(program, SHARDING).refused}
