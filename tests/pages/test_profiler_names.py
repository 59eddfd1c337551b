"""Names of kernels in PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor
from torch.profiler import profile

import graphweave
from graphweave.execute.cpp_stretch import kernel_by_kernel
from graphweave.execute.python_runner import PythonRunner
from graphweave.execute.watched import watching
from tests.support import features


def attention(x: Tensor, w: Tensor, a: Tensor, edge_index: Tensor) -> Tensor:
    """A softmax over the edges of each node, and a sum of messages."""
    src, dst = edge_index
    h = x @ w
    z = torch.tanh((h[src] * a).sum(1) + (h[dst] * a).sum(1)).exp()
    total = torch.zeros(x.size(0)).index_add(0, dst, z)
    return torch.zeros_like(h).index_add(0, dst, h[src] * (z / (total[dst] + 1)).unsqueeze(1))


def arguments() -> tuple[Tensor, ...]:
    edge_index = torch.randint(60, (2, 500), generator=torch.Generator().manual_seed(3))
    leaves = features(60, 8), features(8, 4), features(1, 4)
    return (*(t.requires_grad_() for t in leaves), edge_index)


def names_of_a_step(step: Callable[..., Tensor]) -> list[str]:
    """The names that the profiler gives to kernels and calls of compiled code in a warm step."""
    given = arguments()
    step(*given).sum().backward()
    with profile() as profiled:
        step(*given).sum().backward()
    prefix = "graphweave::"
    return [e.name.removeprefix(prefix) for e in profiled.events() if e.name.startswith(prefix)]


def kernels_of(names: list[str]) -> list[str]:
    """The names of kernels without the graph, of which every compilation has a new one."""
    found = [name.partition(".") for name in names]
    assert len({graph for graph, _, _ in found}) == 1
    return [kernel for _, _, kernel in found if kernel.startswith(("forward_", "backward_"))]


@pytest.mark.parametrize("each_apart", [False, True], ids=["native", "apart"])
def test_a_profile_of_a_step_has_the_names_of_kernels_that_explain_prints(*, each_apart: bool) -> None:
    explained = graphweave.explain(attention, *arguments())
    notes = [k for g in explained.graphs for k in g.kernels]
    with kernel_by_kernel() if each_apart else nullcontext():
        names = names_of_a_step(graphweave.compile(attention))
    assert kernels_of(names) == [k.name for k in notes]
    assert [k.label.partition(".")[2] for k in notes] == [k.name for k in notes]
    assert len(names) > len(kernels_of(names))  # calls that are left to PyTorch have names, too


def test_results_under_a_profiler_are_those_without() -> None:
    compiled, results = graphweave.compile(attention), []
    for on in (False, True):
        given = arguments()
        with profile() if on else nullcontext():
            out = compiled(*given)
            out.sum().backward()
        results.append([out.detach(), *(t.grad for t in given[:3])])
    assert all(map(torch.equal, *results))


def test_steps_that_nobody_watches_follow_the_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(self: PythonRunner) -> str:
        raise AssertionError("the text for a watcher is made only for a watcher")

    monkeypatch.setattr(PythonRunner, "watched_text", property(watched))
    compiled, given = graphweave.compile(attention), arguments()
    for _ in range(2):
        compiled(*given).sum().backward()
    with pytest.raises(AssertionError, match="only for a watcher"), watching(nullcontext):
        compiled(*given)


def test_kernels_of_a_prelude_are_watched_when_a_graph_is_new() -> None:
    seen: list[str] = []

    @contextmanager
    def around(name: str) -> Iterator[None]:
        seen.append(name)
        yield

    compiled, given = graphweave.compile(attention), arguments()
    with watching(around):
        compiled(*given)
        first, seen[:] = list(seen), []
        compiled(*given)
    prelude = [name for name in first if "_forward." in name]
    assert sum(".prelude_" in name for name in prelude) == 1
    assert [name for name in first if name not in prelude] == seen
