"""GraphSAINT: sets of nodes have their exact probabilities, and the coefficients make means over batches exact."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor
from torch_geometric.data import Data

import graphweave as gw
from graphweave.core.errors import DataError
from graphweave.sampling import DataLoader, SAINTSampler
from tests.programs.graphs import EdgeList, zoo

SRC = [0, 0, 1, 1, 2, 3, 3, 4, 2, 2]
DST = [1, 2, 2, 2, 0, 1, 3, 0, 4, 0]
NODES = 5
SMALL: dict[str, Any] = {"node": 3, "edge": 2, "walk": (2, 2)}
Outcomes = dict[frozenset[int], float]


def small() -> gw.Graph:
    return gw.graph((SRC, DST), num_nodes=NODES)


def one_draw(mode: str) -> list[tuple[tuple[int, ...], float]]:
    """Each outcome of one draw (a walk: of one root) as the nodes it adds, with its probability. Plain Python."""
    into = [DST.count(v) for v in range(NODES)]
    out = [SRC.count(v) for v in range(NODES)]
    edges = list(zip(SRC, DST, strict=True))
    if mode == "node":
        weights = [(1 + into[u]) ** -2 + sum((1 + into[v]) ** -2 for s, v in edges if s == u) for u in range(NODES)]
        return [((u,), w / sum(weights)) for u, w in enumerate(weights)]
    if mode == "edge":
        weights = [1 / out[u] + 1 / into[v] for u, v in edges]
        return [(edge, w / sum(weights)) for edge, w in zip(edges, weights, strict=True)]
    walks = [((u,), 1 / NODES) for u in range(NODES)]
    for _ in range(SMALL["walk"][1]):
        walks = [((*w, v), p / out[w[-1]]) for w, p in walks for s, v in edges if s == w[-1]]
    return walks


def outcomes(mode: str) -> Outcomes:
    """The probability of each set of nodes that a batch may have."""
    draws = SMALL[mode][0] if mode == "walk" else SMALL[mode]
    found: Counter[frozenset[int]] = Counter()
    for choice in product(one_draw(mode), repeat=draws):
        found[frozenset(v for nodes, _ in choice for v in nodes)] += prod(p for _, p in choice)  # type: ignore[assignment]
    return dict(found)  # type: ignore[arg-type]


def shares(mode: str) -> tuple[Tensor, Tensor]:
    """float64: the probabilities that a batch has each node, and both ends of each edge."""
    found = outcomes(mode)
    nodes = [sum(p for s, p in found.items() if v in s) for v in range(NODES)]
    edges = [sum(p for s, p in found.items() if {u, v} <= s) for u, v in zip(SRC, DST, strict=True)]
    return torch.tensor(nodes, dtype=torch.float64), torch.tensor(edges, dtype=torch.float64)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("mode", SMALL)
def test_sets_of_nodes_have_their_exact_probabilities(mode: Any, seed: int) -> None:
    sampler = SAINTSampler(small(), mode, SMALL[mode], seed=seed, coverage=1)
    batches = 1_500
    seen = Counter(frozenset(sampler.sample(i).ndata[gw.NID].tolist()) for i in range(batches))
    expected = outcomes(mode)
    assert sum(expected.values()) == pytest.approx(1)
    assert seen.keys() <= expected.keys()
    common = [s for s, p in expected.items() if p * batches >= 5]
    rest = batches - sum(seen[s] for s in common), batches * (1 - sum(expected[s] for s in common))
    cells = [(seen[s], batches * expected[s]) for s in common] + ([rest] if rest[1] > 1e-9 else [])
    assert len(cells) > 4
    statistic = sum((got - want) ** 2 / want for got, want in cells)
    assert chi2.sf(statistic, len(cells) - 1) > 1e-4


@pytest.mark.parametrize("mode", ["node", "edge"])
def test_coefficients_are_exact(mode: Any) -> None:
    sampler = SAINTSampler(small(), mode, SMALL[mode])
    nodes, edges = shares(mode)
    torch.testing.assert_close(sampler.node_norm, 1 / (NODES * nodes), rtol=1e-10, atol=0)
    torch.testing.assert_close(sampler.edge_norm, nodes[torch.tensor(DST)] / edges, rtol=1e-10, atol=0)
    batch = sampler.sample(0)
    assert torch.equal(batch.ndata["node_norm"], sampler.node_norm.float()[batch.ndata[gw.NID]])
    assert torch.equal(batch.edata["edge_norm"], sampler.edge_norm.float()[batch.edata[gw.EID]])


@pytest.mark.parametrize("mode", SMALL)
def test_estimated_coefficients_are_near_the_exact_ones(mode: Any) -> None:
    sampler = SAINTSampler(small(), mode, SMALL[mode], norms="estimated", coverage=1_000)
    nodes, edges = shares(mode)
    # About 1,500 batches: the relative deviation of a share p is sqrt((1 - p) / (1,500 p)), below 0.1 for p > 0.08.
    assert float(edges.min()) > 0.08
    torch.testing.assert_close(sampler.node_norm, 1 / (NODES * nodes), rtol=0.3, atol=0)
    torch.testing.assert_close(sampler.edge_norm, nodes[torch.tensor(DST)] / edges, rtol=0.4, atol=0)


@pytest.mark.parametrize("mode", SMALL)
def test_the_mean_over_batches_is_that_of_the_whole_graph(mode: Any) -> None:
    """sum over v of node_norm(v) f(v) sum over u of edge_norm(u -> v) x(u), which is linear in the aggregate."""
    generator = torch.Generator().manual_seed(4)
    src, dst = torch.randint(40, (2, 240), generator=generator)
    x, f = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    graph = gw.graph((src, dst), num_nodes=40)
    budget: Any = {"node": 12, "edge": 8, "walk": (4, 3)}[mode]
    sampler = SAINTSampler(graph, mode, budget, seed=1, coverage=300)
    found, losses, plain = [], [], []
    for number in range(800):
        batch = sampler.sample(number)
        nodes, (u, v) = batch.ndata[gw.NID], batch.edges()
        message = batch.edata["edge_norm"].double() * x[nodes[u]]
        aggregate = torch.zeros(nodes.numel(), dtype=torch.float64).index_add(0, v, message)
        weight = batch.ndata["node_norm"].double()
        found.append(float((weight * f[nodes] * aggregate).sum()))
        losses.append(float((weight * f[nodes] ** 2).sum()))
        plain.append(float((weight[v] * f[nodes[v]] * x[nodes[u]]).sum()))
    whole = float((f[dst] * x[src]).sum() / 40)
    drawn = torch.bincount(torch.cat([src, dst]), minlength=40) > 0 if mode == "edge" else torch.ones(40).bool()
    for values, exact in ((found, whole), (losses, float((f**2)[drawn].sum() / 40))):
        tensor = torch.tensor(values, dtype=torch.float64)
        error = float(tensor.std()) / len(values) ** 0.5
        # Estimated coefficients add an error of their own, of presampled batches about as many as these.
        assert abs(float(tensor.mean()) - exact) < (6 if mode == "walk" else 4) * error
    without = torch.tensor(plain, dtype=torch.float64)
    error = float(without.std()) / len(plain) ** 0.5
    assert abs(float(without.mean()) - whole) > 8 * error, "the test would pass without edge_norm, too"


@pytest.mark.parametrize("mode", SMALL)
@pytest.mark.parametrize("graph", [g for g in zoo() if g.square], ids=lambda g: g.name)
def test_a_batch_is_an_induced_subgraph(graph: EdgeList, mode: Any) -> None:
    data = Data(
        x=torch.randn(graph.num_dst, 2), edge_index=torch.stack([graph.src, graph.dst]), num_nodes=graph.num_dst,
        edge_attr=torch.arange(graph.src.numel()),
    )  # fmt: skip
    if not graph.num_dst or (mode == "edge" and not graph.src.numel()):
        with pytest.raises(DataError, match=r"the graph has no (nodes|edges) to draw"):
            SAINTSampler(data, mode, SMALL[mode])
        return
    batch = SAINTSampler(data, mode, SMALL[mode], coverage=3).sample([7])
    member = torch.zeros(graph.num_dst, dtype=torch.bool)
    member[batch.n_id] = True
    assert torch.equal(batch.n_id, member.nonzero().view(-1))
    assert torch.equal(batch.e_id.sort().values, (member[graph.src] & member[graph.dst]).nonzero().view(-1))
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.edge_attr, batch.e_id)
    for norm, size in ((batch.node_norm, batch.n_id.numel()), (batch.edge_norm, batch.e_id.numel())):
        assert norm.shape == (size,)
        assert bool((norm.isfinite() & (norm > 0)).all())


@pytest.mark.parametrize("mode", SMALL)
def test_threads_change_neither_batches_nor_coefficients(mode: Any) -> None:
    src, dst = torch.randint(5_000, (2, 40_000), generator=torch.Generator().manual_seed(0))
    graph = gw.graph((src, dst), num_nodes=5_000)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            sampler = SAINTSampler(graph, mode, (1_500, 2) if mode == "walk" else 3_000, coverage=2)
            batches = list(DataLoader(graph, torch.arange(3), sampler))
            found.append([sampler.node_norm, sampler.edge_norm, *(e for b in batches for e in b.edges("all"))])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


def test_batches_are_functions_of_seed_epoch_and_number() -> None:
    def drawn(seed: int, number: int, epoch: int) -> list[int]:
        return SAINTSampler(graph, "node", 40, seed=seed).sample(number, epoch).ndata[gw.NID].tolist()

    graph = gw.graph((torch.arange(400), torch.arange(400).flip(0)))
    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert drawn(*other) != drawn(1, 2, 3)


def test_what_cannot_be_drawn_is_one_clear_error() -> None:
    graph = small()
    with pytest.raises(DataError, match="expected mode 'node', 'edge' or 'walk'"):
        SAINTSampler(graph, "khop", 3)  # type: ignore[arg-type]
    for budget in (0, 2.5, (3, 2), True):
        with pytest.raises(DataError, match="budget of mode 'node' must be a positive integer"):
            SAINTSampler(graph, "node", budget)  # type: ignore[arg-type]
    for budget in (4, (4,), (0, 2), (2, 0)):
        with pytest.raises(DataError, match=r"must be a tuple \(roots, length\) of positive integers"):
            SAINTSampler(graph, "walk", budget)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="expected norms='estimated', or for nodes and edges 'exact'"):
        SAINTSampler(graph, "walk", (2, 2), norms="exact")
    with pytest.raises(DataError, match="coverage must be a positive integer"):
        SAINTSampler(graph, "walk", (2, 2), coverage=0)
    with pytest.raises(DataError, match="seed must be an integer"):
        SAINTSampler(graph, "node", 2, seed=0.5)  # type: ignore[arg-type]
    for numbers in ([], 0.5, torch.tensor([])):
        with pytest.raises(DataError, match="numbers: expected integers, one at least"):
            SAINTSampler(graph, "node", 2).sample(numbers)
