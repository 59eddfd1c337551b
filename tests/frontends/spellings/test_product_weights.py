"""Products of rows in several dims with shared matrices, and `vmap` over weights: factors of a product of spaces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.ir.message.nodes import Aten, MatMul
from tests.captures import capture, check
from tests.frontends.spellings.test_product_rows import step
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

F = 4
DOORS: dict[str, Any] = {
    "compile": graphweave.compile,
    "backend": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
through_doors = pytest.mark.parametrize("door", by_default(DOORS, "compile"))


def one_matrix(x: Tensor, w: Tensor) -> Tensor:
    """Heads in front of nodes, times a matrix that is repeated for all of them, and a product of each graph."""
    heads = x.unflatten(2, (2, -1)).transpose(1, 2)
    h = torch.tanh(heads @ w.expand(x.shape[0], 2, -1, -1)) + 1
    return torch.sigmoid((h.mT @ heads).sin() * 2)


def test_a_matrix_that_is_repeated_for_a_batch_multiplies_all_rows_at_once() -> None:
    """It is one typed product, forward and for the gradient of rows, and what lies around it is part of kernels."""
    x, w = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((3, 7, 4), (2, 5)))
    torch._dynamo.mark_static(x, 2)
    torch._dynamo.mark_static(w)
    (captured,) = capture(one_matrix, x, w)
    check(captured)
    assert sum(isinstance(n, MatMul) for n in captured.imported.program.nodes) == 2
    assert not any(isinstance(n, Aten) and "tanh" in n.target for n in captured.imported.program.nodes)
    # the product of each graph, its two gradients, and that of the repeated matrix
    assert captured.targets().count("aten.bmm.default") == 4


@through_doors
def test_products_of_heads_at_all_sizes(door: str) -> None:
    compiled = DOORS[door](one_matrix)
    graphweave.reset_counters()
    for sizes in ((3, 7), (2, 5), (5, 5), (1, 4), (2, 2)):
        args = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((*sizes, 4), (2, 5))]
        torch.testing.assert_close(step(compiled, args), step(one_matrix, args))
    assert graphweave.counters()["eager_fallbacks"] == 0


def ensemble(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """A layer with weights for each member of an ensemble, on a signal that all have or each its own."""

    def member(x: Tensor, w: Tensor) -> Tensor:
        h = x @ w
        return torch.zeros_like(h).index_add(0, dst, torch.tanh(h[src]))

    return torch.vmap(member, in_dims=(0 if x.dim() == 3 else None, 0))(x, w)


@through_doors
@pytest.mark.parametrize("own", [False, True], ids=["weights", "weights and signals"])
def test_members_of_an_ensemble_are_a_factor_of_rows(own: bool, door: str) -> None:
    """As many members as nodes, as edges, and as features are no reason to confuse them."""
    compiled = DOORS[door](ensemble)
    graphweave.reset_counters()
    for members, nodes, edges in ((3, 7, 19), (2, 5, 11), (5, 5, 5), (F, F, F), (2, 2, 9)):
        x = torch.randn((members, nodes, F) if own else (nodes, F), dtype=torch.float64).requires_grad_()
        w = torch.randn(members, F, F, dtype=torch.float64).requires_grad_()
        args = [x, w, *torch.randint(nodes, (2, edges))]
        torch.testing.assert_close(step(compiled, args), step(ensemble, args))
    counted = graphweave.counters()
    assert counted["eager_fallbacks"] == 0
    assert counted["kernel_launches"] > 0


def test_a_number_that_is_written_to_single_elements_is_chosen_for_each() -> None:
    """As SGFormer replaces zeros. The gradient of the elements that are written is zero."""

    def f(x: Tensor, src: Tensor) -> Tensor:
        h = x * 2
        h[h < 0] = 0.5
        return torch.tanh(h)[src]

    x = torch.randn(6, F, dtype=torch.float64).requires_grad_()
    (captured,) = capture(f, x, torch.randint(6, (9,)))
    check(captured)
    assert captured.targets() == []
