"""The pass that divides a program among ranks, in text, and models that cannot be divided, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave import counters, reset_counters
from graphweave.analysis.ownership import Sharding
from graphweave.core.errors import ShardError
from graphweave.distributed.full_graph import shard
from graphweave.distributed.part import GraphPart
from graphweave.distributed.parts import parts_of
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.passes.bucket_sums import BucketSums
from graphweave.passes.halo_totals import HaloTotals
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.segment_indices import SegmentIndices
from graphweave.passes.shard import Shard
from tests.ranks_cases import trained_alike
from tests.support import by_default, random_graph

SHARDING = Sharding("part", 1, (("edges", "_N", "_N"),), (("_N", 7),), (("_N", 7),), frozenset({"w"}))

SUM_OF_NEIGHBOURS = """
space V = n
space E = e
%0: any "i64[2, e]" = input edges
%1: V[4] f32 = input x
%2: unit[4, 3] f32 = input w
%3: V[3] f32 = input tangent
%4: E[] i64 = call aten.select.int(%0, 0, 0)
%5: E[] i64 = call aten.select.int(%0, 0, 1)
%6: E -> V = map %4 to V
%7: E -> V = map %5 to V
%8: V[3] f32 = matmul %1, %2
%9: E[3] f32 = pull %8, %6
%10: V[3] f32 = push.sum %9, %7
%11: E[3] f32 = pull %3, %7
%12: V[3] f32 = push.sum %11, %6
%13: unit[4, 3] f32 = gram %1, %12
return %10, %13
"""


MOVED = [
    'V_all[3] f32 = exchange %7 over "part:_N" to V_all',
    'V[3] f32 = exchangeback.sum %13 over "part:_N" to V',
    "unit[4, 3] f32 = allreduce.sum %15 over part",
]


def test_rows_of_others_are_exchanged() -> None:
    """What sources give is sent, what they get is added at their owner, and the weights' gradient is summed."""
    done = Shard()(parse(SUM_OF_NEIGHBOURS), PassFacts(sharding=SHARDING)).program
    assert "space V_all = 7 + n" in show(done) or "space V_all = n + 7" in show(done)
    moved = [line.split(": ", 1)[1] for line in show(done).splitlines() if "exchange" in line or "allreduce" in line]
    assert moved == MOVED
    text = show(done)
    assert show(parse(text)) == text


def test_two_passes_leave_a_divided_program_alone() -> None:
    """A program whose edges are no argument of the part is not divided a second time."""
    program = parse(SUM_OF_NEIGHBOURS)
    assert Shard()(program).program is program
    assert BucketSums()(program).program is program


def test_features_that_stay_are_sent_instead_of_their_product() -> None:
    text = show(Shard()(parse(SUM_OF_NEIGHBOURS), PassFacts(sharding=SHARDING, steady=frozenset({"x"}))).program)
    (line,) = [line for line in text.splitlines() if "exchange %" in line]
    assert "exchange %1 " in line
    assert line.endswith("steady")
    assert "V_all[3] f32 = matmul" in text


def test_gradients_of_weights_are_summed_at_once() -> None:
    two = SUM_OF_NEIGHBOURS.replace("return %10, %13", "%14: unit[3, 3] f32 = gram %3, %12\nreturn %10, %13, %14")
    divided = Shard()(parse(two), PassFacts(sharding=SHARDING)).program
    assert show(divided).count("allreduce") == 2
    assert show(BucketSums()(divided, PassFacts(tangents=frozenset({"tangent"}))).program).count("allreduce") == 1


def totals_of(text: str, steady: str = "x") -> str:
    """The program of a rank, in which totals are taken over halo rows where that pays."""
    divided = Shard()(parse(text), PassFacts(sharding=SHARDING, steady=frozenset({steady}))).program
    return show(HaloTotals()(divided, PassFacts(sharding=SHARDING)).program)


def test_the_gradient_of_a_first_layer_sends_nothing_back() -> None:
    lines = totals_of(SUM_OF_NEIGHBOURS).splitlines()
    assert lines[-5:-1] == [
        "%12: E[3] f32 = pull %3, %6",
        "%13: V_all[3] f32 = push.sum %12, %9",
        "%14: unit[4, 3] f32 = gram %7, %13",
        "%15: unit[4, 3] f32 = allreduce.sum %14 over part",
    ]


