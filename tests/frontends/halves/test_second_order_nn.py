"""Gradients of gradients of every layer of `graphweave.nn`, compiled: `gradgradcheck` in float64 on awkward graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import graphweave as gw
from graphweave import nn as gnn
from tests import nn_cases, relational_cases
from tests.frontends.halves.second_order import (
    assert_second_derivatives,
    assert_second_derivatives_of_eager_mode,
    smoothed,
)
from tests.nn import test_nn_door_layers as edge_features
from tests.nn import test_nn_layers, test_nn_pooling
from tests.programs.graphs import EdgeList, zoo
from tests.support import by_default, features, random_graph

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo looks for gradients of what it traces, and hides this warning in a way that errors do not respect
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:graphweave.*cannot reduce all mailboxes at once:UserWarning"),
]

MANY = ("hub_dst", "duplicates", "isolated")
FEW = ("no_edges", "one_edge", "one_node_loop")
"""Graphs that need a compilation each."""


class Run(NamedTuple):
    """One check: `call(run)` calls `run`, the layer or what is compiled of it, with arguments that hold `tensors`."""

    label: str
    call: Callable[[Any], Any]
    tensors: list[Tensor]


Runs = tuple[nn.Module, Iterator[Run]]


def leaves(tensors: list[Tensor]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


def plain(name: str, graphs: tuple[str, ...] = MANY) -> Runs:
    """A layer of `nn_cases`."""
    case = nn_cases.CASES[name]

    def runs() -> Iterator[Run]:
        for edges in test_nn_layers.named(case, graphs):
            drawn, names = test_nn_layers.arguments(case, edges)
            tensors, pair = leaves(drawn), len(case.widths) == 2
            given = dict(zip(names, tensors[len(case.widths) :], strict=True))
            feat = tuple(tensors[:2]) if pair else tensors[0]
            graph = test_nn_layers.graph_of(edges, pair)
            yield Run(edges.name, lambda run, g=graph, x=feat, more=given: run(g, x, **more), tensors)

    return test_nn_layers.made(case), runs()


def relational(name: str) -> Runs:
    case = relational_cases.CASES[name]

    def runs() -> Iterator[Run]:
        for typed in case.graphs():
            if typed.name in ("nearly_all", *MANY[:2]):
                tensors, graph = leaves(case.tensors(typed)), typed.graph()
                yield Run(typed.name, lambda run, g=graph, e=typed, t=tensors: case.call(run, g, e, *t), tensors)

    return case.layer(), runs()


def with_edge_features(name: str) -> Runs:
    """On graphs without self-loops, whose length has no derivative."""
    layer, call, _ = edge_features.case(name)

    def runs() -> Iterator[Run]:
        for edges in (without_loops(g) for g in zoo() if g.name in MANY):
            graph, tensors = graph_of(edges), leaves(list(edge_features.drawn(edges)))
            yield Run(edges.name, lambda run, g=graph, t=tensors: call(run, g, *t), tensors)

    return layer, runs()


def without_loops(g: EdgeList) -> EdgeList:
    kept = g.src != g.dst
    return g._replace(src=g.src[kept], dst=g.dst[kept])


def graph_of(edges: EdgeList) -> Any:
    return gw.graph((edges.src, edges.dst), num_nodes=edges.num_src)


def pooling(name: str) -> Runs:
    torch.manual_seed(0)
    layer = test_nn_pooling.POOLINGS[name][0]().double()

    def runs() -> Iterator[Run]:
        for sizes in ((4, 1, 7, 0, 2), (3, 3)):
            graph = test_nn_pooling.batch_of(sizes)
            tensors = leaves([features(sum(sizes), test_nn_pooling.W, torch.float64)])
            yield Run(f"graphs of {sizes}", lambda run, g=graph, t=tensors: run(g, *t), tensors)

    return layer, runs()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SRC, DST = random_graph(7, 7, 20)
KINDS = torch.arange(7) % 3
PAIRS = torch.stack([SRC, DST])[:, SRC != DST]
SETS = gw.batch([gw.graph(([], []), num_nodes=n) for n in (3, 1, 0, 3)])
TYPES = gw.heterograph({("a", "r", "b"): ([0, 1, 1, 2], [1, 1, 0, 4]), ("b", "s", "b"): ([0, 2, 4], [1, 1, 3])},
                       {"a": 3, "b": 5})  # fmt: skip


class Hetero(nn.Module):
    """Layers of several types, whose features come from a table and a linear map for each type."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = gnn.HeteroEmbedding({"a": 3, "b": 5}, 4)
        self.linear = gnn.HeteroLinear({"a": 4, "b": 4}, 6)
        self.layer = gnn.HeteroGraphConv({"r": gnn.SAGEConv(6, 4, "mean"), "s": gnn.GraphConv(6, 4)}, "max")

    def forward(self, x: Tensor) -> Any:
        rows = self.rows({"a": torch.arange(3), "b": torch.arange(5)})
        return self.layer(TYPES, self.linear({t: (r + x[: len(r)]).tanh() for t, r in rows.items()}))


