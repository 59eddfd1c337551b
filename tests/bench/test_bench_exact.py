"""Tests of references in float64: sums and inner products in pieces, and relational layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench import relational_graphs
from bench.exact_sums import dot_in_pieces, weighted_sum
from bench.relational_models import LAYERS, MODELS, WithLoss, inputs, weights
from bench.relational_reference import reference


def test_sums_and_inner_products_in_pieces_have_all_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.exact_sums.PIECE", 4)
    drawn = torch.Generator().manual_seed(3)
    index = torch.randint(0, 3, (2, 11), generator=drawn)  # node 3 has no edge, and edges occur twice
    x, y = (torch.randn(4, 5, dtype=torch.float64, generator=drawn, requires_grad=True) for _ in range(2))
    weight = torch.randn(11, dtype=torch.float64, generator=drawn, requires_grad=True)

    def total(x: Tensor, weight: Tensor) -> Tensor:
        return weighted_sum(x, index, weight, 6)

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return dot_in_pieces(x, y, index)

    src, dst = index
    torch.testing.assert_close(total(x, weight), x.new_zeros(6, 5).index_add(0, dst, x[src] * weight[:, None]))
    torch.testing.assert_close(inner(x, y), (x[src] * y[dst]).sum(1))
    assert torch.autograd.gradcheck(total, (x, weight))
    assert torch.autograd.gradcheck(total, (x, weight.detach()))
    assert torch.autograd.gradcheck(inner, (x, y))


@pytest.mark.parametrize("model", MODELS)
def test_the_reference_of_relational_layers_is_their_text_in_float64(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.exact_sums.PIECE", 50)
    case = relational_graphs.make("tiny", Path())
    values = weights(model, case.num_relations, case.num_node_types)
    layer = LAYERS[model](values).double()
    given = [one.double() if one.is_floating_point() else one for one in inputs(model, case)]
    loss = WithLoss(layer)(case.y, *given)
    loss.backward()
    want = {name: parameter.grad for name, parameter in layer.named_parameters()}
    got = reference(model, case, values)
    torch.testing.assert_close(got.pop("out"), layer(*given).detach(), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(got.pop("loss"), loss.detach(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-13)
