"""Equal layers, which AOTAutograd traces once: the graph and all results are as if each had been traced by itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import graphweave
from graphweave.core.counters import counters
from graphweave.core.numbers import any_other
from graphweave.core.settings import override
from graphweave.frontends.dynamo.graph_compilation import GraphCompilation
from graphweave.frontends.halves import traced_parts
from graphweave.frontends.halves.part_numbers import others, put, varying_constants
from tests.support import by_default

WIDTH, NODES, EDGES = 4, 30, 90


class Layer(nn.Module):
    """A layer whose flags, width and aggregation may differ from those of its neighbours."""

    def __init__(self, *, mean: bool = False, slope: float = 0.1, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.lin, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.eps = nn.Parameter(torch.rand(1))
        self.norm = nn.BatchNorm1d(WIDTH) if norm else None
        self.mean, self.slope, self.drop = mean, slope, drop

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        src, dst = index
        total = torch.zeros_like(x).index_add(0, dst, self.lin(x)[src])
        if self.mean:
            total = total / torch.bincount(dst, minlength=len(x)).clamp(min=1).to(x.dtype)[:, None]
        h = F.leaky_relu(self.out(total + (1 + self.eps) * x), self.slope)
        if self.norm is not None:
            h = self.norm(h)
        return F.dropout(h, self.drop, self.training)


class Mixed(Layer):
    """A layer whose share of the features before it decides which formula PyTorch takes, and a power of them."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        h = torch.lerp(super().forward(x, index), x, self.share)
        return torch.addmm(h, h, self.lin.weight, beta=1 - self.share, alpha=self.share).abs() ** (1 + self.share)


class Loops(Layer):
    """A layer that drops edges within a node and adds them again, so that data decides its number of edges."""

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        index = index[:, index[0] != index[1]]
        loops = torch.arange(len(x))
        return super().forward(x, torch.cat([index, torch.stack([loops, loops])], 1))


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList(layers)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x, index).tanh()
        return x


class Relations(nn.Module):
    """A layer for each relation, whose edges are counted apart."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: Tensor, *indices: Tensor) -> Tensor:
        return torch.stack([layer(x, i) for layer, i in zip(self.layers, indices, strict=True)]).sum(0)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """What is counted in the block."""
    before, found = counters(), Counter[str]()
    yield found
    found.update({name: n - before[name] for name, n in counters().items()})


def edges(count: int = EDGES) -> Tensor:
    return torch.randint(NODES, (2, count))


def twice() -> Stack:
    layer = Layer()
    return Stack(layer, layer, Layer(), layer, Layer())


def shared() -> Stack:
    stack = Stack(*(Layer() for _ in range(5)))
    stack.layers[3].lin.weight = stack.layers[1].lin.weight
    return stack


def frozen() -> Stack:
    stack = Stack(*(Layer() for _ in range(5)))
    stack.layers[2].requires_grad_(False)
    return stack


def hooked() -> Stack:
    stack = Stack(*(Layer() for _ in range(5)))
    stack.layers[3].register_forward_hook(lambda module, args, out: out * 3)
    return stack


STACKS: dict[str, Callable[[], nn.Module]] = {
    "norms": lambda: Stack(*(Layer(norm=True) for _ in range(5))),
    "dropout": lambda: Stack(*(Layer(drop=0.5) for _ in range(5))),
    "sizes by data": lambda: Stack(*(Loops() for _ in range(5))),
    "called twice": twice,
    "shared weights": shared,
    "frozen": frozen,
    "hooked": hooked,
    "slopes": lambda: Stack(*(Layer(slope=0.1 if i != 3 else 0.3) for i in range(6))),
    "slopes of their own": lambda: Stack(*(Layer(slope=0.1 * (i + 1)) for i in range(6))),
    "rates of their own": lambda: Stack(*(Layer(drop=0.15 * (i + 1)) for i in range(6))),
    "shares of their own": lambda: Stack(*(Mixed(0.11 * (i + 1)) for i in range(8))),
    "flags": lambda: Stack(*(Layer(mean=i >= 3) for i in range(6))),
}  # fmt: skip


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fx.GraphModule]]:
    """The graphs that would be compiled. They run as PyTorch's calls, so that a test waits for no kernels."""
    found: list[fx.GraphModule] = []
    monkeypatch.setattr(GraphCompilation, "_attempt", lambda self, module, _: found.append(described(module)))
    yield found
    torch._dynamo.reset()


def described(module: fx.GraphModule) -> tuple[Counter[Any], Any]:
    """What a graph computes, by names that say how each value is computed, and its results. The order of calls plays no
    role, but that of random ones."""
    names: dict[fx.Node, str] = {}
    found = Counter[Any]()
    for i, node in enumerate(module.graph.nodes):
        drawn = sum("rand" in str(t) or "bernoulli" in str(t) or "dropout" in str(t) for t, *_ in found)
        args = re.sub(r'"Runtime assertion[^"]*"', "", str(fx.map_arg((node.args, node.kwargs), names.get)))
        value = i if node.op == "placeholder" else kind(node.meta.get("val"))
        said = (str(node.target) if node.op != "placeholder" else "", args, str(value))
        if "aten.rand" in said[0] or "bernoulli" in said[0] or "dropout" in said[0]:
            said = (*said, str(drawn))  # type: ignore[assignment]
        names[node] = str(hash(said))
        found[said] += 1
    return found, names[module.graph.output_node()]


def kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, tuple(map(str, value.shape)), tuple(map(str, value.stride()))
    return tuple(map(kind, value)) if isinstance(value, list | tuple) else str(value)


def results(model: nn.Module, arguments: tuple[Any, ...], *, compiled: bool, apart: bool = False) -> list[Tensor]:
    """A step's result, gradients and buffers, from the same random state and buffers each time."""
    torch._dynamo.reset()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    model.zero_grad()
    torch.manual_seed(5)
    with override(equal_parts=not apart):
        run = graphweave.compile(model) if compiled else model
        out = run(*arguments)
        if out.requires_grad:
            out.square().sum().backward()
    found = [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    found += [b.clone() for b in model.buffers()]
    model.load_state_dict(state)
    return found


def check(model: nn.Module, arguments: tuple[Any, ...], captured: list[Any]) -> float:
    """Compare the graph and the results of a model with those of separate traces, and with eager ones. Returns how many
    calls were traced once for all."""
    with counted() as counts:
        ours = results(model, arguments, compiled=True)
    apart = results(model, arguments, compiled=True, apart=True)
    eager = results(model, arguments, compiled=False)
    with_equal, without = captured
    assert with_equal == without
    assert len(ours) == len(apart) == len(eager)
    for a, b, c in zip(ours, apart, eager, strict=True):
        assert torch.equal(a, b)
        if not any(getattr(layer, "drop", 0.0) for layer in model.modules()):
            torch.testing.assert_close(a, c)
    assert counts["parts_unfolded"] == 0
    return counts["parts_traced_once"]


@pytest.mark.parametrize("name", by_default(STACKS, *(name for name in STACKS if name != "rates of their own")))
def test_a_stack_has_the_graph_and_results_of_separate_traces(name: str, captured: list[Any]) -> None:
    torch.manual_seed(0)
    assert check(STACKS[name]().double(), (torch.randn(NODES, WIDTH).double(), edges()), captured) > 0


def test_evaluation_shares_traces_too(captured: list[Any]) -> None:
    torch.manual_seed(0)
    model = Stack(*(Layer(norm=True, drop=0.5) for _ in range(5))).double().eval()
    with torch.no_grad():
        assert check(model, (torch.randn(NODES, WIDTH).double(), edges()), captured) > 0


def test_relations_with_edges_of_their_own_share_a_trace(captured: list[Any]) -> None:
    torch.manual_seed(0)
    indices = [edges(count) for count in (40, 0, 70, 1, 90, 13)]
    assert check(Relations(6).double(), (torch.randn(NODES, WIDTH).double(), *indices), captured) > 0


def test_parts_that_cannot_be_traced_once_are_traced_one_by_one(
    captured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise traced_parts.NotFolded("not these")

    torch.manual_seed(0)
    model, arguments = Stack(*(Layer() for _ in range(5))).double(), (torch.randn(NODES, WIDTH).double(), edges())
    monkeypatch.setattr(traced_parts.Traces, "with_gradients", refuse)
    with counted() as counts:
        ours = results(model, arguments, compiled=True)
    assert counts["parts_unfolded"] == 1
    assert counts["graph_breaks"] == counts["eager_fallbacks"] == 0
    for a, b in zip(ours, results(model, arguments, compiled=False), strict=True):
        torch.testing.assert_close(a, b)


def test_a_deep_model_has_derivatives_of_derivatives() -> None:
    torch.manual_seed(0)
    model, index = Stack(*(Layer() for _ in range(4))).double(), edges()
    x = torch.randn(NODES, WIDTH).double().requires_grad_()

    def penalty(run: Callable[..., Tensor]) -> list[Tensor]:
        (grad,) = torch.autograd.grad(run(x, index).square().sum(), x, create_graph=True)
        return list(torch.autograd.grad(grad.square().sum(), [x, *model.parameters()], allow_unused=True))

    with counted() as counts:
        ours = penalty(graphweave.compile(model))
    assert counts["parts_traced_once"] > 0
    for a, b in zip(ours, penalty(model), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


def test_autocast_is_traced_layer_by_layer(captured: list[Any]) -> None:
    torch.manual_seed(0)
    model, arguments = Stack(*(Layer() for _ in range(5))), (torch.randn(NODES, WIDTH), edges())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check_autocast(model, arguments) == 0


def check_autocast(model: nn.Module, arguments: tuple[Any, ...]) -> float:
    with counted() as counts:
        ours = results(model, arguments, compiled=True)
    for a, b in zip(ours, results(model, arguments, compiled=False), strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)
    return counts["parts_traced_once"]


@pytest.mark.parametrize("function", [lambda a: a, lambda a: 1 - a, lambda a: 1 / (1 - a)])
def test_constants_follow_from_numbers(function: Callable[[float], float]) -> None:
    numbers = [0.3, -0.7, 0.3, 1.7]
    nudged = others(numbers)
    assert [any_other(x) for x in nudged] == [any_other(x) for x in numbers]
    assert nudged[0] == nudged[2] and not set(nudged) & set(numbers)
    ours, theirs = (_multiplied(function(given[1])) for given in (numbers, nudged))
    found = varying_constants(ours, numbers, theirs, nudged)
    assert found is not None
    ((call, constants),) = found.items()
    put(call, constants, [0.3, -0.9, 0.3, 1.7])
    assert call.args[1] == function(-0.9)
    assert varying_constants(ours, numbers, _multiplied(0.123), nudged) is None


def _multiplied(number: float) -> fx.Graph:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.mul, (graph.placeholder("x"), number)))
    return graph
