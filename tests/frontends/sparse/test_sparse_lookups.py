"""Embeddings with `sparse=True` that are looked up more than once: gradients with the rows that were looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import DistMult, TransE

import graphweave

ROWS, WIDTH = 50, 6
Given = tuple[Tensor, Tensor, Tensor]


class Triples(nn.Module):
    """A score of triples. `far` uses the table of nodes in another way, too."""

    def __init__(self, *, far: bool = False) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.node = nn.Embedding(ROWS, WIDTH, sparse=True, padding_idx=3, dtype=torch.float64)
        self.kind = nn.Embedding(4, WIDTH, sparse=True, dtype=torch.float64)
        self.far = far

    def forward(self, head: Tensor, kind: Tensor, tail: Tensor) -> Tensor:
        scores = (self.node(head) * self.kind(kind) * self.node(tail)).sum(-1).tanh()
        return scores + (self.node.weight**2).mean() if self.far else scores


def fallbacks() -> tuple[int, int]:
    found = graphweave.counters()
    return found["graph_breaks"], found["eager_fallbacks"]


def triples(count: int) -> Given:
    numbers = torch.Generator().manual_seed(count)
    return tuple(torch.randint(n, (count,), generator=numbers) for n in (ROWS, 4, ROWS))  # type: ignore[return-value]


def gradients(model: nn.Module, f: Callable[..., Tensor], given: Given) -> list[Tensor]:
    return list(torch.autograd.grad(f(*given).sum(), list(model.parameters())))


def assert_equal_gradients(got: list[Tensor], want: list[Tensor]) -> None:
    for one, expected in zip(got, want, strict=True):
        assert one.layout == expected.layout
        torch.testing.assert_close(one.to_dense(), expected.to_dense())


@pytest.mark.parametrize("far", [False, True], ids=["lookups alone", "and used otherwise"])
@pytest.mark.parametrize("door", [graphweave.compile, lambda m: torch.compile(m, backend="graphweave", dynamic=True)])
def test_lookups_of_one_table_have_one_sparse_gradient(
    door: Callable[..., Any], far: bool, fresh_compiler: None
) -> None:
    model = Triples(far=far)
    compiled = door(model)
    for count in (9, 0, 1, 2, 300):
        given = triples(count)
        assert_equal_gradients(gradients(model, compiled, given), gradients(model, model, given))
    assert fallbacks() == (0, 0)


def test_sparse_adam_trains_what_was_looked_up(fresh_compiler: None) -> None:
    models = [Triples(), Triples()]
    for model, f in zip(models, (models[0], graphweave.compile(models[1])), strict=True):
        optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            f(*triples(7 + step)).sum().backward()
            optimizer.step()
    for one, expected in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(one, expected)


@pytest.mark.parametrize("kind", [TransE, DistMult])
def test_knowledge_graphs_of_pyg_have_sparse_gradients(kind: type[nn.Module], fresh_compiler: None) -> None:
    model = kind(ROWS, 4, WIDTH, sparse=True).double()
    given = triples(20)
    assert_equal_gradients(
        gradients(model, graphweave.compile(model), given), gradients(model, model, given)
    )  # fmt: skip


def test_an_index_that_is_computed_late_is_moved_forward(fresh_compiler: None) -> None:
    model = Triples()

    def f(edges: Tensor) -> Tensor:
        rows = model.node(edges[0])
        return (rows * model.node(edges[1].flip(0))).sum(-1).tanh()

    compiled, edges = graphweave.compile(f), torch.stack(triples(30)[::2])
    got, want = (torch.autograd.grad(g(edges).sum(), [model.node.weight]) for g in (compiled, f))
    assert_equal_gradients(list(got), list(want))
    assert fallbacks() == (0, 0)


@pytest.mark.filterwarnings("ignore:Error detected in")  # PyTorch says where its trace failed
def test_lookups_by_what_was_looked_up_run_eagerly_and_say_so(fresh_compiler: None) -> None:
    model = Triples()

    def f(head: Tensor) -> Tensor:
        rows = model.node(head)
        return (rows * model.node(rows.sum(-1).abs().long())).sum(-1)

    head = triples(12)[0]
    with pytest.warns(UserWarning, match="runs eagerly"):
        got = torch.autograd.grad(graphweave.compile(f)(head).sum(), [model.node.weight])
    assert_equal_gradients(list(got), list(torch.autograd.grad(f(head).sum(), [model.node.weight])))


@pytest.mark.parametrize("kind", [TransE, pytest.param(DistMult, marks=pytest.mark.slow)])
def test_losses_of_pyg_look_up_negatives_that_they_write_between(kind: Any, fresh_compiler: None) -> None:
    """`loss` samples other heads and tails, and writes them into copies, after it has looked up the first triples."""
    model = kind(ROWS, 4, WIDTH, sparse=True).double()
    compiled = graphweave.compile(model.loss)
    for count in (9, 20):
        found = []
        for f in (compiled, model.loss):
            torch.manual_seed(count)
            found.append(list(torch.autograd.grad(f(*triples(count)), list(model.parameters()))))
        assert_equal_gradients(*found)
    assert fallbacks() == (0, 0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch and we say that it runs eagerly
def test_lookups_stay_apart_where_a_write_to_what_others_read_lies_between(fresh_compiler: None) -> None:
    model = Triples()

    def f(head: Tensor, tail: Tensor) -> Tensor:
        tail = tail.clone()
        total = model.node(head) + tail.unsqueeze(1)
        tail[0] = 5
        return (total + model.node(tail)).sum(-1)

    head, _, tail = triples(8)
    got = torch.autograd.grad(graphweave.compile(f)(head, tail).sum(), [model.node.weight])
    assert_equal_gradients(list(got), list(torch.autograd.grad(f(head, tail).sum(), [model.node.weight])))
    assert fallbacks() != (0, 0)
