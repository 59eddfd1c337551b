"""Narrow rows that one kernel gathers lie side by side: same values, fewer arrays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.analysis.statistics import Statistics
from graphweave.compiler.compile import optimise
from graphweave.core.options import Options, options_for
from graphweave.core.types import DType, Space
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Program, Pull
from graphweave.ir.message.parse import parse
from graphweave.ir.message.verify import verify
from graphweave.lower import pack_rows as module
from graphweave.lower.pack_rows import PackRows
from graphweave.passes.pass_facts import PassFacts
from tests.programs.algebra import layer_inputs, random_layers
from tests.programs.compare import assert_close
from tests.programs.graphs import zoo
from tests.support import SEVERAL, assert_matches, by_default, features

SCORES = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[3] f32 = input a
%5: V[1] f32 = input b
%6: V[16] f32 = input x
%7: E[3] f32 = pull %4, %2
%8: E[1] f32 = pull %5, %2
%9: E[16] f32 = pull %6, %2
%10: V[3] f32 = input c
%11: E[3] f32 = pull %10, %3
%12: E[3] f32 = mul %7, %8
%13: E[3] f32 = add %12, %11
%14: E[1] f32 = reduce.sum %13 [0] keepdim
%15: E[16] f32 = mul %9, %14
%16: V[16] f32 = push.sum %15, %3
return %16
"""

V, E = Space("V"), Space("E")
LARGE = Statistics(((V, 1 << 20), (E, 1 << 24)))


def made(program: Program, options: Options | None = None, statistics: Statistics = LARGE) -> Program:
    """The packed program, verified; the same object where nothing was packed."""
    facts = PassFacts(options=options or Options(), statistics=statistics)
    after = PackRows()(program, facts).program
    verify(after)
    return after


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are packed on graphs of any size."""
    monkeypatch.setattr(module, "_MANY_ROWS", 0)
    monkeypatch.setattr(module, "_EDGES_PER_ROW", 0)


def test_narrow_rows_of_one_map_become_one_row() -> None:
    program = parse(SCORES)
    after = made(program)
    pulled = [after.types[n.x] for n in after.nodes if isinstance(n, Pull)]
    assert sorted(t.shape for t in pulled) == [(3,), (4,), (16,)]  # c along dst, a and b, x
    graph = torch.tensor([[0, 1, 3, 3, 2], [1, 1, 0, 2, 2]])
    given = {"src": graph[0], "dst": graph[1]} | {
        k: features(4, n) for k, n in (("a", 3), ("b", 1), ("x", 16), ("c", 3))
    }
    assert_close(interp(after, given)[0], interp(program, given)[0], DType.f32, reduction_length=16)


def test_rows_are_padded_to_a_power_of_two() -> None:
    after = made(parse(SCORES.replace("%5: V[1]", "%5: V[3]").replace("%8: E[1]", "%8: E[3]")))
    assert (8,) in [after.types[n.x].shape for n in after.nodes if isinstance(n, Pull)]


@pytest.mark.parametrize(
    ("text", "options", "statistics"),
    [
        (SCORES, Options(packed_bytes=0), LARGE),
        (SCORES, options_for("triton"), LARGE),
        (SCORES, Options(), Statistics(((V, 1000), (E, 100_000)))),
        (SCORES, Options(), Statistics(((V, 1 << 20), (E, 1 << 20)))),
        (SCORES.replace("%8: E[1] f32 = pull %5, %2", "%8: E[1] f32 = pull %5, %3"), Options(), LARGE),
        (SCORES.replace("%5: V[1] f32", "%5: V[1] f64").replace("%8: E[1] f32", "%8: E[1] f64")
            .replace("%12: E[3] f32 = mul %7, %8", "%12: E[3] f32 = add %7, %7"), Options(), LARGE),
    ],
    ids=["off", "triton", "few rows", "few edges", "other map", "nobody reads it"],
)  # fmt: skip
def test_what_stays_apart(text: str, options: Options, statistics: Statistics) -> None:
    program = parse(text)
    assert made(program, options, statistics) is program


def test_a_value_waits_for_no_later_one() -> None:
    """b is the sum of what the kernel with a computes, so they are not of one row."""
    text = SCORES.replace("%5: V[1] f32 = input b", "%5: V[1] f32 = const 1.0").replace(
        "return %16",
        "%17: V[1] f32 = reduce.sum %16 [0] keepdim\n%18: E[1] f32 = pull %17, %2\n%19: E[3] f32 = mul %7, %18\n"
        "%20: V[3] f32 = push.sum %19, %3\nreturn %20",
    )
    program = parse(text)
    after = made(program)
    graph = torch.tensor([[0, 1, 3, 3, 2], [1, 1, 0, 2, 2]])
    given = {"src": graph[0], "dst": graph[1]} | {k: features(4, n) for k, n in (("a", 3), ("x", 16), ("c", 3))}
    assert_close(interp(after, given)[0], interp(program, given)[0], DType.f32, reduction_length=48)


@pytest.mark.usefixtures("everywhere")
def test_random_layers_keep_their_values_and_gradients() -> None:
    changed = 0
    for seed in range(12):
        program = optimise(random_layers(seed).joint().program).program
        after = made(program, replace(Options(), packed_bytes=256))
        changed += after is not program
        for graph in zoo()[seed % 4 :: 4] if after is not program else ():
            given = layer_inputs(program, graph, seed)
            for one, other in zip(interp(after, given), interp(program, given), strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    assert_close(one, other, DType.f64, reduction_length=1)
    assert changed > 2


class Attention(nn.Module):
    """Softmax over the edges of a node, several heads; its backward reads four narrow rows at the end of each edge."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.lin = heads, nn.Linear(5, heads * width)
        self.score = nn.Parameter(torch.randn(2, heads, width))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        h = self.lin(x).view(x.shape[0], self.heads, -1)
        a, b = ((h * s).sum(-1) for s in self.score)
        z = nn.functional.leaky_relu(a[src] + b[dst], 0.2)
        top = z.new_full((x.shape[0], self.heads), -torch.inf).scatter_reduce(
            0, dst.unsqueeze(1).expand_as(z), z, "amax"
        )
        p = torch.exp(z - top[dst])
        total = p.new_zeros(x.shape[0], self.heads).index_add(0, dst, p)
        return torch.zeros_like(h).index_add(0, dst, h[src] * (p / total[dst]).unsqueeze(-1))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("shape", by_default([(4, 8), (1, 31), (3, 1)], (3, 1)))
def test_attention_equals_eager(shape: tuple[int, int], plain: bool) -> None:
    torch.manual_seed(1)
    model = Attention(*shape).double()
    compiled = torch.compile(model, backend="graphweave") if plain else graphweave.compile(model)
    for graph in SEVERAL:
        x = features(graph.num_nodes, 5, torch.float64)
        assert_matches(compiled, model, x, graph.edge_index, module=model, label=graph.name)


@pytest.mark.usefixtures("everywhere")
def test_the_backward_of_attention_gathers_one_wide_and_one_narrow_row() -> None:
    graph = torch.randint(50, (2, 400))
    told = graphweave.explain(Attention(3, 8), features(50, 5).requires_grad_(), graph, detail="loops").text("loops")
    backward = told[told.index("backward, loop IR") :]
    walks = [line for line in backward.splitlines() if "edges k in" in line and "prefetch" in line]
    assert walks and all(line.count("prefetch ") == 2 for line in walks), walks
    assert "concat" in backward
