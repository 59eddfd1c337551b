"""`graphweave.export` of PyG's layers: which leave Python, with which numbers, and what keeps the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import graphweave as gw
from bench.first_call_cases import ZOO, build
from graphweave.core.errors import ExportError
from graphweave.core.sizes import read
from graphweave.exporting.capture import WholeModel, capture_whole
from graphweave.exporting.forms import executable_of

KEPT_BY = {
    "SimpleConv-median": "aten.bincount",
    "SAGEConv-lstm": "only PyTorch computes|one graph",
    "models.GraphUNet": "sparse_product",
    "models.LPFormer": "expected a dense tensor on the CPU .got a torch.sparse",
    **dict.fromkeys(("WLConv", "models.GPSE", "models.GraphMixer-link", "models.GroupAddRev"), "one graph"),
}
"""The layers that stay in Python, each with a part of the error."""
ROUNDED = (
    "GPSConv", "GPSConv-alone", "HEATConv-mean", "RGATConv-within", "models.DeepGraphInfomax",
    "models.LabelPropagation", "models.SGFormer",
)  # fmt: skip
"""Layers with a call between kernels that PyTorch adds up in another order."""
USUAL = ("GCNConv-weight",)
"""Run by default."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.zoo) for n in ZOO])
def test_a_layer_leaves_python_or_says_what_keeps_it(name: str, tmp_path: Path) -> None:
    case = build(f"zoo:{name}")
    module = case.module.eval()
    args, keywords = case.arguments, {} if case.arguments else case.keywords
    given = args or keywords
    if name in KEPT_BY:
        with pytest.raises(ExportError, match=KEPT_BY[name]):
            gw.export(module, given, tmp_path / "model")
        return
    library = gw.export(module, given, tmp_path / "model").load()
    got = library(*_tensors(given))
    whole = capture_whole(module, args, keywords)
    for one, same in zip(got, _in_process(whole), strict=True):
        if name not in ROUNDED:
            assert torch.equal(one, same), "a library has the bits of the same program in this process"
    with torch.no_grad():
        want = _tensors(module(*args, **keywords))
    for one, expected in zip(got, want, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


def _in_process(whole: WholeModel) -> list[Tensor]:
    """The results of the exported program on its example, by Python."""
    tensors = {a.placeholder: a.example for a in (*whole.inputs, *whole.weights)}
    sizes = {s: n for a in whole.inputs for s, n in zip(a.sizes, a.example.shape, strict=True)}
    taken: list[Any] = []
    for node in whole.captured.module.graph.find_nodes(op="placeholder"):
        if node.name in tensors:
            taken.append(tensors[node.name].detach())
        else:
            size = read(str(node.meta["val"].node.expr))
            size = whole.known_as.get(size, size)
            taken.append(size if isinstance(size, int) else sizes[size])
    made = executable_of(whole)(taken)
    return [made[at] for _, _, at in whole.results]


def _tensors(values: Sequence[Any] | Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]
