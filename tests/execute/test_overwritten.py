"""Tensors that a user overwrites between forward and backward harm a compiled backward no more than an eager one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn.models.tgn import IdentityMessage, MeanAggregator, TGNMemory

import graphweave
from bench.check import FLOAT_TOLERANCE, relative_error
from graphweave.analysis.statistics import Statistics
from graphweave.core.sizes import Symbol
from graphweave.core.types import DType, Op, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Gram, Input, MapOf, Pointwise, Program, Pull, Type
from graphweave.passes.partition import split
from graphweave.passes.pass_facts import PassFacts
from tests.pyg.zoo import run_case
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Any], Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
both_doors = pytest.mark.parametrize("door", DOORS)


def _gradients(
    fn: Callable[..., Tensor], edit: Callable[..., object], *tensors: Tensor, leaves: tuple[int, ...]
) -> list[Tensor]:
    """Gradients of the leaves where `edit(out, *tensors)` runs between forward and backward; leaves are not edited."""
    given = [t.clone().requires_grad_(i in leaves) for i, t in enumerate(tensors)]
    out = fn(*given)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    with torch.no_grad():
        edit(out, *given)
    (out * weights).sum().backward()
    return [given[i].grad for i in leaves]  # type: ignore[misc]


def _same(fn: Callable[..., Tensor], door: str, edit: Callable[..., object], *tensors: Tensor, leaves: Any) -> None:
    want = _gradients(fn, edit, *tensors, leaves=leaves)
    got = _gradients(DOORS[door](fn), edit, *tensors, leaves=leaves)
    assert graphweave.counters()["eager_fallbacks"] == 0
    for one, other in zip(got, want, strict=True):
        assert relative_error(one, other) < FLOAT_TOLERANCE[torch.float64]


def _edge_messages(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Eager mode saves the messages; a compiled program saves the features and computes the messages again."""
    message = torch.tanh(x[src] * 2 - x[dst]) @ w
    return x.new_zeros(x.size(0), w.size(1)).index_add(0, dst, message)


@both_doors
def test_features_overwritten_after_the_forward(door: str) -> None:
    src, dst = random_graph(9, 9, 40)
    x, w = features(9, 4, torch.float64), features(4, 3, torch.float64)

    def edit(out: Tensor, x: Tensor, *_: Tensor) -> None:
        x.mul_(3).add_(1)

    _same(_edge_messages, door, edit, x, w, src, dst, leaves=(1,))


