"""What the forward keeps for the backward: policies of recomputing, and random numbers that are drawn again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import SettingsError
from graphweave.execute.cpp_stretch import kernel_by_kernel
from graphweave.passes.recompute import POLICIES
from graphweave.runtime import arena
from tests.support import Graph, by_default, features, random_graph, several_or_all

pytestmark = pytest.mark.usefixtures("fresh_compiler")

INDEX = random_graph(40, 40, 333)


class MaxMessages(nn.Module):
    """max over edges of tanh(x_u * s + x_v): autograd keeps the messages, edges x features."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(features(1, 9)[0])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        message = torch.tanh(x[src] * self.scale + x[dst])
        out = torch.zeros_like(x)
        return out.scatter_reduce(0, dst[:, None].expand_as(message), message, "amax", include_self=False)


class Products(nn.Module):
    """max over edges of x_u * a + x_v * b, where the gradient needs the value of the first product."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(features(1, 16, seed=seed)[0]) for seed in (3, 4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        product = x[src] * self.a
        message = product + x[dst] * self.b
        index = dst[:, None].expand_as(message)
        most = torch.zeros_like(x).scatter_reduce(0, index, message, "amax", include_self=False)
        return most + torch.zeros_like(x).index_add(0, dst, product**3)


class Stack(nn.Module):
    """Attention, a sum through a perceptron with dropout, attention: three walks that may be recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.GATConv(9, 8, heads=2)
        self.second = pyg.GINConv(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)))
        self.third = pyg.GATConv(16, 8, heads=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.elu(self.first(x, edge_index))
        x = nn.functional.dropout(self.second(x, edge_index).relu(), 0.3)
        return self.third(x, edge_index).log_softmax(1)


def on_edges(saved: tuple[str, ...]) -> list[str]:
    """Types of values of edges among `saved`, without the indices, which belong to the graph."""
    types = [s.split(": ", 1)[1] for s in saved]
    return [t for t in types if t.startswith("E") and not t.endswith(("i32", "i64"))]


def on_nodes(saved: tuple[str, ...]) -> list[str]:
    return [t for s in saved if (t := s.split(": ", 1)[1]).startswith("V")]


MODELS: dict[str, Callable[[], nn.Module]] = {"max": MaxMessages, "gat": lambda: pyg.GATConv(9, 4, heads=3)}


@pytest.mark.parametrize("name", by_default(MODELS, "max"))
@several_or_all
def test_policies_give_equal_gradients(name: str, graphs: tuple[Graph, ...]) -> None:
    model = MODELS[name]()
    compiled = {p: graphweave.compile(model, options={"recompute": p}) for p in POLICIES}
    for graph in graphs:
        x = features(graph.num_nodes, 9).requires_grad_()
        inputs = [x, *model.parameters()]
        want = torch.autograd.grad(model(x, graph.edge_index).square().sum(), inputs)
        for policy, other in compiled.items():
            got = torch.autograd.grad(other(x, graph.edge_index).square().sum(), inputs)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5, msg=f"{graph.name}, {policy}")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ((333,), (333, 6)), ids=str)
def test_policies_give_equal_gradients_through_several_layers_and_dropout(sizes: tuple[int, ...]) -> None:
    model = Stack()
    compiled = {p: graphweave.compile(model, options={"recompute": p}) for p in POLICIES}
    for size in sizes:
        x, index = features(40, 9).requires_grad_(), random_graph(40, 40, size)
        got = {}
        for policy, f in compiled.items():
            torch.manual_seed(3)
            weights = features(40, 16, seed=8)
            got[policy] = torch.autograd.grad((f(x, index) * weights).sum(), [x, *model.parameters()])
        for policy in POLICIES:
            for a, b in zip(got[policy], got["never"], strict=True):
                scale = max(1.0, float(b.abs().max()))
                torch.testing.assert_close(a, b, atol=2e-5 * scale, rtol=0, msg=policy)


