"""Parts of benchmarks that could produce wrong numbers: counted traffic, fitted lines, graphs, taking turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from bench.check import step
from bench.common import in_fresh_process
from bench.graphs import knn_clouds, pseudo_coordinates
from bench.memory_growth import fit, random_graph
from bench.probes import _call_probe
from bench.turns import Player, PlayerLost, take_turns
from graphweave.core.kernel_cost import Rates
from graphweave.core.sizes import read
from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.loop.parse import parse
from graphweave.ir.loop.traffic import Traffic, traffic_of
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import AddMatMul, Input, MapOf, MatMul, Type
from tests import patience
from tests.loop_support import node_stages
from tests.program_support import compiled
from tests.support import features
from tests.typed_programs import pushed_program, typed_program

SPMM = """\
kernel spmm_sum_4(v < N, E; i32) {
  csr by_dst
  column src: i32[E; ]
  in x: f32[N; 4]
  out y: f32[N; 4]
  do
    alloc acc: f32[4] = 0
    edges k in by_dst[v] prefetch x[src[k + 2]] {
      let u: i32 = src[k]
      lanes c < 4 {
        acc[c] sum= x[u, c]
      }
    }
    lanes c < 4 {
      y[v, c] = mul(acc[c], x[v, c])
    }
}
"""


def test_traffic_counts_each_tensor_once_or_each_gathered_row() -> None:
    rows, edges = 100, 700
    indptr, column, block = 4 * (rows + 1), 4 * edges, 4 * 4 * rows
    want = Traffic(
        compulsory=indptr + column + 2 * block,
        gather=indptr + column + 2 * block + 16 * edges,  # x is read at its own rows as well
        flops=4 * edges + 4 * rows,
    )
    assert traffic_of(parse(SPMM), {"N": rows, "E": edges}, {"by_dst": edges}) == want


def test_what_is_only_gathered_is_not_counted_twice() -> None:
    kernel = parse(SPMM.replace("mul(acc[c], x[v, c])", "acc[c]"))
    got = traffic_of(kernel, {"N": 10, "E": 30}, {"by_dst": 30})
    assert got.gather == 4 * 11 + 4 * 30 + 16 * 30 + 160
    assert got.flops == 4 * 30


def test_products_of_rows_count_once_a_row_and_products_of_edges_once_an_edge() -> None:
    rows, edges = 10, 30
    got = traffic_of(node_stages(3, 5), {"N": rows, "E": edges}, {"by_dst": edges})
    products = 2 * rows * 4 * (3 * 5) + 2 * edges * (3 * 3)
    exponentials, sums, relu = edges * 2 * 3, edges * 3 * 3, rows * 5
    assert got.flops == products + exponentials + sums + relu
    assert got.gather - got.compulsory == 4 * edges * 3  # x is multiplied in place, so more rows are gathered


def test_every_pass_over_the_edges_gathers_again() -> None:
    walk = SPMM[SPMM.index("    edges k") : SPMM.index("    lanes c < 4 {\n      y")]
    again = walk.replace(" k ", " k2 ").replace("[k]", "[k2]").replace("k + 2", "k2 + 2").replace("let u", "let u2")
    kernel = parse(SPMM.replace(walk, walk + again.replace("x[u,", "x[u2,")))
    once = traffic_of(parse(SPMM), {"N": 10, "E": 30}, {"by_dst": 30})
    twice = traffic_of(kernel, {"N": 10, "E": 30}, {"by_dst": 30})
    assert twice.compulsory == once.compulsory
    assert twice.gather - once.gather >= 16 * 30


def test_typed_products_gather_rows_and_multiply_them_by_the_matrix_of_a_type() -> None:
    kernel = compiled(typed_program(2, 3, 5, gathers=True, transposed=True)).plan.kernels[0].lowered.kernel
    types, nodes, edges = 7, 11, 130
    sizes = {"num_R": types, "num_V": nodes, "num_E": edges}
    x, y, w, columns = 24 * nodes, 40 * edges, 4 * 30 * types, 2 * 4 * edges
    got = traffic_of(kernel, sizes, {"csr": edges})
    assert got.compulsory == x + 2 * y + 2 * w + columns + 4 * (types + 1)
    assert got.flops >= 2 * 2 * edges * 2 * 3 * 5 and got.flops < 5 * edges * 2 * 3 * 5
    assert got.gather == 24 * edges + 2 * y + 2 * w + columns + 4 * (types + 1)


def test_a_fused_push_gathers_a_row_an_edge_and_multiplies_once_a_pair() -> None:
    (plan,) = compiled(pushed_program(2, 3, 5, scaled=True)).plan.kernels.values()
    kernel = plan.lowered.kernel
    types, nodes, edges, blocks, groups, pairs = 7, 11, 130, 2, 9, 60
    sizes = {"num_blocks": blocks, "num_groups": groups, "num_pairs": pairs}
    sizes |= {"num_V": nodes, "num_R": types, "num_E": edges}
    got = traffic_of(kernel, sizes, {"block": nodes, "groups": groups, "pairs": pairs, "csr": edges})
    tables = 4 * (2 * (blocks + 1) + groups + 1 + pairs + 1) + 4 * (groups + pairs) + 2 * 4 * edges
    x, out, w = 24 * nodes, 40 * nodes, 4 * 30 * types
    assert got.compulsory == tables + x + out + w + 4 * edges
    assert got.gather == got.compulsory - x + 24 * edges
    assert got.flops == 2 * pairs * 2 * 3 * 5 + 2 * edges * 2 * 3


def test_a_bound_is_of_bytes_or_of_flops() -> None:
    assert Rates(100.0, 1e9).seconds(1000, 300) == 10.0
    assert Rates(1e9, 100.0).seconds(1000, 300) == 3.0


def test_a_line_through_points_has_their_slope() -> None:
    line = fit([(edges, 24 * edges + 5_000_000) for edges in (500_000, 1_000_000, 4_000_000)])
    assert line is not None
    assert line["bytes_per_edge"] == pytest.approx(24)
    assert line["intercept_bytes"] == pytest.approx(5_000_000)
    assert line["worst_residual_bytes"] < 1
    assert fit([(1, 1), (2, 2)]) is None


def test_nearest_neighbours_are_of_the_same_cloud_and_grouped_by_destination() -> None:
    clouds, points, k = 3, 30, 4
    x, index = knn_clouds(clouds, points, k, torch.Generator().manual_seed(0))
    source, target = index
    assert torch.equal(target, torch.arange(clouds * points).repeat_interleave(k))
    assert torch.equal(source // points, target // points)
    distances = torch.cdist(x.double(), x.double())
    distances[torch.arange(clouds * points)[:, None] // points != torch.arange(clouds * points) // points] = torch.inf
    distances.fill_diagonal_(torch.inf)
    assert torch.equal(distances.topk(k, largest=False).indices, source.view(-1, k))


def test_pseudo_coordinates_of_a_node_nobody_points_to() -> None:
    index = torch.tensor([[0, 0, 1, 1, 2], [1, 2, 2, 2, 2]])
    got = pseudo_coordinates(index, 4)
    torch.testing.assert_close(got, torch.tensor([1.0, 1.0, 4.0])[index].rsqrt().t())


PLAYER = """
import os, time
from bench.turns import serve, steps_timer
print("what libraries print is no answer")
def fail(): raise ValueError("no such graph")
def take(megabytes): return len(bytearray(megabytes << 20))
serve({"turn": steps_timer(lambda: None), "fail": fail, "die": lambda: os._exit(3), "take": take,
       "sleep": lambda: time.sleep(60)})
