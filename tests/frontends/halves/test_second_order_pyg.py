"""Gradients of gradients of PyG's layers, compiled: `gradgradcheck` in float64.

The graph has a self-loop, an edge that is listed twice, and nodes without edges.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import graphweave
from tests.frontends.halves.second_order import assert_second_derivatives, smoothed
from tests.pyg.zoo_cases import build
from tests.pyg.zoo_convs import CONVS
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

LEFT_OUT = {
    "WLConv": "its features are integers",
    "SimpleConv-powermean": "the power of a row without edges, 0 ** p, has no derivative by p",
    "GATConv-dropout": "each call draws another mask",
    "APPNP-dropout": "each call draws another mask",
    "GPSConv": "PyTorch's fused attention has no second derivative",
    "GPSConv-alone": "PyTorch's fused attention has no second derivative",
}
"""Cases of the zoo that cannot be checked, and why."""

AGAINST_EAGER_ALONE = {
    "GENConv-power": "the power of a row without edges, 0 ** (1 / p), has no derivative by p",
    "GCN2Conv-theta": "of the weights of two self-loops of a node PyG reads one, and gives both the gradient",
}
"""Cases in which eager mode's own derivatives are no limits of differences, and why."""

WITHOUT_LOOPS = {"PPFConv"}
"""Cases with angles between the ends of an edge, which have no derivative where the ends are one point."""


@pytest.fixture(autouse=True)
def _of_float64() -> object:
    """Some layers make tensors of the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", by_default([name for name in CONVS if name not in LEFT_OUT], "CGConv"))
def test_layers_of_pyg(name: str) -> None:
    built = build(name)
    layer = smoothed(built.module.double())
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: t.double().requires_grad_() if t.is_floating_point() else t, (built.args, dict(built.kwargs))
    )
    if name in WITHOUT_LOOPS:
        args = tuple(a if a.is_floating_point() else a[:, a[0] != a[1]] for a in args)
        layer.add_self_loops = False
    leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
    leaves += layer.parameters()
    compiled = graphweave.compile(layer)
    assert_second_derivatives(
        lambda: compiled(*args, **kwargs), lambda: layer(*args, **kwargs), leaves, name,
        differences=name not in AGAINST_EAGER_ALONE,
    )  # fmt: skip
    assert graphweave.counters()["eager_fallbacks"] == 0
