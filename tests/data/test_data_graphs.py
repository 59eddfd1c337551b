"""Real graphs from files that are not shipped: forward and gradients of 2-layer models equal eager."""

from __future__ import annotations

import pytest
import torch

import graphweave
from bench.graphs import data_dir, load, missing
from bench.workloads import MODELS
from tests.support import assert_matches

pytestmark = [pytest.mark.data, pytest.mark.usefixtures("fresh_compiler")]


@pytest.mark.parametrize(
    ("graph", "model"),
    [
        ("cora-features", "gcn"),
        pytest.param("pubmed", "gat", marks=pytest.mark.slow),
        pytest.param("cora-features", "gat", marks=pytest.mark.slow),
        pytest.param("pubmed", "gcn", marks=pytest.mark.slow),
    ],
)
def test_two_layers_on(graph: str, model: str) -> None:
    reason = missing(graph, data_dir())
    if reason:
        pytest.skip(reason)
    work = load(graph, data_dir())
    torch.manual_seed(0)
    network = MODELS[model].make(work.x.size(1))
    assert_matches(graphweave.compile(network), network, work.x, work.edge_index, module=network)
