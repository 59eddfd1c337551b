"""Sums of a graph convolution from drawn neighbours: exact where all are drawn, right on average where some are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv

from graphweave.distributed.parts import EDGES, NODES
from graphweave.examples.drawn_norms import GraphNorms, graph_norms
from graphweave.sampling.adjacency import adjacency
from graphweave.sampling.hops import hop_sampler
from tests.support import features, random_graph

NODES_COUNT, WIDTH = 12, 4


def graph() -> Tensor:
    """Random edges, two of them twice, a self-loop, and node 11 without edges."""
    edges = random_graph(NODES_COUNT - 1, NODES_COUNT - 1, 60)
    return torch.cat([edges, edges[:, :2], torch.tensor([[3], [3]])], 1)


def layers() -> tuple[GCNConv, GCNConv]:
    """A convolution that counts the graph's norms itself, and one with the same weights that is given them."""
    torch.manual_seed(0)
    counts = GCNConv(WIDTH, 3).double()
    given = GCNConv(WIDTH, 3, normalize=False).double()
    given.load_state_dict(counts.state_dict())
    return counts, given


def estimate(
    norms: GraphNorms, given: GCNConv, edges: Tensor, fanout: int, seed: int, x: Tensor, seeds: Tensor
) -> Tensor:
    index = adjacency(edges[0], edges[1], NODES_COUNT, NODES_COUNT, what="test")
    sampler = hop_sampler({EDGES: index}, {NODES: NODES_COUNT}, {EDGES: (fanout,)}, seed, repeat=True, by_node=True)
    batch = sampler.sample({NODES: seeds}, None, 0)
    nodes, (hop,) = torch.cat(batch.nodes[NODES]), batch.edges[EDGES]
    return given(x[nodes], *norms.drawn(hop, nodes))[: seeds.numel()]


def test_norms_are_those_of_a_convolution_on_the_whole_graph() -> None:
    edges, x = graph(), features(NODES_COUNT, WIDTH, torch.float64)
    counts, given = layers()
    norms = graph_norms(edges, NODES_COUNT, torch.float64)
    torch.testing.assert_close(given(x, norms.edge_index, norms.weight), counts(x, edges))
    empty = edges[:, :0]
    none = graph_norms(empty, NODES_COUNT, torch.float64)
    torch.testing.assert_close(given(x, none.edge_index, none.weight), counts(x, empty))


def test_all_neighbours_give_the_rows_of_the_whole_graph() -> None:
    edges, x, seeds = graph(), features(NODES_COUNT, WIDTH, torch.float64), torch.tensor([3, 11, 0])
    counts, given = layers()
    norms = graph_norms(edges, NODES_COUNT, torch.float64)
    torch.testing.assert_close(estimate(norms, given, edges, -1, 0, x, seeds), counts(x, edges)[seeds])


def test_drawn_neighbours_give_them_on_average() -> None:
    edges, x, seeds = graph(), features(NODES_COUNT, WIDTH, torch.float64), torch.arange(NODES_COUNT)
    counts, given = layers()
    norms = graph_norms(edges, NODES_COUNT, torch.float64)
    with torch.no_grad():
        drawn = torch.stack([estimate(norms, given, edges, 2, seed, x, seeds) for seed in range(400)])
        error = drawn.mean(0) - counts(x, edges)
    bound = 5 * drawn.std(0) / 400**0.5  # five standard errors of the mean
    assert bool((error.abs() <= bound + 1e-12).all())
    assert float(drawn.std(0).max()) > 0.1
