"""Seeded graphs, the awkward zoo, and comparisons of a compiled model with eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.check import FLOAT_TOLERANCE, error_against, step, worst_error
from bench.steps import Result
from graphweave.core.types import DType
from graphweave.runtime.toolchain import run_compiler, toolchain
from tests import margins


def random_graph(num_src: int, num_dst: int, num_edges: int, seed: int = 0) -> Tensor:
    """Edge index [2, num_edges] of random edges, int64; duplicates and self-loops happen."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(max(num_src, 1), (num_edges,), generator=generator)
    dst = torch.randint(max(num_dst, 1), (num_edges,), generator=generator)
    return torch.stack([src, dst])


def features(rows: int, width: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    """Signed values of size about 1, [rows, width]."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_default(every: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of a test: those of `kept` run by default, the rest with the slow tests."""
    every = list(every)
    missing = [value for value in kept if value not in every]
    assert kept and not missing, f"expected values of {every} (got {missing})"
    return [pytest.param(value, marks=() if value in kept else pytest.mark.slow) for value in every]


@dataclass(frozen=True, slots=True)
class Graph:
    """One member of the awkward zoo: `edge_index` [2, E] over `num_nodes` rows."""

    name: str
    num_nodes: int
    edge_index: Tensor


def awkward_graphs() -> Iterator[Graph]:
    """No edges, one edge, one node, isolated nodes, self-loops, duplicates, a hub; unsorted and sorted."""
    yield Graph("one_node_no_edges", 1, torch.zeros(2, 0, dtype=torch.int64))
    yield Graph("one_node_self_loop", 1, torch.zeros(2, 1, dtype=torch.int64))
    yield Graph("no_edges", 5, torch.zeros(2, 0, dtype=torch.int64))
    yield Graph("one_edge", 4, torch.tensor([[2], [0]]))
    yield Graph("isolated", 12, random_graph(6, 6, 20, seed=3))
    yield Graph("self_loops", 6, torch.cat([torch.arange(6).expand(2, 6), random_graph(6, 6, 8, seed=4)], 1))
    yield Graph("duplicates", 7, random_graph(7, 7, 9, seed=5).repeat(1, 3))
    hub = random_graph(16, 16, 40, seed=6)
    hub[1, ::2] = 3
    yield Graph("hub", 16, hub)
    unsorted = random_graph(11, 11, 37, seed=7)
    yield Graph("unsorted", 11, unsorted)
    yield Graph("sorted", 11, unsorted[:, torch.argsort(unsorted[1], stable=True)])


AWKWARD = tuple(awkward_graphs())

SEVERAL = tuple(graph for graph in AWKWARD if graph.num_nodes > 1 and graph.edge_index.size(1) != 1)
"""Awkward graphs that share two compilations. Graphs with a single node or edge need code of their own."""

several_or_all = pytest.mark.parametrize(
    "graphs", [pytest.param(SEVERAL, id="several"), pytest.param(AWKWARD, id="all", marks=pytest.mark.slow)]
)


def assert_matches(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    *args: Any,
    module: nn.Module | None = None,
    compiled_module: nn.Module | None = None,
    label: str = "",
    backward: bool = True,
    seed: int = 7,
    tolerance: float | None = None,
) -> None:
    """Outputs and every gradient of `compiled` equal those of `eager` within the tolerance (of the dtype if None).

    `module` owns the eager parameters; `compiled_module` those the compiled side trains (the same module if None).
    """
    want = step(eager, args, module=module, seed=seed, backward=backward, counter_based=True)
    owner = compiled_module if compiled_module is not None else module
    got = step(compiled, args, module=owner, seed=seed, backward=backward)
    error, where = worst_error(got, want)
    if tolerance is None:
        double = any(value.dtype == torch.float64 for value in want.outputs)
        tolerance = FLOAT_TOLERANCE[torch.float64 if double else torch.float32]
    margins.note(error / tolerance)
    assert error < tolerance, f"{label} {where}: relative error {error:.3g}, allowed {tolerance:g}"


def assert_as_exact_as_eager(compiled: Callable[..., Any], layer: nn.Module, *args: Tensor, label: str = "") -> None:
    """Outputs and gradients of a float32 `layer`: errors against float64 are within float32's tolerance or 4 times
    eager's own.

    For what holds rounding noise only, so that two right results differ by as much: a gradient that is zero in exact
    arithmetic, being a sum of terms that cancel.
    """
    wide = copy.deepcopy(layer).double()
    exact = _step_exactly(wide, wide, [a.double() if a.is_floating_point() else a for a in args])
    ours = error_against(_step_exactly(compiled, layer, args), exact)
    eager = error_against(_step_exactly(layer, layer, args), exact)
    allowed = max(FLOAT_TOLERANCE[torch.float32], 4 * eager)
    margins.note(ours / allowed)
    assert ours < allowed, f"{label}: relative error {ours:.3g} against float64, eager's own {eager:.3g}"


def _step_exactly(fn: Callable[..., Any], module: nn.Module, args: Iterable[Tensor]) -> Result:
    """Runs one step with a cotangent that float32 and float64 both represent."""
    leaves = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    module.zero_grad(set_to_none=True)
    out = fn(*leaves)
    noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(8))
    out.backward(noise.to(out.dtype))
    grads = {name: p.grad for name, p in module.named_parameters()}
    grads.update((f"input[{i}]", leaf.grad) for i, leaf in enumerate(leaves) if leaf.requires_grad)
    return Result((out.detach(),), {name: None if g is None else g.clone() for name, g in grads.items()})


@lru_cache
def _float16() -> bool:
    tools = toolchain()
    command = (*tools.command, *tools.flags, "-fsyntax-only", "-x", "c++", "-")
    return run_compiler(command, "_Float16 one(float x) { return x; }").returncode == 0


def needs_float16(dtype: object = torch.float16) -> None:
    """Skips a test of float16 where the C++ compiler in force cannot store it (before GCC 12 and clang 15)."""
    if str(dtype) in (str(torch.float16), str(DType.f16)) and not _float16():
        pytest.skip("the C++ compiler has no _Float16")


@contextmanager
def threads(n: int) -> Iterator[None]:
    """PyTorch and kernels run on `n` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
