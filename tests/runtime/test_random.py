"""Random numbers as functions of a seed and a position: the generator, its two forms, and dropout made from it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F

import graphweave
from graphweave.core.errors import IRError
from graphweave.core.options import Options
from graphweave.core.sizes import read
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.loop.nodes import Buffer, IndexSum, Kernel, Lanes, Lit, Load, Role, Store, Uniform, Var
from graphweave.ir.loop.parse import parse as parse_kernel
from graphweave.ir.loop.show import show as show_kernel
from graphweave.ir.loop.verify import verify as verify_kernel
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Input, MapOf, Pointwise, Program, Pull, Push, Random, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.ir.philox import philox, uniform
from graphweave.runtime import triton_kernel
from tests.loop_support import Case, compiled, interpreted
from tests.program_support import built
from tests.programs.graphs import zoo
from tests.support import Graph, assert_matches, features, random_graph, several_or_all

pytestmark = pytest.mark.usefixtures("fresh_compiler")

V, E = Space("V"), Space("E")
INDEX = random_graph(40, 40, 333)
SEED = (1 << 40) + 12345


# ---------------------------------------------------------------- the generator


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_known_answers(counter: tuple[int, int], key: int, want: tuple[int, int]) -> None:
    """The published test vectors of philox2x32 with ten rounds (Random123)."""
    got = philox((torch.tensor(counter[0]), torch.tensor(counter[1])), torch.tensor(key))
    assert tuple(map(int, got)) == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [0, 1, SEED, 2**63 - 2])
def test_numbers_are_uniform(seed: int, dtype: torch.dtype) -> None:
    """Chi-square over 256 bins of 1e6 draws, within 6 sigma; bounds; no correlation of neighbours."""
    drawn = uniform(torch.tensor(seed), torch.arange(10**6), dtype).double()
    assert float(drawn.min()) >= 0 and float(drawn.max()) < 1
    counts = torch.bincount((drawn * 256).long(), minlength=256).double()
    expected = len(drawn) / 256
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi - 255) < 6 * math.sqrt(2 * 255)
    assert abs(_correlation(drawn[1:], drawn[:-1])) < 6e-3


def test_seeds_and_far_positions_are_independent() -> None:
    position = torch.arange(10**6)
    first = uniform(torch.tensor(SEED), position, torch.float64)
    for seed, start in ((SEED + 1, 0), (SEED + (1 << 32), 0), (SEED, 1 << 32), (SEED, 1 << 40)):
        other = uniform(torch.tensor(seed), position + start, torch.float64)
        assert abs(_correlation(first, other)) < 6e-3, (seed, start)


def _correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]).double())[0, 1])


# ---------------------------------------------------------------- both IRs


def drawing(dtype: DType) -> Program:
    """A maximum of messages that uses a random number for each edge and head, and one for each node and feature."""
    b = Builder()
    x = b.add(Input("x", Type(V, (3, 5), dtype)))
    seed = b.add(Input("seed", Type(UNIT, (), DType.i64)))
    src = b.add(MapOf(b.add(Input("src", Type(E, (), DType.i64))), V))
    dst = b.add(MapOf(b.add(Input("dst", Type(E, (), DType.i64))), V))
    of_edges, of_nodes = b.add(Random(seed, Type(E, (3, 1), dtype))), b.add(Random(seed, Type(V, (3, 5), dtype)))
    dropped = b.add(Pointwise(Op.mul, (x, of_nodes)))
    message = b.add(Pointwise(Op.mul, (b.add(Pull(dropped, src)), of_edges)))
    out = b.add(Push(message, dst, Fold.max))
    return b.program([out, of_nodes, of_edges], [(V, read("s0")), (E, read("s1"))])


@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
def test_kernels_draw_what_the_interpreter_draws(dtype: DType) -> None:
    program = drawing(dtype)
    verify(program)
    assert parse(show(program)) == program
    made = built(program, Options())
    for graph in zoo():
        n = max(graph.num_src, graph.num_dst)
        wide = torch.float32 if dtype is DType.f32 else torch.float64
        given = {"x": features(n, 15, wide).view(n, 3, 5), "seed": torch.tensor(SEED), "src": graph.src.long(),
                 "dst": graph.dst.long()}  # fmt: skip
        got = made(list(given.values()))
        for a, b in zip(got, interp(program, given), strict=True):
            assert torch.equal(a, b), graph.name


def test_a_seed_is_one_integer() -> None:
    b = Builder()
    seed = b.add(Input("seed", Type(UNIT, (2,), DType.i64)))
    with pytest.raises(IRError, match="one i64 as seed"):
        b.add(Random(seed, Type(V, (3,), DType.f32)))


def kernel(dtype: DType, index: IndexSum) -> Kernel:
    value = Uniform(Load("seed", (Lit(0, DType.i64),)), Var("v"), 12, index, dtype)
    buffers = (
        Buffer("seed", Role.input, DType.i64, None, (1,)), Buffer("out", Role.output, dtype, "N", (4, 3)),
    )  # fmt: skip
    store = Store("out", (Var("v"), Var("i"), Var("j")), value)
    return Kernel("draw", "v", ("N",), DType.i32, (), buffers, (), (Lanes((("i", 4), ("j", 3)), (store,)),))


@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
@pytest.mark.parametrize(
    "index", [IndexSum((("i", 3), ("j", 1))), IndexSum((("j", 4), ("i", 1)))], ids=["rows", "cols"]
)
def test_a_kernel_that_draws(dtype: DType, index: IndexSum) -> None:
    made = kernel(dtype, index)
    verify_kernel(made)
    assert parse_kernel(show_kernel(made)) == made
    wide = torch.float32 if dtype is DType.f32 else torch.float64
    case = Case(made, {"seed": torch.tensor([SEED]), "out": torch.zeros(7, 4, 3, dtype=wide)}, {}, {"N": 7})
    want = interpreted(case)["out"]
    assert torch.equal(want, compiled(case)["out"])
    assert torch.equal(want.flatten().sort().values, uniform(torch.tensor(SEED), torch.arange(84), wide).sort().values)


def test_an_index_beyond_the_row_is_refused() -> None:
    with pytest.raises(IRError, match=r"indexed 0\.\.18"):
        verify_kernel(kernel(DType.f32, IndexSum((("i", 4), ("j", 3)))))


# ---------------------------------------------------------------- dropout


class Net(nn.Module):
    """Attention and feature dropout."""

    def __init__(self, p: float = 0.6) -> None:
        super().__init__()
        self.conv, self.p = pyg.GATConv(9, 4, heads=3, dropout=p), p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return F.dropout(self.conv(F.dropout(x, self.p, self.training), edge_index), self.p, self.training)


def _net(p: float = 0.6) -> Net:
    torch.manual_seed(0)
    return Net(p)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [pytest.param(torch.float32, 1e-4, marks=pytest.mark.slow), (torch.float64, 1e-12)]
)
@several_or_all
def test_dropout_gives_what_eager_gives_with_the_same_masks(
    dtype: torch.dtype, tolerance: float, graphs: tuple[Graph, ...]
) -> None:
    """A wrong mask would be an error of size 1. In float32 the gradient of `att_dst` cancels under the softmax."""
    net = _net().to(dtype)
    model = graphweave.compile(net)
    for graph in graphs:
        x = features(graph.num_nodes, 9, dtype)
        assert_matches(model, net, x, graph.edge_index, module=net, label=graph.name, tolerance=tolerance)


def test_of_masks_only_seeds_are_saved_and_nothing_on_edges() -> None:
    told = graphweave.explain(_net(), features(40, 9).requires_grad_(), INDEX)
    types = [s.split(": ", 1)[1] for g in told.graphs for s in g.saved]
    assert types.count("unit[] i64") == 3
    assert not [t for t in types if t.startswith("E") and not t.endswith("i64")]
    assert not [t for t in types if t.endswith("bool")]
    assert not [f for g in told.graphs for f in g.fallbacks], "seeds are no work left to PyTorch"


def test_seeds_reproduce_and_calls_differ() -> None:
    net = _net()
    model, x = graphweave.compile(net), features(40, 9)
    torch.manual_seed(3)
    first, second = model(x, INDEX), model(x, INDEX)
    torch.manual_seed(3)
    assert torch.equal(model(x, INDEX), first) and not torch.equal(first, second)
    with torch.no_grad():
        torch.manual_seed(3)
        torch.testing.assert_close(model(x, INDEX), first)
    net.eval()
    before = torch.get_rng_state()
    assert torch.equal(model(x, INDEX), model(x, INDEX))
    assert torch.equal(torch.get_rng_state(), before), "evaluation draws nothing"


def test_gradients_are_those_of_the_drawn_masks() -> None:
    """Finite differences in float64 with the seed set before each call."""
    net = _net(0.4).double()
    model = graphweave.compile(net)
    x = features(9, 9, torch.float64).requires_grad_()
    index = random_graph(9, 9, 30)

    def loss(value: Tensor) -> Tensor:
        torch.manual_seed(5)
        return (model(value, index) * features(9, 12, torch.float64, seed=4)).sum()

    (grad,) = torch.autograd.grad(loss(x), [x])
    for seed in range(3):
        direction = features(9, 9, torch.float64, seed=20 + seed)
        step = 1e-6 * direction
        slope = (loss(x.detach() + step) - loss(x.detach() - step)).item() / 2e-6
        torch.testing.assert_close(slope, float((grad * direction).sum()), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_keep_rate_and_scale(p: float) -> None:
    model = graphweave.compile(lambda x, index: F.dropout(x[index[0]], p) - 0 * x[index[1]])
    draws = 10**4 if triton_kernel.interpreted() else 10**5
    x, index = torch.ones(100, 10), random_graph(100, 100, draws)
    torch.manual_seed(1)
    masks = [model(x, index) for _ in range(2)]
    for kept in masks:
        share = (kept != 0).double()
        torch.testing.assert_close(kept[kept != 0].unique(), torch.tensor([1 / (1 - p)]))
        sigma = math.sqrt(p * (1 - p))
        assert abs(float(share.mean()) - (1 - p)) < 5 * sigma / math.sqrt(10 * draws)
        assert (share.mean(0) - (1 - p)).abs().max() < 5 * sigma / math.sqrt(draws)
        assert abs(_correlation(share[:, 0], share[:, 1])) < 5 / math.sqrt(draws)
        assert abs(_correlation(share[1:, 0], share[:-1, 0])) < 5 / math.sqrt(draws)
    assert abs(_correlation((masks[0] != 0).flatten(), (masks[1] != 0).flatten())) < 5 / math.sqrt(10 * draws)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_and_everything_dropped(p: float) -> None:
    model = graphweave.compile(lambda x, index: F.dropout(x[index[0]], p) * x[index[1]])
    x = features(40, 9).requires_grad_()
    out = model(x, INDEX)
    torch.testing.assert_close(out, (1 - p) * x[INDEX[0]] * x[INDEX[1]])
    (grad,) = torch.autograd.grad(out.sum(), [x])
    assert bool(grad.isfinite().all()) and bool((grad != 0).any()) == (p == 0)


def test_whole_features_and_given_chances() -> None:
    """dropout1d drops all features of a row together; bernoulli uses a probability for each number."""

    def fn(x: Tensor, chance: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        messages = F.dropout1d(x[index[0]], 0.5)
        return messages * x[index[1]], torch.bernoulli(chance[index[0]]) + 0 * chance[index[1]]

    edges = 5_000 if triton_kernel.interpreted() else 20_000
    x, index = torch.ones(50, 4, 6), random_graph(50, 50, edges)
    chance = torch.linspace(0, 1, 50)[:, None]
    torch.manual_seed(2)
    dropped, drawn = graphweave.compile(fn)(x, chance, index)
    assert torch.equal(dropped, dropped[..., :1].expand_as(dropped))
    assert 0.45 < float((dropped != 0).double().mean()) < 0.55
    assert not drawn[index[0] == 0].any() and drawn[index[0] == 49].all()
    share = torch.zeros(50).index_add(0, index[0], drawn[:, 0]) / torch.bincount(index[0], minlength=50)
    assert (share - chance[:, 0]).abs().max() < 5 * 0.5 / math.sqrt(0.75 * edges / 50)


def test_no_generator_but_pytorchs_is_drawn_from() -> None:
    """Programs draw negative edges with Python's or NumPy's generator (PyG's `negative_sampling` with Python's).

    What is compiled must not change what they get.
    """

    def run(x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])

    compiled = graphweave.compile(run)
    for edges in (30, 50_000):
        x, edge_index = torch.randn(10, 4, requires_grad=True), torch.randint(10, (2, edges))
        random.seed(3)
        np.random.seed(3)
        compiled(x, edge_index).sum().backward()
        assert random.random() == random.Random(3).random()
        assert np.random.random() == np.random.RandomState(3).random()
