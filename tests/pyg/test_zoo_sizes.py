"""Every convolution and model of PyG with 0, 1 and 2 edges and few nodes, between branches of the user's on sizes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bench.check import FLOAT_TOLERANCE, no_worse_than_eager, step, worst_error
from bench.steps import Result
from tests.pyg.zoo import DOORS
from tests.pyg.zoo_cases import CASES, build
from tests.pyg.zoo_graphs import EDGES, NODES, Built

pytestmark = pytest.mark.usefixtures("fresh_compiler")

SIZES = ((NODES, EDGES), (NODES, 0), (NODES, 1), (NODES, 2), (2, 2), (1, 1), (1, 0), (NODES, EDGES))
"""(nodes, edges) of the calls of one compiled module, in this order."""
TOLERANCE = 50 * FLOAT_TOLERANCE[torch.float32]
"""A wrong branch causes far larger errors than the few rows of these graphs, however ill-conditioned."""


class Between(nn.Module):
    """A layer between branches on the number of edges and of rows, as users write them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() == 2]
        indices = [t for t in tensors if not t.is_floating_point()]
        scale = 1.0
        for index in indices:
            if index.numel() == 0:
                scale = scale * 2
            elif index.size(1) == 1:
                scale = scale * 3
            elif index.size(1) == index.size(0):
                scale = scale * 5
            scale = scale / max(index.size(1), 1)
        if tensors and len(tensors[0]) == 1:
            scale = scale + 1
        out = self.inner(*args, **kwargs)
        return pytree.tree_map(lambda t: t * scale if isinstance(t, Tensor) and t.is_floating_point() else t, out)


def sized(built: Built, nodes: int, edges: int) -> Built:
    """The case with the first rows of its node and edge tensors; indices are taken modulo the number of nodes."""

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.dim() == 0:
            return value
        if value.dim() == 2 and value.size(1) == EDGES and not value.is_floating_point():
            return (value[:, :edges] % nodes).contiguous()
        rows = {EDGES: edges, NODES: nodes}.get(value.size(0), value.size(0))
        return value[:rows].contiguous()

    args, kwargs = pytree.tree_map(cut, (built.args, dict(built.kwargs)))
    return replace(built, args=args, kwargs=kwargs)


def _run(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: nn.Module) -> Result | Exception:
    try:
        return step(module, args, kwargs, module=owner, counter_based=module is owner)
    except Exception as error:  # sizes at which eager mode raises are left out
        return error


def _in_float64(eager: Between, few: Built) -> Result:
    """The call in float64. A norm over one row or two loses the digits of float32 in eager mode too."""
    wide = copy.deepcopy(eager).double()
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, (few.args, dict(few.kwargs))
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # for tensors that the model creates
    try:
        return step(wide, args, kwargs, module=wide, counter_based=True)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.filterwarnings("default")  # odd models break graphs or fall back, and eager mode warns of 0 rows
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c == "GCNConv" else pytest.mark.zoo) for c in CASES]
)  # fmt: skip
def test_case(case: str, door: str) -> None:
    built = build(case)
    eager, module = Between(built.module), Between(build(case).module)
    compiled, compared = DOORS[door](module), 0
    for nodes, edges in SIZES:
        few = sized(built, nodes, edges)
        want = _run(eager, few.args, few.kwargs, eager)
        if isinstance(want, Exception):
            continue
        got = _run(compiled, few.args, few.kwargs, module)
        label = f"{nodes} nodes, {edges} edges"
        assert isinstance(got, Result), f"{label}: {got}"
        error, where = worst_error(got, want)
        fine = error < TOLERANCE or no_worse_than_eager(got, want, _in_float64(eager, few))
        assert fine, f"{label}: {where}: relative error {error:.3g}"
        compared += 1
        eager.load_state_dict(module.state_dict())  # buffers
    assert compared
