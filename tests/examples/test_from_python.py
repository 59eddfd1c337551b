"""Trainings and models of `graphweave.examples` from a program: widths, heads, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphweave.core.errors import DataError
from graphweave.data import GraphSet, NodeData, TypedNodeData, families, rmat
from graphweave.examples.nodes import NodeTraining
from graphweave.examples.sampled_nodes import SampledTraining
from graphweave.examples.tasks import Data, start
from graphweave.examples.training import Links, TrainingJob
from graphweave.examples.triples import TripleTraining
from graphweave.examples.typed_nodes import TypedNodeTraining


def nodes(count: int = 40) -> NodeData:
    y, part = torch.arange(count) % 2, torch.arange(count) % 4
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(0)) + y.unsqueeze(1)
    return NodeData(x, rmat(count, 160), y, part < 2, part == 2, part == 3, 2, "made")


def typed(count: int = 20) -> TypedNodeData:
    data = nodes(count)
    etype = torch.arange(data.edge_index.size(1)) % 3
    return TypedNodeData(
        (count,), (data.x,), data.edge_index, etype, 3, data.y, data.train_mask,
        data.val_mask, data.test_mask, 2, "typed",
    )  # fmt: skip


def test_a_training_learns_and_its_defaults_are_those_of_the_command_line() -> None:
    training = NodeTraining("eager", TrainingJob("sage"), nodes())
    for _ in range(30):
        training.epoch()
    assert training.history.loss[-1] < 0.3 * training.history.loss[0]
    assert training.test().keys() == training.baseline().keys() == {"test accuracy"}


def test_batches_of_seeds_have_a_default_size() -> None:
    training = SampledTraining("eager", TrainingJob("gcn", hidden=8), nodes())
    assert training.size == 512 and training.steps == 1 and training.step() > 0


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_an_rgcn_has_any_width(heads: int) -> None:
    """It has no heads, so their number is not one of its options."""
    job = TrainingJob("rgcn", hidden=10, heads=heads, links=Links(batch=16))
    assert TypedNodeTraining("eager", job, typed()).step() > 0
    assert TripleTraining("eager", job, families(count=1, seed=1)).step() > 0


def one_graph() -> GraphSet:
    data, every = nodes(8), torch.tensor([True])
    return GraphSet(data.x, data.edge_index, torch.tensor([0, 8]), torch.tensor([0]), every, every, every, 2, "graphs")


@pytest.mark.parametrize(
    ("make", "model"),
    [(nodes, "gat"), (nodes, "gatv2"), (one_graph, "gat"), (one_graph, "gatv2"), (typed, "rgat"), (typed, "hgt")],
)
def test_heads_that_do_not_divide_the_width_are_refused(make: Callable[[], Data], model: str) -> None:
    with pytest.raises(DataError, match=rf"hidden must be a multiple of heads for {model} \(got 10 and 4\)"):
        start("eager", TrainingJob(model, hidden=10, heads=4), make())
