"""Graphs by name: those of bench/graphs.py, FeatGraph's at a tenth of their size, files, and synthetic ones.

A name `rmat:NODES:EDGES` is a seeded R-MAT graph, `chain:NODES` a path with its edges both ways, and
`points:CLOUDS:POINTS:K` a graph of k nearest neighbours of random points. Y. Hu et al., "FeatGraph: A Flexible and
Efficient Backend for Graph Neural Network Systems", SC 2020, table II: rand-100K has 20K nodes of average degree 2000
and 80K of degree 100; here it is rand-10K. The uniform graphs of its table IV have 10K nodes here, too. ogbn-proteins
and reddit, which have skewed degrees, are R-MAT graphs of equal average degree.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from bench import graphs
from bench.graphs import Workload, knn_clouds, workload_of
from bench.relational_graphs import kept_path
from graphweave.core.whole_file import written_whole
from graphweave.data import npz, rmat

UNIFORM = {"uniform-99.95": 0.0005, "uniform-99.5": 0.005, "uniform-95": 0.05}
"""Share of all pairs of 10,000 nodes that are edges. The name of a graph has the share that are not, in percent."""

TENTH = {"ogbn-proteins": (13_250, 7_910_000), "reddit": (23_300, 11_480_000)}
"""Name -> nodes and edges at a tenth of the paper's size."""

OF_FILES = {
    "cora": (2_708, 10_556), "citeseer": (3_327, 9_104), "pubmed": (19_717, 88_648), "ppi": (14_755, 444_218),
    "arxiv": (169_343, 2_315_598),
}  # fmt: skip
"""Nodes and edges of the real graphs of the papers, so that they can be planned for without their files."""

DRAWN_NODES = 10_000
"""Nodes of rand-10k and of the uniform graphs."""

MANY_EDGES = 1_000_000
"""R-MAT graphs of at least so many edges are kept as files."""


def absent(name: str, folder: Path) -> str | None:
    """Why a graph cannot be loaded; None if it can."""
    if name in (*graphs.GRAPHS, *graphs.POINT_SETS):
        return graphs.missing(name, folder)
    if ":" in name or name in (*UNIFORM, *TENTH, "rand-10k") or (folder / f"{name}.npz").is_file():
        return None
    return f"{folder / name}.npz is absent"


def drawn(name: str, seed: int = 0) -> tuple[Tensor, int]:
    """rand-10k or a uniform graph. Edges are in no particular order."""
    generator, nodes = torch.Generator().manual_seed(seed), DRAWN_NODES
    if name == "rand-10k":
        degree = torch.full((nodes,), 100)
        degree[torch.randperm(nodes, generator=generator)[: nodes // 5]] = 2000
        dst = torch.arange(nodes).repeat_interleave(degree)
    else:
        dst = torch.randint(nodes, (int(UNIFORM[name] * nodes * nodes),), generator=generator)
    src = torch.randint(nodes, (dst.shape[0],), generator=generator)
    return torch.stack([src, dst])[:, torch.randperm(dst.shape[0], generator=generator)], nodes


@lru_cache(maxsize=1)
def edges_of(name: str, folder: Path) -> tuple[Tensor, int]:
    """(edge_index [2, E], nodes). The last graph is kept, because making one takes seconds."""
    kind, *numbers = name.split(":")
    if kind == "rmat":
        nodes, edges = map(int, numbers)
        return kept_rmat(nodes, edges), nodes
    if kind == "chain":
        ends = torch.arange(int(numbers[0]) - 1)
        there = torch.stack([ends, ends + 1])
        return torch.cat([there, there.flip(0)], 1), int(numbers[0])
    if name in TENTH:
        nodes, edges = TENTH[name]
        return kept_rmat(nodes, edges), nodes
    if name in UNIFORM or name == "rand-10k":
        return drawn(name)
    if name in graphs.GRAPHS:
        work = graphs.load(name, folder)
        return work.edge_index, work.x.size(0)
    data = npz(folder / f"{name}.npz")
    return data.edge_index, data.num_nodes


def size_of(name: str, folder: Path) -> tuple[int, int]:
    """Nodes and edges, without making a graph that is drawn. Tasks of bench/papers/tasks.py have names, too."""
    kind, *given = name.split(":")
    numbers = [int(number) for number in given]
    match kind:
        case "rmat" | "weighted":
            return numbers[0], numbers[1]
        case "ratings":
            return numbers[0] + numbers[1], numbers[2]
        case "pairs":
            return numbers[0], numbers[1] * (2 + numbers[2])
        case "chain":
            return numbers[0], 2 * numbers[0]
        case "points":
            return numbers[0] * numbers[1], numbers[0] * numbers[1] * numbers[2]
    if name in TENTH or name in OF_FILES:
        return {**TENTH, **OF_FILES}[name]
    if name in UNIFORM:
        return DRAWN_NODES, int(UNIFORM[name] * DRAWN_NODES**2)
    if name == "rand-10k":
        return DRAWN_NODES, DRAWN_NODES // 5 * 2000 + DRAWN_NODES // 5 * 4 * 100
    index, nodes = edges_of(name, folder)
    return nodes, index.size(1)


def kept_rmat(nodes: int, edges: int) -> Tensor:
    """A seeded R-MAT graph [2, edges], from a file of the temporary folder if an earlier process made it.

    Making ten million edges takes ten seconds, and every process of a measurement needs them. Small graphs are made.
    """
    if edges < MANY_EDGES:
        return rmat(nodes, edges)
    path = kept_path(f"rmat_{nodes}_{edges}.pt")
    if path.is_file():
        index: Tensor = torch.load(path)
        return index
    index = rmat(nodes, edges)
    with written_whole(path) as partial:
        torch.save(index, partial)
    return index


def workload(name: str, inputs: int, pseudo: int, classes: int, folder: Path) -> Workload:
    """Random features [N, inputs] and labels below `classes`. Edges have `pseudo` pseudo-coordinates."""
    if name in graphs.POINT_SETS or name == "cora-features":
        return graphs.load(name, folder, pseudo=pseudo == 2)
    generator, x = torch.Generator().manual_seed(0), None
    kind, *numbers = name.split(":")
    if kind == "points":
        clouds, points, k = map(int, numbers)
        x, index = knn_clouds(clouds, points, k, generator)
        nodes = x.size(0)
    else:
        index, nodes = edges_of(name, folder)
    return workload_of(index, nodes, generator, x, inputs=inputs, classes=classes, pseudo=pseudo)
