"""The fuzzer over ranks: a few programs, and that it notices what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.fuzz.case import Call, Case
from tests.fuzz.divided import (
    KINDS,
    arguments,
    functional,
    joined,
    layouts,
    over_parts,
    results_of,
    shares_of,
    whole_of,
)
from tests.fuzz.grow import arguments_of, grow_for_ranks, with_parameters
from tests.fuzz.judge import Unfair, load
from tests.fuzz.over_ranks import RankJudge
from tests.rank_pool import ranks
from tests.support import by_default

SIZES = (("N", 8), ("M", 6), ("E", 25), ("B", 11), ("G", 2), ("D", 4))


def case_of(body: str, *seeds: int) -> Case:
    source = with_parameters("def f():\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    return Case(source, arguments_of(source), tuple(Call(SIZES, seed) for seed in seeds or (0,)))


@pytest.fixture(scope="module")
def judged() -> Iterator[RankJudge]:
    with ranks(2) as pool:
        yield RankJudge(2, pool)


def test_programs_take_ends_of_the_parts_edges() -> None:
    source = over_parts("def f(x, src, dst, bdst, w):\n    return x[src]\n")
    assert source.splitlines()[:4] == ["def f(x, ei, bi, w):", "    src = ei[0]", "    dst = ei[1]", "    bdst = bi[1]"]


def test_parts_of_all_kinds_are_drawn() -> None:
    """Empty parts, parts without halo, and those that read nothing else."""
    case = case_of("return x[src]")
    case = replace(case, source=over_parts(case.source))
    seen = set()
    for seed in range(40):
        shares = shares_of(whole_of(case, Call(SIZES, seed), 2), 2)
        nodes = [share.part.nodes["N"] for share in shares]
        seen |= {"empty"} if any(n.num_own == 0 for n in nodes) else set()
        sources = [(share.part.edge_index[0], share.part.nodes["N"].num_own) for share in shares]
        both = all(src.numel() for src, _ in sources)
        seen |= {"no halo"} if both and all((src < own).all() for src, own in sources) else set()
        seen |= {"all halo"} if both and all((src >= own).all() for src, own in sources) else set()
        seen |= {"one row"} if any(n.num_own == 1 for n in nodes) else set()
    assert seen == {"empty", "no halo", "all halo", "one row"} and len(set(KINDS)) == 6


def test_results_are_put_together_in_the_whole_graphs_order() -> None:
    """With eager mode in place of the ranks, on programs that read no other rank's rows."""
    case = case_of("v = e * 2\nk = torch.zeros_like(x).index_add(0, dst, e)\nreturn v, k, w.sum(0), e[emask], k.t()")
    case = replace(case, source=over_parts(case.source))
    function = load(case.source)
    lie = layouts(case, function, 2)
    assert [(one.rows, one.dim) for one in lie] == [("E", 0), ("N", 0), ("", 0), ("some", 0), ("N", 1)]
    whole = whole_of(case, case.calls[0], 2)
    shares = shares_of(whole, 2)
    wanted = results_of(function(*whole.values.values()))
    found = [results_of(function(*arguments(whole, share))) for share in shares]
    for i, layout in enumerate(lie):
        if layout.rows != "some":
            torch.testing.assert_close(joined([f[i] for f in found], layout, shares, whole.counts), wanted[i])
    divided = [i for i, layout in enumerate(lie) if layout.rows]
    kept = [lie[i] for i in divided]
    sums = [functional([f[i] for i in divided], kept, whole.counts, s) for f, s in zip(found, shares, strict=True)]
    total = functional([wanted[i] for i in divided], kept, whole.counts, None)
    assert total is not None and sums[0] is not None and sums[1] is not None
    torch.testing.assert_close(sums[0] + sums[1], total)


def test_order_decides_how_rows_are_compared() -> None:
    """Edges sorted by destination are the same rows, in an order that each rank has for itself."""
    case = case_of("return e[dst.argsort(stable=True)]")
    case = replace(case, source=over_parts(case.source))
    assert layouts(case, load(case.source), 2)[0].rows == "some"


def test_a_program_is_right_over_two_ranks(judged: RankJudge) -> None:
    body = """v0 = torch.zeros_like(x).index_add(0, dst, (x @ w)[src] * ew)
v1 = torch.zeros_like(y).index_add(0, bdst, v0[bsrc]).relu()
v2 = u[batch] * v0 - v0.mean(0)
return v2, v1, v0.amax(0)"""
    assert judged(case_of(body, 1, 2)) is None