class Stacked(nn.Module):
    """Layers, and each layer's result in the end, after weights of edges that are divided by degrees."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.norm = gnn.EdgeWeightNorm("both")
        self.layers = gnn.Sequential(gnn.GraphConv(5, 5, activation=torch.tanh))
        self.same = gnn.Identity()
        self.together = gnn.JumpingKnowledge(mode, 5, 2)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        graph = gw.graph((SRC, DST), num_nodes=7)
        x = x + torch.zeros_like(x).index_add(0, DST, self.norm(graph, weight.square() + 0.1)[:, None] * x[SRC])
        return self.together([x, self.same(self.layers(graph, x))])


class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = gnn.GroupRevRes(gnn.GraphConv(3, 3, activation=torch.tanh), groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(gw.graph((SRC, DST), num_nodes=7), x)


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bases = gnn.WeightBasis((5, 4), 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x[:, None], self.bases()[KINDS]).squeeze(1).tanh()


class Slope(nn.Module):
    """An energy and its gradient by positions, whose second derivatives are the energy's third ones."""

    def __init__(self, model: gnn.Potential) -> None:
        super().__init__()
        self.model = model

    def forward(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.model(KINDS, pos, PAIRS)
        return energy, torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]


Made = tuple[nn.Module, tuple[Any, ...]]
SCORED = drawn(7, 6), KINDS, drawn(7, 6, seed=1)
OTHERS: dict[str, Callable[[], Made]] = {
    "biased attention": lambda: (gnn.BiasedMHA(6, 2).eval(), (drawn(2, 4, 6), drawn(2, 4, 4, 2, seed=1))),
    "graphormer": lambda: (gnn.GraphormerLayer(6, 9, 2, activation=nn.GELU()).eval(),
                           (drawn(2, 4, 6), drawn(2, 4, 4, 2, seed=1))),
    "egt": lambda: (gnn.EGTLayer(6, 3, 2, num_virtual_nodes=1).eval(), (drawn(2, 4, 6), drawn(2, 4, 4, 3, seed=1))),
    "dense graph": lambda: (gnn.DenseGraphConv(5, 4), (drawn(7, 7).abs(), drawn(7, 5))),
    "dense sage": lambda: (gnn.DenseSAGEConv(5, 4), (drawn(7, 7).abs(), drawn(7, 5))),
    "dense chebyshev": lambda: (gnn.DenseChebConv(5, 4, 3), (drawn(7, 7).abs(), drawn(7, 5), 1.7)),
    "dist mult": lambda: (gnn.DistMult(3, 6), SCORED),
    "rotat e": lambda: (gnn.RotatE(3, 6), SCORED),
    "trans e": lambda: (gnn.TransE(3, 6, 2), (SCORED[0], SCORED[2], KINDS)),
    "trans r": lambda: (gnn.TransR(3, 4, 6, 2), (SCORED[0], SCORED[2], KINDS)),
    "cosines": lambda: (gnn.EdgePredictor("cos", 6, 2), (SCORED[0], SCORED[2])),
    "typed linear": lambda: (gnn.TypedLinear(6, 4, 3, "basis", 2), (drawn(7, 6), KINDS)),
    "shifted softplus": lambda: (gnn.ShiftedSoftplus(), (drawn(7, 6),)),
    "weight basis": lambda: (Weights(), (drawn(7, 5),)),
    "path encoder": lambda: (gnn.PathEncoder(3, 5, 2), (torch.arange(32).view(2, 4, 4) % 4, drawn(2, 4, 4, 3, 5))),
    "set encoder": lambda: (gnn.SetTransformerEncoder(6, 2, 3, 7, n_layers=2), (SETS, drawn(7, 6))),
    "induced sets": lambda: (gnn.SetTransformerEncoder(6, 2, 3, 7, block_type="isab", m=2), (SETS, drawn(7, 6))),
    "set decoder": lambda: (gnn.SetTransformerDecoder(6, 2, 3, 7, 1, 2), (SETS, drawn(7, 6))),
    "several types": lambda: (Hetero(), (drawn(5, 4),)),
    "jumping": lambda: (Stacked("cat"), (drawn(7, 5), drawn(20, seed=1))),
    "jumping by lstm": lambda: (Stacked("lstm"), (drawn(7, 5), drawn(20, seed=1))),
    "reversible": lambda: (Reversible(), (drawn(7, 6),)),
    "schnet": lambda: (Slope(gnn.SchNet(4, 1, 3, 5.0)), (drawn(7, 3),)),
    "painn": lambda: (Slope(gnn.PaiNN(4, 1, 3, 5.0)), (drawn(7, 3),)),
}  # fmt: skip

