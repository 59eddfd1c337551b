"""Gradients of parts of a tensor are put one after the other: equal to eager mode through both doors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.captures import capture, check
from tests.layout_support import DOORS, compare
from tests.support import by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Layer = Callable[[Tensor, Tensor], Tensor]


def aggregated(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]].sin())


def spans(x: Tensor, edge_index: Tensor) -> Tensor:
    """A readout of graphs one after the other, with rows behind the last."""
    h = aggregated(x, edge_index)
    return torch.stack([h.narrow(0, start, 2).exp().mean(0) for start in range(0, 6, 2)])


def spans_with_gaps(x: Tensor, edge_index: Tensor) -> Tensor:
    h = aggregated(x, edge_index)
    return h[1:3].exp().sum(0) + h[4:6].sin().sum(0) * h[0]


def windows(x: Tensor, edge_index: Tensor) -> Tensor:
    """Parts that overlap."""
    h = aggregated(x, edge_index).exp()
    return sum((h[:, k : k + 3].sin() * (k + 1) for k in range(4)), torch.zeros_like(h[:, :3]))


def steps(x: Tensor, edge_index: Tensor) -> Tensor:
    h = aggregated(x, edge_index).view(-1, 3, 2)
    state = torch.zeros_like(h[:, 0])
    for t in range(3):
        state = torch.tanh(h[:, t] + state)
    return state * h[:, -1]


def halves(x: Tensor, edge_index: Tensor) -> Tensor:
    """Bounds that are sizes: the rows of `x` and those behind them."""
    n = x.shape[0]
    both = torch.cat([x, x.sin()]).tanh() * 2
    return aggregated(both[:n], edge_index) * both[n:] * both[:n].exp()


def one_item(x: Tensor, edge_index: Tensor) -> Tensor:
    """The part is all of the tensor."""
    return aggregated(x.unsqueeze(1).tanh()[:, 0], edge_index)


LAYERS: dict[str, Layer] = {f.__name__: f for f in (spans, spans_with_gaps, windows, steps, halves, one_item)}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", by_default(LAYERS, "spans"))
def test_values_and_gradients(name: str, door: str) -> None:
    sizes = (9, 6, 11)
    inputs = [(features(n, 6, torch.float64, seed=n), random_graph(n, n, 2 * n - 12)) for n in sizes]
    compare(LAYERS[name], inputs, door)


@pytest.mark.parametrize("name", by_default(["steps", "halves", "one_item"], "halves"))
def test_no_rows_and_few(name: str) -> None:
    inputs = [(features(n, 6, torch.float64), random_graph(n, n, edges)) for n, edges in ((0, 0), (1, 2), (2, 1))]
    compare(LAYERS[name], inputs, "graphweave.compile")


@pytest.mark.parametrize("name", LAYERS)
def test_no_part_is_padded_to_the_whole(name: str) -> None:
    (captured,) = capture(LAYERS[name], features(9, 6, torch.float64).requires_grad_(), random_graph(9, 9, 20))
    check(captured)
    left = [t for t in captured.targets() if "_backward" in t]
    assert len(left) <= (1 if name == "windows" else 0), left
