"""Rows of relations that a call does not give: left out where they have no effect, and nowhere else."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from graphweave.analysis.statistics import Statistics
from graphweave.core.sizes import Symbol
from graphweave.core.types import Space
from graphweave.ir.message.interp import interp
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.given_rows import GivenRows
from graphweave.passes.pass_facts import GivenSize, PassFacts
from tests.programs.compare import assert_all_close
from tests.support import features

MERGED = """
space V = s0
space E0 = s1
space E1 = s2
space U = 2*s0
space E = s1 + s2
space R = 2
%0: V[3] f64 = input x
%1: unit[3, 2] f64 = input w0
%2: unit[3, 2] f64 = input w1
%3: E0[] i64 = input src0
%4: E0[] i64 = input dst0
%5: E1[] i64 = input src1
%6: E1[] i64 = input dst1
%7: any "Sym(s3)" = input given0
%8: any "Sym(s4)" = input given1
%9: V[2] f64 = input grad
%10: unit[] bool = call aten.scalar_tensor.default(%7, dtype=@torch.bool)
%11: unit[] bool = call aten.scalar_tensor.default(%8, dtype=@torch.bool)
%12: R[] bool = join %10, %11 R
%13: R[3, 2] f64 = join %1, %2 R
%14: U[] i64 = numbersofsegments of=[V, V] numbers=[0, 1] space=U
%15: U -> R = map %14 to R
%16: U[] i64 = rowsofsegments of=[V] at=[0, 0] space=U
%17: U -> V = map %16 to V
%18: E[] i64 = joinindices %3, %5 of=[V] at=[0, 0] wraps=[false, false] space=E
%19: E -> V = map %18 to V
%20: E[] i64 = joinindices %4, %6 of=[V, V] at=[0, 1] wraps=[false, false] space=E
%21: E -> U = map %20 to U
%22: E[3] f64 = pull %0, %19
%23: U[3] f64 = push.sum %22, %21
%24: U[3] f64 = pull %0, %17
%25: U[3] f64 = add %23, %24
%26: U[2] f64 = matmul %25, %13, %15
%27: unit[] f64 = const 0.0
%28: U[] bool = pull %12, %15
%29: U[2] f64 = where %28, %26, %27
%30: V[2] f64 = push.sum %29, %17
%31: U[2] f64 = pull %9, %17
%32: U[2] f64 = where %28, %31, %27
%33: U[2] f64 = exp %32
%34: R[3, 2] f64 = gram %25, %32, %15
return %30, %34
"""
"""A layer of two relations after they were merged, and the gradient of its weights."""

FACTS = PassFacts(
    statistics=Statistics(((Space("V"), 5), (Space("E0"), 4), (Space("E1"), 0))),
    given={
        Symbol("s3"): GivenSize(frozenset({Symbol("s1")}), True),
        Symbol("s4"): GivenSize(frozenset({Symbol("s2")}), False),
    },
)


def arguments(nodes: int, given: tuple[bool, bool]) -> dict[str, Tensor | int]:
    """The inputs of a call that gives some relations; those that it does not give have no edges."""
    generator = torch.Generator().manual_seed(nodes)
    ends = {
        f"{end}{k}": torch.randint(max(nodes, 1), (4 if given[k] and nodes else 0,), generator=generator)
        for k in (0, 1)
        for end in ("src", "dst")
    }
    weights = {f"w{k}": features(3, 2, torch.float64, seed=k) for k in (0, 1)}
    flags = {f"given{k}": int(given[k]) for k in (0, 1)}
    x, grad = features(nodes, 3, torch.float64, seed=3), features(nodes, 2, torch.float64, seed=4)
    return {"x": x, "grad": grad, **weights, **ends, **flags}


@pytest.mark.parametrize("nodes", [0, 1, 5])
def test_results_stay_in_calls_that_give_some_relations(nodes: int) -> None:
    program = parse(MERGED)
    done = GivenRows()(program, FACTS)
    verify(done.program)
    assert parse(show(done.program)) == done.program
    for given in product((True, False), repeat=2):
        values = arguments(nodes, given)
        assert_all_close(interp(done.program, values), interp(program, values), reduction_length=8, floor=1.0)


def test_what_is_not_given_has_no_rows() -> None:
    done = GivenRows()(parse(MERGED), FACTS)
    sizes = {space.name: str(size) for space, size in done.program.spaces}
    assert "U" not in sizes and "U_given" in sizes
    assert "where" not in show(done.program)  # every row that there is is given
    assert dict(done.counted)[Space("U_given")] == 5  # of the first relation, which the first call gives
    assert GivenRows()(done.program, FACTS).program is done.program


REFUSED = {
    "rows-are-a-result": MERGED.replace("return %30", "return %26"),
    "the-sum-counts-all": MERGED.replace("push.sum %29, %17", "push.sum %26, %17"),
    "not-zero-where-absent": MERGED.replace("gram %25, %32", "gram %25, %33"),
    "another-condition": MERGED.replace("join %10, %11 R", "join %11, %10 R"),
    "another-number": MERGED.replace("const 0.0", "const 1.0"),
    "a-maximum-of-zeros": MERGED.replace("%30: V[2] f64 = push.sum %29, %17", "%30: V[2] f64 = push.max %29, %17"),
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_rows_with_an_effect_stay(text: str) -> None:
    program = parse(text)
    assert GivenRows()(program, FACTS).program is program


def test_edges_that_are_always_there_keep_their_rows() -> None:
    only_one = PassFacts(statistics=FACTS.statistics, given={Symbol("s3"): FACTS.given[Symbol("s3")]})
    program = parse(MERGED.replace("join %10, %11 R", "join %10, %10 R"))
    done = GivenRows()(program, only_one).program
    sizes = {space.name for space, _ in done.spaces}
    assert "V_s3" in sizes and "V_s4" not in sizes
