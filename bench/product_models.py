"""Training steps over product spaces (batches of one graph, tables of neighbours) and of graph transformers.

    python -m bench.product_models [--quick] [--cases weather protein ...] [--systems eager graphweave inductor]
                                   [--threads 2] [--repeats 7] [--timeout 240] [--out FILE] [--resume]

A step computes the model, a loss that is a weighted sum of its results, and the gradients of all parameters, in
float32. The sizes are those of the papers, or, with `--quick`, small ones.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import to_torch_csr_tensor

import graphweave
from bench import graph_transformers as attention
from bench import product_layers as layers
from bench.case import EXACT, Bench, Case, Check, Peers, training_result
from bench.runner import run
from bench.steps import Result, Step

SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "graphweave": graphweave.compile,
    "inductor": lambda f: torch.compile(f, dynamic=True),
}
TOLERANCE = 2e-3
"""Error of float32, relative to the largest number of the loss or of a gradient. GRIT takes roots of scores near 0."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model and its arguments; both are made with the numbers `sizes`, or `small` ones."""

    about: str
    make: Callable[..., tuple[nn.Module, Sequence[Tensor | int]]]
    sizes: tuple[int, ...]
    small: tuple[int, ...]


def _weather(batch: int, side: int, mesh: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return layers.MeshWeather(width), layers.of_a_grid(batch, side, mesh, width)


def _protein(batch: int, residues: int, near: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return layers.ProteinEncoder(width), layers.of_a_protein(batch, residues, near, width)


def _traffic(batch: int, sensors: int, edges: int, times: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return layers.TrafficConvolution(width), layers.of_sensors(batch, sensors, edges, times, width)


def _vectors(batch: int, atoms: int, edges: int, width: int, vectors: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return layers.VectorPerceptrons(width, vectors), layers.of_atoms(batch, atoms, edges, width, vectors)


def _paths(batch: int, entities: int, edges: int, relations: int, width: int) -> tuple[nn.Module, Sequence[Any]]:
    return layers.BellmanFord(relations, width, 3), layers.of_queries(batch, entities, edges, relations)


def _gps(graphs: int, nodes: int, width: int, depth: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.Gps(width, depth), attention.of_molecules(graphs, nodes, width)


def _performer(graphs: int, nodes: int, width: int, depth: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.Gps(width, depth, attn_type="performer"), attention.of_molecules(graphs, nodes, width)


def _grit(graphs: int, nodes: int, width: int, depth: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.Grit(width, 4, depth), attention.of_molecules(graphs, nodes, width, pairs=True)[:3]


def _exphormer(graphs: int, nodes: int, width: int, depth: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.Exphormer(width, 4, depth), attention.of_molecules(graphs, nodes, width)[:3]


def _sgformer(nodes: int, edges: int, width_in: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.sgformer(width_in, width), attention.of_one_graph(nodes, edges, width_in)


def _recommender(users: int, items: int, interactions: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    model = attention.Recommender(users + items, width, 3)
    return model, attention.of_interactions(users, items, interactions, 2048)


CASES: dict[str, Model] = {
    "weather": Model("interaction nets, 4 x 6,561 points of a grid, 1,681 of a mesh", _weather, (4, 81, 41, 64),
                    (2, 9, 5, 16)),
    "protein": Model("a layer of ProteinMPNN's encoder, 8 x 200 residues x 30 neighbours", _protein, (8, 200, 30, 128),
                    (2, 20, 5, 16)),
    "vectors": Model("a layer of geometric vector perceptrons, 4 x 300 atoms", _vectors, (4, 300, 9000, 100, 16),
                    (2, 20, 60, 16, 4)),
    "traffic": Model("Graph WaveNet's spatial layer, 64 x 207 sensors x 12 times", _traffic, (64, 207, 1515, 12, 32),
                    (3, 20, 60, 3, 8)),
    "paths": Model("NBFNet, 4 queries to 40,943 entities along 173,670 edges", _paths, (4, 40943, 173670, 22, 32),
                  (2, 50, 300, 4, 8)),
    "gps": Model("GPS, 32 graphs of 23 nodes", _gps, (32, 23, 64, 5), (4, 6, 16, 2)),
    "performer": Model("GPS with Performer's attention, 16 graphs of 150 nodes", _performer, (16, 150, 64, 3),
                      (4, 6, 16, 2)),
    "grit": Model("GRIT, 32 graphs of 23 nodes", _grit, (32, 23, 64, 3), (4, 6, 16, 2)),
    "exphormer": Model("Exphormer, 64 graphs of 150 nodes", _exphormer, (64, 150, 64, 3), (4, 6, 16, 2)),
    "sgformer": Model("SGFormer, a graph of 20,000 nodes", _sgformer, (20000, 140000, 128, 64), (50, 300, 16, 8)),
    "recommender": Model("LightGCN, 10,000 users x 10,000 items", _recommender, (10000, 10000, 200000, 64),
                        (30, 40, 200, 8)),
}  # fmt: skip


class Training:
    """A step of one case: the loss, and the gradients of all parameters that have some."""

    def __init__(self, case: str, system: str, sizes: Sequence[int]) -> None:
        torch.manual_seed(0)
        self.model, self.args = CASES[case].make(*sizes)
        if system == EXACT:
            torch.set_default_dtype(torch.float64)  # SGFormer makes tensors of this type
            self.model.double()
            self.args = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in self.args]
        elif case == "recommender" and system == "eager":  # eager mode is 8 times as fast with a sparse matrix
            edges, *others = self.args
            count = len(self.model.get_parameter("model.embedding.weight"))
            self.args = [to_torch_csr_tensor(edges, size=(count, count)), *others]
        self.run = SYSTEMS["eager" if system == EXACT else system](self._loss)

    def _loss(self, *args: Tensor | int) -> Tensor:
        out = self.model(*args)
        outs = out if isinstance(out, tuple) else (out,)
        return sum(((t * torch.linspace(-1, 2, t.size(-1)) if t.ndim else t).mean() for t in outs), torch.zeros(()))

    def __call__(self) -> Result:
        self.model.zero_grad(set_to_none=True)
        loss = self.run(*self.args)
        loss.backward()
        return training_result(loss, self.model)


def build(case: str, sizes: Sequence[int]) -> Peers:
    def prepared(system: str) -> Callable[[], Step]:
        return lambda: Training(case, system, sizes)

    return {system: prepared(system) for system in (*SYSTEMS, EXACT)}


def cases(options: Namespace) -> Iterator[Case]:
    check = Check(TOLERANCE, exact=True)
    for name, one in CASES.items():
        sizes, small = ({"case": name, "sizes": numbers} for numbers in (one.sizes, one.small))
        yield Case(name, build, tuple(SYSTEMS), check, sizes, small)


BENCH = Bench("bench.product_models", __doc__, cases, apart=True, repeats=7, timeout=240.0)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
