"""The model of cost: its bytes are those of rows that are exchanged, its halo sizes those of random parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data import rmat
from graphweave.distributed.cost import (
    Cluster,
    Model,
    RankLoad,
    communication_of,
    memory_of,
    power_law,
    random_halo,
    step_cost,
)
from graphweave.distributed.graph_file import graph_file
from graphweave.distributed.load import load_part
from graphweave.distributed.part import GraphPart
from graphweave.distributed.parts import NODES, parts_of
from graphweave.distributed.report import rank_loads, report
from graphweave.distributed.write import write_partition

WIDTHS = (8, 16, 5)
CLUSTER = Cluster(1e9, 1e-5, 1e-8)


def exchanged(parts: list[GraphPart], rows: list[Tensor]) -> list[list[Tensor]]:
    """What each rank gets from each other one, when each rank sends the rows that the others read."""
    got: list[list[Tensor]] = [[] for _ in parts]
    for part, own in zip(parts, rows, strict=True):
        nodes = part.nodes[NODES]
        for rank, sent in enumerate(own[nodes.send].split(nodes.send_counts.tolist())):
            got[rank].append(sent)
    return got


def returned(parts: list[GraphPart], gradients: list[Tensor]) -> list[list[Tensor]]:
    """The gradients of halo rows that each rank gets back from each other one."""
    got: list[list[Tensor]] = [[] for _ in parts]
    for part, halo in zip(parts, gradients, strict=True):
        for owner, sent in enumerate(halo.split(part.nodes[NODES].halo_counts.tolist())):
            got[owner].append(sent)
    return got


def nbytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("method", ["metis", "random", "ldg"])
def test_bytes_are_those_of_the_rows_that_travel(method: str, tmp_path: Path) -> None:
    """Every exchange of a step is made, and its bytes are counted."""
    index = rmat(300, 2_000)
    x = torch.randn(300, 8)
    np.savez(tmp_path / "g.npz", src=index[0], dst=index[1], num_nodes=300, feat=x)
    manifest = write_partition(graph_file(tmp_path / "g.npz"), 3, tmp_path / "parts", method=method)
    parts = [load_part(tmp_path / "parts", rank) for rank in range(3)]
    forward, backward, once = [0] * 3, [0] * 3, [0] * 3
    features = exchanged(parts, [part.nodes[NODES].data["feat"] for part in parts])
    for rank, some in enumerate(features):
        once[rank] += nbytes(some)
        assert torch.equal(torch.cat(some), x[parts[rank].nodes[NODES].halo])
    for width in (5,):  # min(16, 5): the second layer's product; the first exchanges its inputs
        for rank, some in enumerate(exchanged(parts, [torch.randn(p.nodes[NODES].num_own, width) for p in parts])):
            forward[rank] += nbytes(some)
        for rank, some in enumerate(returned(parts, [torch.randn(p.nodes[NODES].num_halo, width) for p in parts])):
            backward[rank] += nbytes(some)
    cost = step_cost(rank_loads(tmp_path / "parts"), Model(WIDTHS), CLUSTER)
    assert [rank.forward_bytes for rank in cost.ranks] == forward
    assert [rank.backward_bytes for rank in cost.ranks] == backward
    assert [rank.once_bytes for rank in cost.ranks] == once
    assert sum(forward) == sum(backward) == 4 * 5 * sum(p.nodes[NODES].num_halo for p in parts) > 0
    found = report(manifest, rank_loads(tmp_path / "parts"), Model(WIDTHS), CLUSTER)
    assert found["ranks"]["bytes received forward"]["each"] == forward
    assert found["cut edges"] == sum(int((part.edge_index[0] >= part.nodes[NODES].num_own).sum()) for part in parts)
    assert found["replication factor"] == pytest.approx(1 + sum(p.nodes[NODES].num_halo for p in parts) / 300)


def test_what_a_layer_exchanges() -> None:
    assert Model((8, 16, 5)).every_step == (5,) and Model((8, 16, 5)).inputs_travel_once
    assert Model((64, 16, 32)).every_step == (16, 16) and not Model((64, 16, 32)).inputs_travel_once
    assert Model((8, 8)).every_step == ()
    with pytest.raises(DataError, match=r"widths must be at least two numbers above 0 \(got \[8\]\)"):
        Model((8,))
    with pytest.raises(DataError, match="widths"):
        Model((8, 0))


def test_seconds_and_bytes_by_hand() -> None:
    load = RankLoad(num_own=100, num_halo=10, num_sent=20, num_edges=1000, num_peers=1)
    model = Model((64, 16), value_bytes=2)
    cost = step_cost([load, load], model, CLUSTER)
    rank = cost.ranks[0]
    assert (rank.forward_bytes, rank.backward_bytes, rank.once_bytes) == (10 * 16 * 2, 20 * 16 * 2, 0)
    assert rank.compute == pytest.approx(1e-5) and cost.one_rank == pytest.approx(2e-5)
    weights = 64 * 16 + 16
    seconds = (2 * 20 * 16 * 2 + weights * 2) / 1e9 + (2 + 2) * 1e-5
    assert communication_of(load, 2, model, CLUSTER) == pytest.approx(seconds)
    assert rank.memory == memory_of(load, model) == 2 * (100 * 64 + 2 * (110 * 16 + 100 * 16)) + 28 * 1000
    assert cost.in_turn == pytest.approx(1e-5 + seconds) and cost.hidden == pytest.approx(seconds)
    assert cost.speedup(cost.hidden) == pytest.approx(2e-5 / seconds)
    alone = step_cost([RankLoad(5, 0, 0, 9, 0)], model, CLUSTER)
    assert alone.communication == 0 and alone.speedup(alone.in_turn) == 1


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_halo_rows_of_random_parts(num_parts: int) -> None:
    """The formula against parts drawn at random, of a graph without repeated edges."""
    nodes = 3_000
    index = torch.stack(torch.where(torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(0)) < 0.002))
    degrees = torch.bincount(index[0], minlength=nodes).numpy()
    owner = torch.randint(num_parts, (nodes,), generator=torch.Generator().manual_seed(1))
    parts = parts_of(index, nodes, owner, num_parts)
    mean = sum(part.nodes[NODES].num_halo for part in parts) / num_parts
    assert random_halo(degrees, np.ones(nodes), num_parts) == pytest.approx(mean, rel=0.02)


def test_power_law_has_its_mean() -> None:
    degrees, counts = power_law(1e6, 20, 2.5, 100_000)
    assert counts.sum() == pytest.approx(1e6)
    assert (degrees * counts).sum() == pytest.approx(2e7, rel=1e-3)
    assert (np.diff(counts) < 0).all()