@both_doors
def test_result_overwritten_after_the_forward(door: str) -> None:
    """The backward of an addition reads nothing, but a compiled one may keep the sum as cheaper than its parts."""

    def fn(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = torch.zeros_like(x).index_add(0, dst, x[src])
        out = h @ w + 0.5
        loss_part = (out + 1).relu().sum(1, keepdim=True)
        return torch.cat([out, loss_part], 1)[:, :3] + out

    src, dst = random_graph(9, 9, 40)
    x, w = features(9, 4, torch.float64), features(4, 3, torch.float64)
    _same(fn, door, lambda out, *_: out.zero_(), x, w, src, dst, leaves=(0, 1))


@both_doors
def test_input_that_the_function_itself_writes_to(door: str) -> None:
    """`relu_` writes to a value from outside: its gradient needs the value before, or the result, but not the input."""

    def fn(h: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h.sin_()
        return torch.zeros_like(h).index_add(0, dst, h.cos()[src] * w)

    src, dst = random_graph(9, 9, 40)

    def whole(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, w, src, dst: f(x * 1.5, w, src, dst)

    x, w = features(9, 4, torch.float64), features(1, 4, torch.float64)
    want = _gradients(whole(fn), lambda *_: None, x, w, src, dst, leaves=(0, 1))
    got = _gradients(whole(DOORS[door](fn)), lambda *_: None, x, w, src, dst, leaves=(0, 1))
    for one, other in zip(got, want, strict=True):
        assert relative_error(one, other) < FLOAT_TOLERANCE[torch.float64]


@both_doors
def test_input_that_is_written_to_through_a_view_that_is_an_input_too(door: str) -> None:
    """PyTorch gives both as one tensor, which the program lays out anew if it must: that is no copy."""

    def fn(whole: Tensor, part: Tensor) -> Tensor:
        total = whole + 1
        kept = torch.nan_to_num(part.clone())
        part[:, -1] = 2.0
        return total.view(kept.shape) + kept

    def outer(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def called(x: Tensor) -> Tensor:
            h = x.abs() + 1
            return f(h, h.view(-1, 2, 2))

        return called

    x = features(3, 4, torch.float64)
    want, got = (_gradients(outer(f), lambda *_: None, x, leaves=(0,)) for f in (fn, DOORS[door](fn)))
    assert relative_error(got[0], want[0]) < FLOAT_TOLERANCE[torch.float64]


@both_doors
def test_index_that_is_overwritten(door: str) -> None:
    """Each batch writes new positions into one table; eager mode saves what was read from the table."""

    def fn(x: Tensor, w: Tensor, table: Tensor, node: Tensor) -> Tensor:
        at = table[node]
        return torch.tanh(x.new_zeros(5, x.size(1)).index_add(0, at, torch.exp(x) * w)) * w

    def edit(out: Tensor, x: Tensor, w: Tensor, table: Tensor, node: Tensor) -> None:
        table.fill_(3)

    x, w = features(12, 4, torch.float64), features(1, 4, torch.float64)
    table, node = torch.randint(5, (20,)), torch.randint(20, (12,))
    _same(fn, door, edit, x, w, table, node, leaves=(0, 1))


def _memory(door: str | None) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    model = TGNMemory(12, 4, 8, 6, IdentityMessage(4, 8, 6), MeanAggregator())
    draw = torch.Generator().manual_seed(1)
    model.update_state(torch.arange(6), torch.arange(6, 12), torch.arange(6), torch.randn(6, 4, generator=draw))
    call = model if door is None else DOORS[door](model)
    out, _ = call(torch.arange(10))
    model.update_state(torch.arange(4), torch.arange(7, 11), torch.arange(10, 14), torch.ones(4, 4))
    (out * torch.arange(8)).sum().backward()
    return out.detach(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.slow
@both_doors
def test_memory_updated_before_the_backward(door: str) -> None:
    out, grads = _memory(door)
    expected, others = _memory(None)
    assert relative_error(out, expected) < FLOAT_TOLERANCE[torch.float32]  # the memory's messages are float32
    assert len(grads) == len(others)
    for one, other in zip(grads, others, strict=True):
        assert relative_error(one, other) < FLOAT_TOLERANCE[torch.float32]


@pytest.mark.zoo
def test_in_place_after_a_graph_break() -> None:
    """Plain torch.compile breaks the graph of AttentiveFP where it counts graphs, in front of a `relu_`."""
    row = run_case("models.AttentiveFP", "plain")
    assert row.status == "ok", row.where


@both_doors
def test_a_number_that_a_graph_gives_to_the_next_is_not_copied(door: str) -> None:
    """The number of segments is a result of the first graph, which its backward reads, too."""

    def fn(x: Tensor, index: Tensor) -> Tensor:
        ends = torch.nn.functional.pad(torch.bincount(index, minlength=3).cumsum(0), (1, 0))
        sums = torch.segment_reduce(x.exp(), "sum", offsets=ends)
        count = sums.shape[0]
        torch._dynamo.graph_break()
        return sums.tanh() * count

    compiled = DOORS[door](fn)
    for rows in (9, 4):
        x, index = features(rows, 4).requires_grad_(), torch.arange(rows) % 3
        got, want = (torch.autograd.grad(f(x, index.sort().values).sum(), x)[0] for f in (compiled, fn))
        assert relative_error(got, want) < 1e-12


def _gather(rows: int, picked: int) -> tuple[Program, frozenset[int], Statistics]:
    """The gradient of w in exp(memory[n]) * w reads exp(memory[n]) from the memory again."""
    b = Builder()
    V, B = Space("V"), Space("B")
    memory = b.add(Input("memory", Type(V, (4,), DType.f32)))
    n = b.add(Input("n", Type(B, (), DType.i64)))
    g = b.add(Input("tangents_1", Type(B, (4,), DType.f32)))
    m = b.add(MapOf(n, V, False))
    read = b.add(Pull(memory, m))
    out = b.add(Pointwise(Op.tanh, (read,)))
    gram = b.add(Gram(out, g))
    statistics = Statistics(((V, rows), (B, picked)))
    return b.program([out, gram], [(V, Symbol("v")), (B, Symbol("b"))]), frozenset({memory}), statistics


@pytest.mark.parametrize(("rows", "picked", "copies"), [(1000, 10, False), (10, 1000, True)])
def test_the_smaller_is_kept(rows: int, picked: int, copies: bool) -> None:
    """The split saves the smaller: the rows that a batch reads of a large memory, or a copy of a small memory."""
    program, exposed, statistics = _gather(rows, picked)
    cut = split(program, 1, PassFacts(tangents=frozenset({"tangents_1"}), statistics=statistics), exposed=exposed)
    assert (cut.copied == exposed) is copies
    assert (0 in cut.saved) is copies