"""


@contextmanager
def player(timeout: float | None = None, memory: int | None = None) -> Iterator[Player]:
    one = Player([sys.executable, "-c", PLAYER], {}, timeout=timeout or patience.seconds(), memory=memory)
    try:
        yield one
    finally:
        one.close()


def test_players_take_turns_and_one_that_fails_ends_alone() -> None:
    with player() as first, player() as second:
        with pytest.raises(PlayerLost, match="ValueError: no such graph"):
            first.ask("fail")
        with pytest.raises(PlayerLost, match="exit 3"):
            second.ask("die")
        results = take_turns({"first": first, "second": second}, repeats=3, warmup=1)
    assert results["first"]["status"] == "ok"
    assert results["first"]["repeats"] == 3
    assert "exit 3" in results["second"]["status"]


def test_a_player_that_does_not_answer_is_ended() -> None:
    with player(timeout=1.0) as one, pytest.raises(PlayerLost, match="no answer to 'sleep' within 1 s"):
        one.ask("sleep")


def test_a_player_beyond_its_memory_says_so() -> None:
    with player(memory=256 << 20) as one:
        with pytest.raises(PlayerLost, match="MemoryError"):
            one.ask("take", megabytes=1024)
        assert one.ask("take", megabytes=1) == 1 << 20


def test_a_fresh_process_that_fails_is_a_result() -> None:
    answer = in_fresh_process(random_graph, nodes=-1, edges=1, pseudo=False)
    assert answer["status"].startswith("exit 1: RuntimeError")


def test_a_run_in_double_precision_is_the_same_problem() -> None:
    x = features(7, 9)
    single, double = (step(lambda x: x * 3, (x.to(dtype),)) for dtype in (torch.float32, torch.float64))
    wide, narrow = double.grads["input[0]"], single.grads["input[0]"]
    assert wide is not None and narrow is not None
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-6, atol=1e-6)


def test_calls_of_products_count_their_flops() -> None:
    """Shared and typed ones, added to something or not; one row of shared data counts as one."""
    v, r = Space("V"), Space("R")
    b = Builder()
    x, a, u = (b.add(Input(n, Type(s, (k,), DType.f32))) for n, s, k in (("x", v, 4), ("a", v, 3), ("u", UNIT, 4)))
    w, ws = b.add(Input("w", Type(UNIT, (4, 3), DType.f32))), b.add(Input("ws", Type(r, (4, 3), DType.f32)))
    t = b.add(MapOf(b.add(Input("t", Type(v, (), DType.i64))), r))
    nodes = (MatMul(x, w), AddMatMul(a, x, w), MatMul(x, ws, t), AddMatMul(a, x, ws, t), MatMul(u, w))
    program = b.program(made := [b.add(n) for n in nodes], [(v, read("s0")), (r, read("s1"))])
    for ref, rows in zip(made, (7, 7, 7, 7, 1), strict=True):
        out = torch.ones(3) if rows == 1 else torch.ones(rows, 3)
        assert _call_probe(program, ref, (torch.ones(rows, 4),), out).traffic.flops == 2 * rows * 4 * 3
