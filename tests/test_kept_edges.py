"""Values of edges that kernels store, since one kernel after the other would compute them again."""

from __future__ import annotations

import pytest
import torch
from layout_support import DOORS, compare
from support import by_default, features, random_graph
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from tests.captures import capture

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def sinkhorn(x: Tensor, edge_index: Tensor, rounds: int = 6) -> Tensor:
    """Scores of edges, normalised by source and by destination in turns."""
    src, dst = edge_index
    w = (x[src] * x[dst]).sum(-1).tanh().exp()
    for at in (src, dst) * rounds:
        w = w / (w.new_zeros(x.shape[0]).index_add(0, at, w)[at] + 0.1)
    return torch.zeros_like(x).index_add(0, dst, w[:, None] * x[src])


def attention(x: Tensor, edge_index: Tensor) -> Tensor:
    src, dst = edge_index
    w = (x[src] * x[dst]).sum(-1).exp()
    w = w / w.new_zeros(x.shape[0]).index_add(0, dst, w)[dst]
    return torch.zeros_like(x).index_add(0, dst, w[:, None] * x[src])


def kept_in(layer: object) -> list[ir.Node]:
    (captured,) = capture(layer, features(7, 8, torch.float64).requires_grad_(), random_graph(7, 7, 20))  # type: ignore[arg-type]
    program = captured.imported.program
    kept = Facts(program).stored_rows
    assert all(isinstance(t := program.types[r], ir.Type) and t.space != UNIT and t.shape == () for r in kept)
    return [program.nodes[r] for r in kept]


def test_scores_of_many_rounds_are_kept_and_those_of_attention_are_not() -> None:
    assert kept_in(sinkhorn) and not kept_in(attention)


@pytest.mark.parametrize("door", by_default(DOORS, "torch.compile"))
def test_values_and_gradients(door: str) -> None:
    sizes = ((7, 20), (5, 3), (3, 9))
    compare(sinkhorn, [(features(n, 8, torch.float64, seed=n), random_graph(n, n, e)) for n, e in sizes], door)


def test_no_edges_and_few() -> None:
    sizes = ((1, 0), (1, 1), (2, 2), (0, 0))
    compare(sinkhorn, [(features(n, 8, torch.float64), random_graph(n, n, e)) for n, e in sizes], "graphweave.compile")