LEFT_OUT = {
    "DegreeEncoder": "looks rows up by integers",
    "SpatialEncoder": "looks rows up by integers",
    "SpatialEncoder3d": "PyTorch's `cdist` has no second derivative",
    "LapPosEncoder": "computes in float32",
    "LabelPropagation": "is linear in its labels",
    "Potential": "is what potentials are derived from",
    "EnergyAndForces": "has a test of its own",
}
"""Layer -> why its second derivatives cannot be checked."""


def other(name: str) -> Runs:
    torch.manual_seed(0)
    layer, args = OTHERS[name]()
    args = tuple(a.clone().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    tensors = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    return layer.double(), iter([Run("", lambda run: run(*args), tensors)])


def check(made: Runs, name: str) -> None:
    layer, runs = made
    layer = smoothed(layer)
    compiled = gw.compile(layer)
    for run in runs:
        assert_second_derivatives(
            lambda run=run: run.call(compiled), lambda run=run: run.call(layer),
            [*run.tensors, *(p for p in layer.parameters() if p.numel())], f"{name} on {run.label}",
        )  # fmt: skip
    assert gw.counters()["eager_fallbacks"] == 0 or "lstm" in name  # an LSTM over mailboxes is PyTorch's


@pytest.mark.parametrize("name", by_default(nn_cases.CASES, "gin-sum"))
def test_layers(name: str) -> None:
    check(plain(name), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph-both-weights", "gat", "sage-pool", "gin-sum", "edge-mlp", "gmm-sum"])
def test_graphs_of_few_edges(name: str) -> None:
    check(plain(name, FEW), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", relational_cases.CASES)
def test_relational_layers(name: str) -> None:
    check(relational(name), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", edge_features.LAYERS)
def test_layers_with_edge_features(name: str) -> None:
    check(with_edge_features(name), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", test_nn_pooling.POOLINGS)
def test_poolings(name: str) -> None:
    check(pooling(name), name)


POTENTIALS = ("schnet", "painn")


@pytest.mark.slow
@pytest.mark.parametrize("name", POTENTIALS)
def test_third_derivatives_of_an_energy(name: str) -> None:
    check(other(name), name)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gnn.SchNet, gnn.PaiNN])
def test_energies_and_forces(make: Callable[..., gnn.Potential]) -> None:
    """They are functions of the weights alone: the layer detaches positions, so differences are no derivatives."""
    torch.manual_seed(0)
    layer = smoothed(gnn.EnergyAndForces(make(4, 1, 3, 5.0)).double())
    compiled, pos = gw.compile(layer), drawn(7, 3)
    assert_second_derivatives_of_eager_mode(
        lambda: compiled(KINDS, pos, PAIRS), lambda: layer(KINDS, pos, PAIRS), list(layer.parameters())
    )  # fmt: skip
    assert gw.counters()["eager_fallbacks"] == 0


@pytest.mark.parametrize("name", by_default([name for name in OTHERS if name not in POTENTIALS], "typed linear"))
def test_other_layers(name: str) -> None:
    check(other(name), name)


def test_every_layer_is_checked_or_has_a_reason() -> None:
    made: list[nn.Module] = [case.make() for case in nn_cases.CASES.values()]
    made += [case.make() for case in relational_cases.CASES.values()]
    made += [make() for make, *_ in (*edge_features.LAYERS.values(), *test_nn_pooling.POOLINGS.values())]
    made += [make()[0] for make in OTHERS.values()]
    known = {type(part) for layer in made for part in layer.modules()} | {getattr(gnn, name) for name in LEFT_OUT}
    exported = [value for value in vars(gnn).values() if isinstance(value, type) and issubclass(value, nn.Module)]
    assert {value.__name__ for value in exported} - {value.__name__ for value in known} == set()
