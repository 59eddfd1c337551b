"""Nothing that belongs to a compiled model runs eagerly without a word: methods, transforms, graph breaks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from tests.support import features, random_graph

EDGES = random_graph(6, 6, 20)


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphweave.core.log._warned", set())


def counts() -> tuple[int, int, int]:
    now = graphweave.counters()
    return now["compilations"], now["graph_breaks"], now["eager_fallbacks"]


def layer() -> nn.Module:
    torch.manual_seed(0)
    return pyg.SAGEConv(4, 5)


def test_a_method_of_a_compiled_module_says_once_that_it_runs_eagerly(fresh_compiler: None) -> None:
    model = pyg.GAE(layer())
    compiled, x = graphweave.compile(model), features(6, 4)
    with pytest.warns(UserWarning, match=r"encode of a compiled GAE runs eagerly.*weave\.compile\(model\.encode\)"):
        z = compiled.encode(x, EDGES)
    torch.testing.assert_close(z, model.encode(x, EDGES))
    compiled.encode(x, EDGES)  # warnings are errors
    assert counts() == (0, 0, 2)
    compiled.reset_parameters()  # takes no tensors
    assert counts() == (0, 0, 2)


def test_a_method_can_be_compiled(fresh_compiler: None) -> None:
    model = pyg.GAE(layer())
    compiled, x = graphweave.compile(model), features(6, 4)
    for encode in (graphweave.compile(model.encode), graphweave.compile(compiled.encode)):
        graphweave.reset_counters()
        for n in (6, 9):
            x, edges = features(n, 4).requires_grad_(), random_graph(n, n, 3 * n)
            got, want = encode(x, edges), model.encode(x, edges)
            torch.testing.assert_close(got, want)
            leaves = [x, *model.parameters()]
            grads = [torch.autograd.grad((z * z.detach().cos()).sum(), leaves) for z in (got, want)]
            torch.testing.assert_close(*grads)
        assert counts() == (1, 0, 0)


@pytest.mark.parametrize("transform", ["grad", "jacrev", "vmap"])
def test_transforms_of_a_compiled_model_say_that_they_run_eagerly(transform: str, fresh_compiler: None) -> None:
    model = layer()
    compiled, x = graphweave.compile(model), features(6, 4)
    f: Callable[[Callable[..., Any]], Tensor] = {
        "grad": lambda m: torch.func.grad(lambda x: m(x, EDGES).sin().sum())(x),
        "jacrev": lambda m: torch.func.jacrev(lambda x: m(x, EDGES))(x),
        "vmap": lambda m: torch.func.vmap(lambda x: m(x, EDGES))(torch.stack([x, x.sin()])),
    }[transform]
    with pytest.warns(UserWarning, match=r"SAGEConv runs eagerly inside of a transform of torch\.func"):
        got = f(compiled)
    torch.testing.assert_close(got, f(model))
    now = counts()
    assert now[:2] == (0, 0)
    assert now[2] >= 1


def test_a_transformed_function_is_compiled(fresh_compiler: None) -> None:
    model, x = layer(), features(6, 4)
    gradient = torch.func.grad(lambda x: model(x, EDGES).sin().sum())
    torch.testing.assert_close(graphweave.compile(gradient)(x), gradient(x))
    assert counts() == (1, 0, 0)


def test_functional_call_of_a_compiled_model_is_compiled(fresh_compiler: None) -> None:
    model, x = layer(), features(6, 4)
    other = {name: p.detach().sin().requires_grad_() for name, p in model.named_parameters()}
    got, want = (torch.func.functional_call(m, other, (x, EDGES)) for m in (graphweave.compile(model), model))
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad(y.sin().sum(), list(other.values())) for y in (got, want)]
    torch.testing.assert_close(*grads)
    now = graphweave.counters()
    assert counts() == (1, 0, 0)
    assert now["kernel_launches"] > 0


@pytest.mark.parametrize("kind", ["module", "function"])
@pytest.mark.parametrize("outer", ["aot_eager", "graphweave", "graphweave.compile"])
def test_a_compiled_model_is_part_of_what_is_compiled_around_it(outer: str, kind: str, fresh_compiler: None) -> None:
    model = layer()
    compiled = graphweave.compile(model if kind == "module" else lambda x, edges: model(x, edges))
    f = lambda x: compiled(x.sin(), EDGES).cos()  # noqa: E731
    g = graphweave.compile(f) if "." in outer else torch.compile(f, backend=outer, fullgraph=True, dynamic=True)
    x = features(6, 4)
    torch.testing.assert_close(g(x), model(x.sin(), EDGES).cos())
    assert counts() == (outer != "aot_eager", 0, 0)


def test_a_break_on_a_size_that_data_decides_is_counted(fresh_compiler: None) -> None:
    """PyTorch counts no such break."""

    def f(x: Tensor) -> Tensor:
        chosen = x[x[:, 0] > 0]
        return chosen.sin() if chosen.numel() == 0 else chosen.cos()

    x = features(6, 4)
    torch.testing.assert_close(graphweave.compile(f)(x), f(x))
    assert graphweave.counters()["graph_breaks"] >= 1


def test_a_disabled_function_is_a_break_that_is_counted(fresh_compiler: None) -> None:
    aside = torch._dynamo.disable(lambda x: x + 1)

    def f(x: Tensor) -> Tensor:
        return aside(x.sin()).cos()

    x = features(6, 4)
    torch.testing.assert_close(graphweave.compile(f)(x), f(x))
    assert graphweave.counters()["graph_breaks"] >= 1


def test_the_plain_door_says_of_sparse_tensors_what_takes_them(fresh_compiler: None) -> None:
    torch._dynamo.utils.counters.clear()
    model, x = layer(), features(6, 4)
    a = torch.eye(6).to_sparse_csr()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compiled = torch.compile(model, backend="graphweave")
        for _ in range(2):
            torch.testing.assert_close(compiled(x, a), model(x, a))
    about = [str(w.message) for w in said if "a torch.sparse tensor breaks graphs" in str(w.message)]
    assert len(about) == 1
    assert "graphweave.compile(model)" in about[0]