IN_ANOTHER_ORDER = {
    "a count, turned": ("v = x[torch.arange(x.size(0)).flip(0)]\nreturn v.sum(0), x[src]", "by their place"),
    "a later count": ("v = x[torch.arange(1, x.size(0))]\nreturn v.sum(0), x[src]", "by their place"),
    "all but the last": ("v = x[torch.arange(0, x.size(0) - 1)]\nreturn v.sum(0), x[src]", "by their place"),
    "all but the last two": ("v = x[torch.arange(x.size(0) - 2)]\nreturn v.sum(0), x[src]", "needs more rows than"),
    "edges counted": (
        "v = e[torch.arange(dst.size(0)).flip(0)]\n"
        "return torch.ones(4, 4, dtype=torch.float64).index_add(0, et, v), x[bsrc]",
        "by their place",
    ),
    "kinds turned": ("return e * wt[et.flip(0)].sum((1, 2))[:, None], x[src]", "by their place"),
    "kinds from the second on": ("return wt[et[1:]].sum(0), x[src]", "by their place"),
    "the later ones of a mask": ("return x[nmask.nonzero().flatten()[1:]].sum(0), x[src]", "by their place"),
    "two kinds a row": ("return wt[torch.cat([et, et]).view(-1, 2)].sum(0), x[src]", "runs of equal length"),
    "kinds sorted": (
        "v, p = et.sort()\nreturn torch.zeros_like(x).index_add(0, dst, e * v.double()[:, None])", "were sorted"
    ),
    "one more kind": (
        "return wt[torch.cat([et, torch.zeros(1, dtype=torch.int64)])].sum(0), x[src]", "each rank has them once more"
    ),
    "numbers of two types": (
        "return torch.zeros_like(y).index_add(0, bdst, eb * (bsrc == bdst)[:, None])", "are compared with those of"
    ),
    "sorted": ("return torch.ones(4, 4, dtype=torch.float64).index_add(0, et, e[dst.argsort()])", "were sorted"),
    "sorted and not": ("return torch.zeros_like(x).index_add(0, dst, e[src.argsort()])", "were sorted"),
    "sorted twice": ("return torch.ones(4, 4, dtype=torch.float64).index_add(0, et[src.argsort()], e[dst.argsort()])",
                     "were sorted"),
}  # fmt: skip
"""Found by the fuzzer (program 931221425) and from it: ranks gave other numbers than one process, without a word."""


@pytest.mark.parametrize("name", by_default(IN_ANOTHER_ORDER, "edges counted", "sorted"))
def test_rows_in_an_order_of_the_rank_are_refused(judged: RankJudge, name: str) -> None:
    body, said = IN_ANOTHER_ORDER[name]
    found = judged(case_of(body, 1))
    assert found is not None and found.kind == "refused" and said in found.what


@pytest.mark.slow
@pytest.mark.parametrize("body", [
    "v = x[torch.arange(x.size(0))]\nreturn v.sum(0), x[src]",
    "p = dst.argsort()\nreturn torch.ones(4, 4, dtype=torch.float64).index_add(0, et[p], e[p])",
])  # fmt: skip
def test_rows_in_one_order_are_right(judged: RankJudge, body: str) -> None:
    assert judged(case_of(body, 1)) is None


def test_refusals_are_told_apart(judged: RankJudge) -> None:
    found = judged(case_of("return x[src].cumsum(0)"))
    assert found is not None and found.kind == "refused" and "rows are added up in order" in found.what


def test_wrong_numbers_are_found(judged: RankJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference, not the ranks, is made wrong here: the judge sees two that differ."""
    honest = load

    def wrong(source: str) -> object:
        return honest(source.replace("x[src]", "x[src] * 1.001"))

    monkeypatch.setattr("tests.fuzz.over_ranks.load", wrong)
    found = judged(case_of("return torch.zeros_like(x).index_add(0, dst, x[src])"))
    assert found is not None and found.kind == "wrong output" and "call 0: output 0" in found.what


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_over_two_ranks(judged: RankJudge, seed: int) -> None:
    try:
        found = judged(grow_for_ranks(seed).case)
    except Unfair as why:
        pytest.skip(str(why))
    assert found is None or found.kind == "refused", found
