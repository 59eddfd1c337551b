"""Operators on edges inside other people's torch.compile: one registered operator, with gradients in closures."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import graphweave
from graphweave import ops
from graphweave.core.errors import DataError
from graphweave.ops import body
from tests.programs.graphs import EdgeList, zoo
from tests.support import assert_matches, by_default

ZOO = {edges.name: edges for edges in zoo()}
pytestmark = pytest.mark.usefixtures("fresh_compiler")

BACKENDS = by_default(["eager", "aot_eager", "inductor"], "aot_eager")


def index_of(edges: EdgeList) -> Tensor:
    return torch.stack([edges.src, edges.dst])


def features(edges: EdgeList, width: int = 6) -> Tensor:
    return torch.randn(edges.num_src, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Conv(nn.Module):
    """Closes over a module, over a value of the trace, and over two views of one tensor."""

    def __init__(self, attends: bool = False) -> None:
        super().__init__()
        self.attends = attends
        self.lin = nn.Linear(6, 4).double()
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor, index: Any) -> Tensor:
        gate = torch.sigmoid(self.scale) * self.lin.weight
        left, right = x.chunk(2, 1)

        def message(src: Any, dst: Any, edge: Any) -> Tensor:
            return torch.tanh(self.lin(torch.cat([src["l"], dst["r"]], 1))) @ gate

        h: Tensor = ops.spmm(index, message, "mean", src={"l": left}, dst={"r": right})
        if not self.attends:
            return h.sin()
        scores = ops.sddmm(index, "u_dot_v", src=h, dst=x)
        return ops.attend(index, lambda src, dst, edge: edge, "copy_u", src=h, edge=scores).sin()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attends", by_default([False, True], False))
def test_in_the_graph_of_another_compiler(backend: str, attends: bool) -> None:
    """The call is captured whole, serves graphs of all sizes, gives all gradients, and runs our kernels."""
    conv = Conv(attends)
    compiled = torch.compile(conv, backend=backend, dynamic=True, fullgraph=True)
    for name in ("hub_dst", "unsorted", "isolated"):
        assert_matches(compiled, conv, features(ZOO[name]), index_of(ZOO[name]), module=conv, label=name)
    assert graphweave.counters()["kernel_launches"] > 0
    assert graphweave.counters()["fallback_calls"] == 0


def test_a_graph_whose_ends_share_memory() -> None:
    edges = ZOO["hub_dst"]
    index, x = index_of(edges), features(edges)
    compiled = torch.compile(lambda g, x: ops.spmm(g, "copy_u", src=x) * 2, backend="aot_eager", fullgraph=True)
    for graph in (graphweave.graph(index), (index[0], index[1])):
        torch.testing.assert_close(compiled(graph, x), torch.zeros_like(x).index_add(0, edges.dst, x[edges.src]) * 2)


@pytest.mark.parametrize("door", by_default(["ours", "torch"], "torch"))
def test_compiled_for_this_backend_it_is_no_operator(door: str) -> None:
    """It is traced with what surrounds it, through either door."""
    conv, edges = Conv(), ZOO["hub_dst"]
    before = len(body._traced)
    compiled = graphweave.compile(conv) if door == "ours" else torch.compile(conv, backend="graphweave", fullgraph=True)
    assert_matches(compiled, conv, features(edges), index_of(edges), module=conv)
    assert len(body._traced) == before
    assert graphweave.counters()["fallback_calls"] == 0


def test_formats_are_kept_from_call_to_call() -> None:
    edges = ZOO["unsorted"]
    index, x = index_of(edges), features(edges)
    compiled = torch.compile(lambda x: ops.spmm(index, "copy_u", src=x).sin(), backend="aot_eager", fullgraph=True)
    compiled(x)
    before = graphweave.counters()["format_builds"]
    compiled(x)
    assert graphweave.counters()["format_builds"] == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_that_closes_over_numbers_of_the_trace(backend: str) -> None:
    """A float becomes a tensor whose number the body reads; a size is an operand."""
    edges = ZOO["hub_dst"]
    index, x = index_of(edges), features(edges)

    def model(x: Tensor, scale: float) -> Tensor:
        return ops.spmm(index, lambda src, dst, edge: src * scale + x.shape[0], src=x).sin()

    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    for scale in (0.25, 0.75):
        assert_matches(compiled, model, x, scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_around_the_call(backend: str) -> None:
    """The products of the body are of the dtype that they are of in eager mode, where autocast is not in force when
    compiled code runs."""
    edges = ZOO["hub_dst"]
    index, x, w = index_of(edges), features(edges).float(), torch.eye(6) / 3

    def model(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return ops.spmm(index, lambda src, dst, edge: src @ w, "max", src=x)

    leaf, own = x.clone().requires_grad_(), x.clone().requires_grad_()
    want = model(own)
    got = torch.compile(model, backend=backend, fullgraph=True)(leaf)
    assert want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want)
    got.float().sin().sum().backward()
    want.float().sin().sum().backward()
    torch.testing.assert_close(leaf.grad, own.grad, rtol=1e-2, atol=1e-2)


# ---------------------------------------------------------------- the operator itself


class Recorded(TorchDispatchMode):
    """The operators of this package that are called, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "graphweave":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def recorded(function: Callable[..., Tensor], *args: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """The calls in the graph that Dynamo makes of `function`."""
    found = Recorded()

    def backend(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            with found:
                return module(*given)

        return call

    torch.compile(function, backend=backend, dynamic=True, fullgraph=True)(*args)
    return found.calls


CASES: dict[str, Callable[..., Tensor]] = {
    "spmm": lambda g, x, w: ops.spmm(g, lambda src, dst, edge: torch.tanh(src @ w - dst), "mean", src=x, dst=x),
    "sizes": lambda g, x, w: ops.spmm(g, lambda src, dst, edge: src * g.shape[1], "max", src=x, num_dst=x.shape[0] + 1),
    "alias": lambda g, x, w: ops.sddmm(g, lambda src, dst, edge: edge, edge=x.new_ones(g.shape[1], 3) * w[0, 0]),
    "attend": lambda g, x, w: ops.attend(g, "u_dot_v", "copy_u", src=x @ w, dst=x),
}


CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("case", by_default(CASES, "spmm", "alias"))
@pytest.mark.parametrize("checks", by_default([CHECKS, (*CHECKS, "test_aot_dispatch_dynamic")], CHECKS))
def test_opcheck(case: str, checks: tuple[str, ...]) -> None:
    edges = ZOO["bipartite"]
    graph = torch.stack([edges.src % edges.num_dst, edges.dst])
    x = torch.randn(edges.num_dst, 3, dtype=torch.float64)
    w = torch.randn(3, 3, dtype=torch.float64)
    ((operator, (name, tensors, sizes)),) = recorded(CASES[case], graph, x, w)
    assert operator is torch.ops.graphweave.body.default
    for ask in (False, True):
        leaves = [t.detach().clone().requires_grad_(ask and t.is_floating_point()) for t in tensors]
        torch.library.opcheck(operator, (name, leaves, sizes), test_utils=checks)
    wanted = [i for i, t in enumerate(tensors) if t.is_floating_point()]
    out = operator(name, tensors, sizes)
    given = (name, torch.ones_like(out), tensors, sizes, wanted)
    torch.library.opcheck(torch.ops.graphweave.body_backward.default, given, test_utils=checks)


@pytest.mark.slow
def test_the_name_is_a_hash_of_the_text() -> None:
    """The name makes what another process has compiled and cached mean the same here."""
    program = (
        "import torch; from graphweave import ops; from graphweave.ops import body\n"
        "g, x = torch.tensor([[0, 1], [1, 1]]), torch.ones(2, 3)\n"
        "f = lambda g, x, s: ops.spmm(g, lambda src, dst, edge: src * s, src=x)\n"
        "for s in (0.25, 0.5): torch.compile(f, backend='eager', fullgraph=True)(g, x, s)\n"
        "print(*sorted(body._traced))"
    )
    names = [
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2)
    ]
    assert names[0] == names[1]
    assert len(names[0]) == 2


def test_a_name_that_this_process_does_not_know() -> None:
    with pytest.raises(DataError, match=r"name of a graph that this process has traced \(got 'nothing'\)"):
        torch.ops.graphweave.body("nothing", [torch.ones(2)], [])


def test_functions_and_weights_are_not_kept_alive() -> None:
    """A graph that is kept by its name holds code only; eager calls keep neither."""
    edges = ZOO["hub_dst"]
    index, x = index_of(edges), features(edges)

    def used(call: Callable[..., Any]) -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        weight = nn.Parameter(torch.ones(6, dtype=torch.float64))

        def message(src: Tensor, dst: Any, edge: Any) -> Tensor:
            return src * weight

        call(message)
        return weakref.ref(message), weakref.ref(weight)

    def inside(message: Any) -> None:
        torch.compile(lambda x: ops.spmm(index, message, src=x).sin(), backend="aot_eager", fullgraph=True)(x)
        torch._dynamo.reset()

    for call in (lambda message: ops.spmm(index, message, src=x), inside):
        function, weight = used(call)
        gc.collect()
        assert function() is None
        assert weight() is None


def test_gradients_of_gradients_are_refused() -> None:
    edges = ZOO["hub_dst"]
    index, x = index_of(edges), features(edges).requires_grad_()
    compiled = torch.compile(lambda x: ops.spmm(index, "u_mul_v", src=x, dst=x), backend="eager", fullgraph=True)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="body_backward"):
        gradient.sum().backward()


def test_a_function_of_two_values_breaks_the_graph() -> None:
    edges = ZOO["hub_dst"]
    index, x = index_of(edges), features(edges)

    def model(x: Tensor) -> Tensor:
        return ops.spmm(index, "copy_u", (torch.maximum, 0.0), src=x.sin()).cos()

    want = ops.spmm(index, "copy_u", "max", src=x.sin()).cos()
    for compiled in (torch.compile(model, backend="aot_eager"), graphweave.compile(model)):
        torch.testing.assert_close(compiled(x), want)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="its number of rounds is data"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(x)