def test_what_only_own_rows_have_gets_zeros_on_halo_rows() -> None:
    """The zeros are put where rows are narrowest, before they are multiplied by what all rows share."""
    own = SUM_OF_NEIGHBOURS.replace(
        "%13: unit[4, 3] f32 = gram %1, %12",
        """%13: V[] f32 = reduce.sum %3 [0]
%14: V[1] f32 = reshape %13 [1]
%15: unit[3] f32 = input bias
%16: V[3] f32 = mul %14, %15
%17: V[3] f32 = sub %12, %16
%18: unit[4, 3] f32 = gram %1, %17""",
    ).replace("return %10, %13", "return %10, %18")
    text = totals_of(own)
    assert "exchangeback" not in text
    (joined,) = [line for line in text.splitlines() if "= join" in line]
    assert ": V_all[] f32 = join" in joined


NEEDED_AT_THE_OWNER = {
    "a result": ("return %10, %13", "return %10, %12, %13"),
    "not linear": ("%13: unit[4, 3] f32 = gram %1, %12\nreturn %10, %13",
                   "%13: V[3] f32 = exp %12\n%14: unit[4, 3] f32 = gram %1, %13\nreturn %10, %14"),
    "a factor that halo rows lack": ("unit[4, 3] f32 = gram %1, %12", "unit[3, 3] f32 = gram %10, %12"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDED_AT_THE_OWNER)
def test_what_is_needed_at_the_owner_is_sent_back(name: str) -> None:
    text = SUM_OF_NEIGHBOURS.replace(*NEEDED_AT_THE_OWNER[name])
    assert text != SUM_OF_NEIGHBOURS and "exchangeback" in totals_of(text)


def test_features_that_change_are_not_sent_for_totals() -> None:
    """Their product is sent, which is narrower, so that halo rows lack the features."""
    assert "exchangeback" in totals_of(SUM_OF_NEIGHBOURS, steady="")


SUM_BY_TYPE = """
space V = n
space E = e
space R = 5
%0: any "i64[2, e]" = input edges
%1: V[4] f32 = input x
%2: V[] i64 = input types
%3: V[3] f32 = input tangent
%4: E[] i64 = call aten.select.int(%0, 0, 0)
%5: E[] i64 = call aten.select.int(%0, 0, 1)
%6: E -> V = map %4 to V
%7: E -> V = map %5 to V
%8: V -> R = map %2 to R
%9: E[3] f32 = pull %3, %7
%10: V[3] f32 = push.sum %9, %6
%11: unit[4, 3] f32 = gram %1, %10
%12: R[4, 3] f32 = gram %1, %10, %8
return %11, %12
"""


def test_gradients_of_stacks_by_type_are_summed_with_the_others() -> None:
    """A matrix for each of a fixed number of types becomes numbers of shared data, and comes back as rows."""
    divided = Shard()(parse(SUM_BY_TYPE), PassFacts(sharding=SHARDING)).program
    assert show(divided).count("allreduce") == 2
    text = show(BucketSums()(divided, PassFacts(tangents=frozenset({"tangent"}))).program)
    assert "unit[72] f32 = allreduce" in text
    assert text.count("allreduce") == 1
    (back,) = [line for line in text.splitlines() if ": R[4, 3]" in line and "reshape" in line]
    assert "[5, 4, 3]" in back


TWO_TYPES = Sharding(
    "part", 1, (("cites", "paper", "paper"), ("writes", "author", "paper")), (("author", 2), ("paper", 7)),
    (("author", 2), ("paper", 7)), frozenset({"w"}),
)  # fmt: skip

ROWS_OF_TWO_TYPES = """
space A = a
space P = p
space U = a + p
space E = e
space F = f
space G = e + f
%0: any "i64[2, e]" = input writes
%1: any "i64[2, f]" = input cites
%2: A[4] f32 = input x
%3: P[4] f32 = input y
%4: any "Sym(a)" = input size
%5: U[4] f32 = join %2, %3 U
%6: U[4] f32 = tanh %5
%7: E[] i64 = call aten.select.int(%0, 0, 0)
%8: F[] i64 = call aten.select.int(%1, 0, 0)
%9: F[] i64 = call aten.select.int(%1, 0, 1)
%10: unit[] i64 = call aten.scalar_tensor.default(%4, dtype=@torch.int64)
%11: F[] i64 = add %8, %10
%12: G[] i64 = call aten.cat.default([%7, %11], 0)
%13: G -> U = map %12 to U
%14: G[4] f32 = pull %6, %13
%15: F[4] f32 = part %14 of=[E, F] at=1
%16: F -> P = map %9 to P
%17: P[4] f32 = push.sum %15, %16
%18: U[4] f32 = push.sum %14, %13
return %17, %18
"""


def test_rows_of_two_types_behind_each_other_are_exchanged_by_type() -> None:
    """Row counts that are added to indices become segments, and each segment has its own halo rows."""
    joined = SegmentIndices()(parse(ROWS_OF_TWO_TYPES), PassFacts(sharding=TWO_TYPES)).program
    (line,) = [line for line in show(joined).splitlines() if "joinindices" in line]
    assert "of=[A, P] at=[0, 1]" in line
    divided = show(Shard()(joined, PassFacts(sharding=TWO_TYPES)).program)
    assert "of=[A_all, P_all] at=[0, 1]" in divided
    assert "space U_all = a + p + 9" in divided
    for link, space in (("part:author", "A"), ("part:paper", "P")):
        assert f'over "{link}" to {space}_all' in divided
        assert f'over "{link}" to {space}\n' in divided
    assert show(parse(divided)) == divided


def test_numbers_that_are_no_rows_of_a_part_are_no_segments() -> None:
    """What no edge of the part says may lie in any segment."""
    program = parse(ROWS_OF_TWO_TYPES)
    elsewhere = replace(TWO_TYPES, edges=TWO_TYPES.edges[:1])
    assert SegmentIndices()(program, PassFacts(sharding=elsewhere)).program is program
    assert SegmentIndices()(program).program is program


class Rows(nn.Module):
    """A function of features and edges, as a module."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.table = nn.Parameter(torch.randn(9, 3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        gathered = x[edge_index[0]]
        return self.function(torch.zeros_like(x).index_add(0, edge_index[1], gathered), edge_index)


def chosen_and_sorted(h: Tensor, e: Tensor) -> Tensor:
    """The edges that a mask chooses, each with the one that has its place if they are sorted by destination."""
    ends = e[1][e[0] != e[1]]
    return h[ends] * h[ends[ends.argsort(stable=True)]]


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "a slice of rows": (lambda h, e: h[:2].sum(), "aten.slice"),
    "a running sum": (lambda h, e: h.cumsum(0), "added up in order"),
    "rows told apart by numbers of others": (lambda h, e: h[e[0].unique()], "may have the same"),
    "how many rows are told apart": (lambda h, e: h * len(e[0].unique()), "may have the same"),
    "sorted rows next to chosen ones": (lambda h, e: chosen_and_sorted(h, e), "in another order"),
    "row numbers as numbers": (lambda h, e: h * e[1].float().mean(), "become floats"),
    "computed numbers": (lambda h, e: h[(e[0] * 2) % 5], "computed with"),
    "numbers compared": (lambda h, e: h[e[1][e[0] < 3]], "compared"),
    "numbers compared by size": (lambda h, e: h[e[0][e[0] < e[1]]], "compared by size"),
    "truth values of numbers": (lambda h, e: h[e[1]] * e[0].bool()[:, None], "become truth values"),
    "numbers side by side": (lambda h, e: torch.stack([e[0], e[1]], 1).to(h.dtype).sum() * h, "become floats"),
    "edges by their place": (lambda h, e: h[e[:, 1:][1]], "by their place"),
    "one edge": (lambda h, e: h * e[0, 0], "by their place"),
    "an edge that all ranks add": (
        lambda h, e: h[torch.cat([e, torch.zeros(2, 1, dtype=torch.int64)], 1)[1]],
        "each rank has them once more",
    ),
    "a row that all ranks add": (lambda h, e: torch.cat([h, torch.ones(1, 3)]).sum(0), "each rank has them once more"),
    "a number among numbers of rows": (
        lambda h, e: h[torch.where(e[0] == e[1], e[1], torch.zeros_like(e[1]))],
        "stands among numbers of rows",
    ),
    "rows that numbers of rows choose": (lambda h, e: h[e[1].nonzero().view(-1)], "computed with"),
    "sorted numbers": (lambda h, e: h[e[1]] * e[1].sort().values.bool()[:, None], "become truth values"),
    "runs of rows": (lambda h, e: h[torch.arange(len(h))[:, None].expand(-1, 3).flatten()], "runs of equal length"),
}


@pytest.mark.parametrize("name", by_default(REFUSED, "a slice of rows"))
def test_what_needs_the_whole_graph_is_refused(name: str) -> None:
    function, said = REFUSED[name]
    part = parts_of(random_graph(9, 9, 30), 9, torch.zeros(9, dtype=torch.int64), 1)[0]
    with pytest.raises(ShardError, match=said):
        shard(Rows(function), part)(torch.randn(9, 3), part.edge_index)


def one_part(nodes: int, edges: int) -> GraphPart:
    """The part of the only rank, of a random graph."""
    return parts_of(random_graph(nodes, nodes, edges), nodes, torch.zeros(nodes, dtype=torch.int64), 1)[0]


JOINED: dict[str, tuple[Callable[[Tensor, Tensor, int], Tensor], str]] = {
    "no row counts": (lambda a, p, n: torch.cat([a[0], p[0]]), "'author' and of 'paper' lead to the same rows"),
    "as floats": (lambda a, p, n: torch.cat([a[0], p[0] + n]).double().long(), "become floats"),
    "a row of the union": (lambda a, p, n: torch.cat([a[0], p[0] + n + 1]), "computed with"),
}


@pytest.mark.parametrize("name", by_default(JOINED, "no row counts"))
def test_indices_that_are_no_rows_of_a_union_are_refused(name: str) -> None:
    """Rows are those of authors, then those of papers, and the numbers of each type must lead to its own."""
    index, said = JOINED[name]
    nodes = {"author": 5, "paper": 7}
    edges = {(t, "to", "paper"): random_graph(n, 7, 12) for t, n in nodes.items()}
    part = parts_of(edges, nodes, {t: torch.zeros(n, dtype=torch.int64) for t, n in nodes.items()}, 1)[0]
    authors, papers = (e.edge_index for e in part.edges.values())

    def gathered(x: Tensor, y: Tensor, authors: Tensor, papers: Tensor) -> Tensor:
        rows = torch.cat([x, y])[index(authors, papers, x.shape[0])]
        return torch.zeros_like(y).index_add(0, torch.cat([authors[1], papers[1]]), rows)

    with pytest.raises(ShardError, match=said):
        shard(gathered, part)(torch.randn(5, 3), torch.randn(7, 3), authors, papers)


def test_a_number_of_rows_that_is_a_width_is_refused() -> None:
    """Ranks with as many rows by chance have one program; it would hold the numbers of one of them."""
    part = one_part(9, 30)

    def mixed(x: Tensor, edge_index: Tensor) -> Tensor:
        return F.one_hot(edge_index[1], 9).to(x.dtype) @ x

    with pytest.raises(ShardError, match=r"numbers of rows were compiled in \(\[9, 3\] of"):
        shard(mixed, part)(torch.randn(9, 3), part.edge_index)


def test_the_size_of_a_tensor_that_is_not_read_is_refused() -> None:
    """Nobody knows whether other ranks have the same number. It was taken for one that they have."""
    part = one_part(9, 30)

    def scaled(x: Tensor, weight: Tensor, edge_index: Tensor) -> Tensor:
        return weight * (edge_index.shape[1] / x.shape[0]) + weight[edge_index[0]].sum()

    with pytest.raises(ShardError, match=r"computes with .*size\(\)\[0\], but reads nothing else"):
        shard(scaled, part)(torch.randn(9, 3), torch.randn(9), part.edge_index)


def test_code_for_more_rows_than_a_rank_has_is_refused() -> None:
    """A rank that compiled another program in its second call would wait for the others for ever."""
    part = one_part(1, 3)

    def strided(x: Tensor, edge_index: Tensor) -> Tensor:
        part_of = x[:, 1:]
        return part_of.new_empty_strided(part_of.shape, part_of.stride()).copy_(part_of)[edge_index[0]]

    with pytest.raises(ShardError, match=r"needs more rows than each rank has \(2 of .*, of which rank 0 has 1\)"):
        shard(strided, part)(torch.randn(1, 3), part.edge_index)


def test_code_for_more_rows_than_a_tensor_has_of_which_only_the_size_is_read_is_refused() -> None:
    """Its rows are no input of the program, so they were not looked at, and ranks waited for each other."""
    part = one_part(1, 3)

    def columns(x: Tensor, y: Tensor, edge_index: Tensor, index: Tensor) -> Tensor:
        sums = x.new_zeros(y.shape[0], 3).index_add(0, index, x) * 2
        sums[:, 0] += 1
        return sums.sum() + x[edge_index[0]].sum()

    with pytest.raises(ShardError, match="of which only the size is read, of which rank 0 has 1"):
        shard(columns, part)(torch.randn(1, 3), torch.randn(1, 3), part.edge_index, torch.zeros(1, dtype=torch.int64))


def test_a_rank_with_one_row_compiles_once_in_inference_mode() -> None:
    """Its call on stand-ins made code for inference tensors, and its real call compiled alone."""
    part = one_part(1, 3)
    sharded = shard(lambda x, e: torch.zeros_like(x).index_add(0, e[1], x[e[0]]), part)
    x = torch.randn(1, 3)
    reset_counters()
    with torch.inference_mode():
        torch.testing.assert_close(sharded(x, part.edge_index), 3 * x)
    assert counters()["compilations"] == 1


def test_indices_of_indices_are_refused() -> None:
    """What an index holds on another rank are numbers of that rank's rows."""
    loops = torch.stack([torch.randint(9, (9,)), torch.arange(9)])
    part = parts_of(loops, 9, torch.zeros(9, dtype=torch.int64), 1)[0]
    with pytest.raises(ShardError, match="read from rows of other ranks"):
        shard(lambda x, e: x[e[0][e[0]]], part)(torch.randn(9, 3), part.edge_index)


def test_rows_that_are_the_largest_are_refused() -> None:
    """Arguments that only their own order chooses from are a rank's rows, not what all ranks have."""
    part = one_part(9, 30)

    def largest(x: Tensor, weight: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x[edge_index[0]], weight[weight.topk(weight.shape[0] // 2).indices]

    with pytest.raises(ShardError, match=r"aten\.topk"):
        shard(largest, part)(torch.randn(9, 3), torch.randn(9), part.edge_index)


def test_rows_that_a_mask_numbers() -> None:
    part, x, mask = one_part(9, 30), torch.randn(9, 3), torch.arange(9) % 3 != 0

    def masked(x: Tensor, mask: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        sums = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return x[mask.nonzero().view(-1)], sums[mask.nonzero().view(-1)]

    found, wanted = shard(masked, part)(x, mask, part.edge_index), masked(x, mask, part.edge_index)
    torch.testing.assert_close(found, wanted)


def test_an_index_that_kernels_compute_is_there_before_what_is_pushed_along_it() -> None:
    """Its kernel also read what came of the push, so that each waited for the other."""
    loops = torch.stack([torch.randperm(9), torch.arange(9)])
    part, mask = parts_of(loops, 9, torch.zeros(9, dtype=torch.int64), 1)[0], torch.arange(9) % 3 != 0

    def counted(x: Tensor, mask: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        kept = edge_index[0][mask]
        counts = torch.zeros(x.shape[0]).index_add(0, kept, torch.ones(kept.shape[0]))
        return x[mask], counts.masked_select(mask)

    x = torch.randn(9, 3)
    torch.testing.assert_close(shard(counted, part)(x, mask, part.edge_index), counted(x, mask, part.edge_index))


def test_gradients_of_gradients_are_refused() -> None:
    """PyTorch would compute them in eager mode, from the rows of one rank."""
    part = one_part(9, 30)
    x = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    out = shard(Rows(lambda h, e: h.square()).double(), part)(x, part.edge_index)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(ShardError, match=r"gradients of gradients .* sees only the rows of one rank"):
        grad.square().sum().backward()


@pytest.mark.parametrize("name", by_default(["SAGE", "RGCN"], "RGCN"))
def test_one_rank_needs_no_process_group(name: str) -> None:
    assert all(error < 1e-9 for _, _, error in trained_alike(0, name, ["undirected"], 1))


def test_a_copy_of_the_edges_is_refused() -> None:
    part = parts_of(random_graph(9, 9, 30), 9, torch.zeros(9, dtype=torch.int64), 1)[0]
    with pytest.raises(ShardError, match="not a copy"):
        shard(Rows(lambda h, e: F.relu(h)), part)(torch.randn(9, 3), part.edge_index.clone())


def test_a_part_of_other_ranks_is_refused() -> None:
    part = parts_of(random_graph(9, 9, 30), 9, torch.arange(9) % 2, 2)[1]
    with pytest.raises(ShardError, match="part 1 of 2 was given to rank 0 of 1"):
        shard(Rows(lambda h, e: h), part)
