"""Memory of the size of the edges that is kept for a graph: how much, in which types, and without visible effect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import IndexRangeError
from graphweave.core.types import Space
from graphweave.execute.calls import call_step
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.split_pairs import SplitPairs
from graphweave.runtime import formats, index_records
from graphweave.runtime.memo import memo
from tests.support import Graph, assert_matches, by_default, features, needs_float16, random_graph, several_or_all

pytestmark = pytest.mark.usefixtures("fresh_compiler")

N, M = 40, 20_000


@pytest.fixture(autouse=True)
def no_graphs() -> Iterator[None]:
    formats.clear()
    memo.clear()
    yield
    formats.clear()
    memo.clear()


def step(model: Callable[..., Tensor], x: Tensor, edge_index: Tensor) -> None:
    model(x.clone().requires_grad_(), edge_index).square().sum().backward()


def kept_of_edges(edge_index: Tensor) -> dict[torch.dtype, int]:
    """Bytes per edge, by type, that caches keep beside the user's index; each storage is counted once."""
    entries = [*index_records.cache._entries.values(), *memo._cache._entries.values()]
    storages = {
        t.untyped_storage()._cdata: (t.dtype, t.untyped_storage().nbytes())
        for entry in entries
        for t in (*entry.aliases, *entry.made)
        if t.numel() >= M // 2
    }
    storages.pop(edge_index.untyped_storage()._cdata, None)
    found: dict[torch.dtype, int] = {}
    for dtype, nbytes in storages.values():
        found[dtype] = found.get(dtype, 0) + nbytes
    made = sum(entry.value.nbytes for entry in index_records.cache._entries.values())
    found[torch.int32] = found.get(torch.int32, 0) + made
    return {dtype: round(nbytes / M) for dtype, nbytes in found.items()}


LAYERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "gcn": (lambda: pyg.GCNConv(8, 4), 16),
    "gat": (lambda: pyg.GATConv(8, 4, heads=2), 16),
    "gatv2": (lambda: pyg.GATv2Conv(8, 4, heads=2), 16),
    "sage": (lambda: pyg.SAGEConv(8, 4), 8),
    "transformer": (lambda: pyg.TransformerConv(8, 4), 8),
}


@pytest.mark.parametrize("name", by_default(LAYERS, "gcn", "gat", "sage"))
def test_both_columns_and_a_self_looped_index_are_all_that_is_kept(name: str) -> None:
    """4 bytes for each direction's column, and 4 for each end of an edge_index that the layer made itself."""
    make, most = LAYERS[name]
    edges = random_graph(N, N, M)
    step(graphweave.compile(make()), features(N, 8), edges)
    kept = kept_of_edges(edges)
    assert kept == {torch.int32: most}


def test_a_permutation_is_kept_only_where_a_value_of_edges_is_read() -> None:
    edges, weight = random_graph(N, N, M), features(M, 1)[:, 0]
    compiled = graphweave.compile(pyg.GraphConv(8, 4))
    compiled(features(N, 8), edges).sum().backward()
    before = kept_of_edges(edges)[torch.int32]
    compiled(features(N, 8), edges, weight).sum().backward()
    assert kept_of_edges(edges)[torch.int32] == before + 4, "the edge at each position of the CSR"


@pytest.mark.parametrize("layer", by_default(("gcn", "gat"), "gcn"))
@several_or_all
def test_awkward_graphs_and_each_region_checked(layer: str, graphs: tuple[Graph, ...]) -> None:
    model = LAYERS[layer][0]()
    compiled = graphweave.compile(model, options={"verify": True})
    for graph in graphs:
        assert_matches(compiled, model, features(graph.num_nodes, 8), graph.edge_index, label=graph.name)


# ---------------------------------------------------------------- who else reads the index


def looped(edge_index: Tensor, n: int) -> Tensor:
    return torch.cat([edge_index, torch.arange(n).expand(2, -1)], 1)