class Attentions(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(pyg.GATConv(16, 8, heads=2) for _ in range(layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        return x.log_softmax(1).square().sum()


def peak_rows(policy: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """The arena's peak memory in a training step, in tensors of nodes x features."""
    nodes = 20_000
    x, index = features(nodes, 16), random_graph(nodes, nodes, 2 * nodes)
    model = Attentions(layers)
    compiled = graphweave.compile(model, options={"recompute": policy})
    with kernel_by_kernel():
        compiled(x, index).backward()
    before, most = arena.stats()["in_use"], 0
    take = arena.arena.empty

    def watched(shape: Sequence[int], dtype: torch.dtype, room: int = 0) -> Tensor:
        nonlocal most
        made = take(shape, dtype, room)
        most = max(most, arena.stats()["in_use"])
        return made

    monkeypatch.setattr(arena.arena, "empty", watched)
    with kernel_by_kernel():  # a stretch takes the memory of all its steps, up to a limit, at once
        compiled(x, index).backward()
    monkeypatch.undo()
    return (most - before) / arena.size_class(nodes * 16 * 4)


@pytest.mark.parametrize("layers", by_default((2, 3), 2))
def test_memory_in_use_at_once_is_what_the_policy_says(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` keeps three tensors a layer (projection, sum, masked sum); `always` the projection.

    The last layer's backward has one and two more. What `always` sums again for a layer is gone before the next.
    """
    assert peak_rows("auto", layers, monkeypatch) == 3 * layers + 1
    assert peak_rows("always", layers, monkeypatch) == layers + 2


def test_messages_computed_again_are_the_bits_that_the_maximum_was_found_among() -> None:
    """If only one kernel fused a product and a sum, no message might equal the maximum."""
    model = Products()
    x, index = features(50, 16).requires_grad_(), random_graph(50, 50, 2000)
    inputs = [x, *model.parameters()]
    want = torch.autograd.grad(model(x, index).square().sum(), inputs)
    got = torch.autograd.grad(graphweave.compile(model)(x, index).square().sum(), inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


def test_explain_tells_the_policy_and_what_is_kept() -> None:
    x = features(40, 9).requires_grad_()
    kept = {}
    for policy in POLICIES:
        told = graphweave.explain(graphweave.compile(MaxMessages(), options={"recompute": policy}), x, INDEX)
        assert f"(recompute={policy})" in told.text()
        kept[policy] = next(g.saved for g in told.graphs if g.saved)
    assert on_edges(kept["never"]), "messages, and what a scale multiplies"
    assert not on_edges(kept["auto"]) and not on_edges(kept["always"])
    assert on_nodes(kept["always"]) == ["V0[9] f32"], "x"
    assert len(on_nodes(kept["auto"])) > 1, "x, the maximum and what else the forward pushes for the backward"


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"'recompute' must be 'auto', .* or 'always' \(got 'sometimes'\)"):
        graphweave.compile(MaxMessages(), options={"recompute": "sometimes"})


class Activated(nn.Module):
    """Sums of neighbours, an activation, a product: the gradient needs the sum's sign and the activation."""

    def __init__(self, wide_input: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(features(1, 9, seed=5)[0])
        self.linear = nn.Linear(9, 20)
        self.wide_input = wide_input

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        total = torch.zeros_like(x).index_add(0, dst, x[src])
        hidden = torch.relu(total * self.scale)
        return self.linear(hidden) + (total.square() if self.wide_input else total).sum(1, keepdim=True)


@pytest.mark.parametrize("wide_input", [True, False])
def test_of_an_activation_and_what_it_is_made_of_one_is_saved(wide_input: bool) -> None:
    model = Activated(wide_input)
    compiled = graphweave.compile(model)
    x = features(40, 9).requires_grad_()
    told = graphweave.explain(compiled, x, INDEX)
    kept = on_nodes(next(g.saved for g in told.graphs if g.saved))
    assert kept == ["V0[9] f32"], kept
    inputs = [x, *model.parameters()]
    want = torch.autograd.grad(model(x, INDEX).square().sum(), inputs)
    got = torch.autograd.grad(compiled(x, INDEX).square().sum(), inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4 * float(b.abs().max()), rtol=0)


def test_of_a_softmax_over_classes_the_logits_and_numbers_of_a_row_are_saved() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> Tensor:
            src, dst = edge_index
            logits = torch.zeros_like(x).index_add(0, dst, x[src])
            return nn.functional.cross_entropy(logits * self.scale, y)

    x, y = features(40, 9).requires_grad_(), torch.arange(40) % 9
    told = graphweave.explain(graphweave.compile(Loss()), x, INDEX, y)
    kept = on_nodes(next(g.saved for g in told.graphs if g.saved))
    assert kept.count("V0[9] f32") == 1, kept