def summed(x: Tensor, edges: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


def given_back(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    edges = looped(edge_index, x.size(0))
    return summed(x, edges), edges[0]


def compared(x: Tensor, edge_index: Tensor) -> Tensor:
    edges = looped(edge_index, x.size(0))
    later = (edges[0] * 2**31 > edges[1] * 2**31).to(x.dtype)
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * later[:, None])


def sorted_again(x: Tensor, edge_index: Tensor) -> Tensor:
    edges = looped(edge_index, x.size(0))
    order = torch.sort(edges[0], stable=True)[1]
    return summed(x, edges[:, order]) + 2 * summed(x, edges)


def from_the_end(x: Tensor, edge_index: Tensor) -> Tensor:
    edges = looped(edge_index - x.size(0), x.size(0))
    target = looped(edge_index, x.size(0))[1]
    return torch.zeros_like(x).index_add(0, target, x[edges[0]])


def largest(x: Tensor, edge_index: Tensor) -> Tensor:
    edges = looped(edge_index, x.size(0))
    places = edges[1][:, None].expand(-1, x.size(1))
    return torch.zeros_like(x).scatter_reduce(0, places, x[edges[0]].sin(), "amax", include_self=False)


def filtered(x: Tensor, edge_index: Tensor) -> Tensor:
    edges = looped(edge_index[:, edge_index[0] != edge_index[1]], x.size(0))
    return summed(x.tanh(), edges) / edges.size(1)


USES = [compared, sorted_again, from_the_end, largest, filtered]


@pytest.mark.parametrize("use", USES, ids=lambda f: f.__name__)
def test_other_users_of_an_index_see_64_bits(use: Callable[..., Tensor]) -> None:
    edges = random_graph(N, N, 300)
    compiled = graphweave.compile(use)
    for index in (edges, edges[:, :0]):
        assert_matches(compiled, use, features(N, 5), index)


@pytest.mark.parametrize("use", USES, ids=lambda f: f.__name__)
def test_half_precision_runs_in_pytorch_on_the_same_index(use: Callable[..., Tensor]) -> None:
    needs_float16()
    x, edges = features(N, 5).half(), random_graph(N, N, 60)
    torch.testing.assert_close(graphweave.compile(use)(x, edges), use(x, edges), rtol=1e-2, atol=2e-2)


STEPS = """\
space V = s0
space E = s1
%0: E[2] f32 = input x
%1: E[] i64 = input index
%2: E -> V = map %1 to V
%3: E -> V = map %1 to V wrap
%4: V[2] f32 = push.sum %0, %2
%5: V[2] f32 = push.max %0, %2
%6: E[2] f32 = pull %4, %2
return %4, %5, %6
"""


def test_steps_left_to_pytorch_take_an_index_of_32_bits() -> None:
    program = parse(STEPS)
    rows = {Space("V"): 7, Space("E"): 20}

    def run(ref: int, *values: Tensor, rows: dict[Space, int] = rows) -> Tensor:
        step = call_step(program, ref)
        return step.run(*(rows[s] for s in step.spaces), *values)

    x, index = features(20, 2), random_graph(7, 7, 20)[0]
    for push in (4, 5):
        narrow = run(2, index.int())
        assert torch.equal(run(push, x, narrow), run(push, x, index))
    total = run(4, x, index)
    assert torch.equal(run(6, total, index.int()), run(6, total, index))
    # A negative index into more rows than 32 bits can number.
    many = {Space("V"): 2**40, Space("E"): 1}
    found = run(3, torch.tensor([-1], dtype=torch.int32), rows=many)
    assert found.tolist() == [2**40 - 1]


@pytest.mark.parametrize("training", [False, True])
def test_an_index_given_back_has_64_bits(training: bool) -> None:
    edges = random_graph(N, N, 300)
    compiled = graphweave.compile(given_back)
    _, index = compiled(features(N, 5).requires_grad_(training), edges)
    assert index.dtype == torch.int64
    assert torch.equal(index, looped(edges, N)[0])


@pytest.mark.parametrize("value", [N, -1, 2**31, 2**40 + 1, -(2**33)])
def test_what_is_out_of_range_is_refused_as_ever(value: int) -> None:
    edges = random_graph(N, N, 300)
    compiled = graphweave.compile(pyg.GCNConv(5, 3))
    compiled(features(N, 5), edges)
    edges[0, 7] = value  # the edit is noticed though the graph was seen before
    with pytest.raises(IndexRangeError, match=f"index {value} at position"):
        compiled(features(N, 5), edges)


def test_threads_with_graphs_of_their_own() -> None:
    torch.manual_seed(0)
    model = pyg.GATConv(5, 3)
    compiled = graphweave.compile(model)
    graphs = [random_graph(N, N, 200 + i, seed=i) for i in range(4)]
    x = features(N, 5)
    expected = [model(x, g).detach() for g in graphs]
    compiled(x, graphs[0])
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for k in range(12):
                g = (i + k) % len(graphs)
                torch.testing.assert_close(compiled(x, graphs[g]).detach(), expected[g])
                if k % 4 == 3:
                    formats.clear()
                    memo.clear()
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


# ---------------------------------------------------------------- one end at a time

PAIRS = """\
space V = s0
space E = s0 + u0
%0: any "i64[2, s1]" = input edges
%1: any "i64[2, s0]" = input loops
%2: any "bool[s1]" = input mask
%3: any "i64[2, u0]" = call aten.index.Tensor(%0, [none, %2])
%4: any "Sym(u0)" = call aten.sym_size.int(%3, 1)
%5: any "i64[2, s0 + u0]" = call aten.cat.default([%3, %1], 1)
%6: E[] i64 = call aten.select.int(%5, 0, 0)
%7: E[] i64 = call aten.select.int(%5, 0, 1)
return %6, %7, %4
"""

SPLIT = """\
space V = s0
space E = s0 + u0
%0: any "i64[2, s1]" = input edges
%1: any "i64[2, s0]" = input loops
%2: any "bool[s1]" = input mask
%3: any "i64[s1]" = call aten.select.int(%0, 0, 0)
%4: any "i64[u0]" = call aten.index.Tensor(%3, [%2])
%5: any "Sym(u0)" = call aten.sym_size.int(%4, 0)
%6: any "i64[s0]" = call aten.select.int(%1, 0, 0)
%7: E[] i64 = call aten.cat.default([%4, %6], 0)
%8: any "i64[s1]" = call aten.select.int(%0, 0, 1)
%9: any "i64[u0]" = call aten.index.Tensor(%8, [%2])
%10: any "i64[s0]" = call aten.select.int(%1, 0, 1)
%11: E[] i64 = call aten.cat.default([%9, %10], 0)
return %7, %11, %5
"""


def ends(program: Program, edges: Tensor, mask: Tensor) -> list[object]:
    loops = torch.arange(3).expand(2, -1) * torch.tensor([[1], [2]])
    return list(interp(program, {"edges": edges, "loops": loops, "mask": mask}))


def test_the_ends_of_edges_are_made_one_by_one() -> None:
    program = parse(PAIRS)
    split = SplitPairs()(program).program
    assert show(split) == SPLIT
    verify(split)
    edges = random_graph(9, 9, 50)
    for mask in (edges[0] > 3, edges[0] < 0):
        for ours, theirs in zip(ends(split, edges, mask), ends(program, edges, mask), strict=True):
            torch.testing.assert_close(ours, theirs)
    again = SplitPairs()(split)
    assert again.program is split


def test_by_position_as_well_as_by_mask() -> None:
    text = PAIRS.replace('"bool[s1]"', '"i64[u0]"').replace(
        "index.Tensor(%0, [none, %2])", "index_select.default(%0, 1, %2)"
    )
    program = parse(text)
    split = SplitPairs()(program).program
    assert "aten.index_select.default(%3, 0, %2)" in show(split)
    edges = random_graph(9, 9, 50)
    order = edges[0].argsort()
    for ours, theirs in zip(ends(split, edges, order), ends(program, edges, order), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return %6, %7, %4", "return %6, %7, %5"),
        ("aten.select.int(%5, 0, 1)", "aten.amax.default(%5, [0])"),
        ("[%3, %1], 1)", "[%3, %1], 0)"),
    ],
)
def test_a_pair_that_is_needed_as_a_whole_stays(before: str, after: str) -> None:
    program = parse(PAIRS.replace(before, after))
    assert SplitPairs()(program).program is program
