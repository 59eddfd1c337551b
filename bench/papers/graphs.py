"""The graphs of the papers: those of bench/graphs.py, files of shared/data, and synthetic ones at a written scale.

A name `rmat:NODES:EDGES` is a seeded R-MAT graph, `chain:NODES` a path with its edges both ways, and
`points:CLOUDS:POINTS:K` a graph of k nearest neighbours of random points. FeatGraph's graphs at a tenth of the nodes,
of equal average degree, are R-MAT (ogbn-proteins and reddit have skewed degrees) or as bench/ops_graphs.py draws them.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from bench import graphs, ops_graphs
from bench.graphs import Workload, knn_clouds, pseudo_coordinates
from bench.relational_graphs import kept_path
from graphweave.data import npz, rmat

TENTH = {"ogbn-proteins": (13_250, 7_910_000), "reddit": (23_300, 11_480_000)}
"""Name -> nodes and edges at a tenth of the paper's size."""

MANY_EDGES = 1_000_000
"""R-MAT graphs of at least so many edges are kept as files."""


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
    if name in ops_graphs.GRAPHS and name not in graphs.GRAPHS:
        return ops_graphs.edges_of(name, folder)
    if name in graphs.GRAPHS:
        work = graphs.load(name, folder)
        return work.edge_index, work.x.size(0)
    data = npz(folder / f"{name}.npz")
    return data.edge_index, data.num_nodes


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
    partial = path.with_suffix(f".{os.getpid()}")
    torch.save(index, partial)
    partial.replace(path)
    return index


def workload(name: str, inputs: int, pseudo: int, classes: int, folder: Path) -> Workload:
    """Random features [N, inputs] and labels below `classes`. Edges have `pseudo` pseudo-coordinates."""
    generator = torch.Generator().manual_seed(0)
    kind, *numbers = name.split(":")
    if kind == "points":
        clouds, points, k = map(int, numbers)
        x, index = knn_clouds(clouds, points, k, generator)
    else:
        index, nodes = edges_of(name, folder)
        x = torch.randn(nodes, inputs, generator=generator)
    y = torch.randint(classes, (x.size(0),), generator=generator)
    attributes = None
    if pseudo == 2:
        attributes = pseudo_coordinates(index, x.size(0))
    elif pseudo:
        attributes = torch.rand(index.size(1), pseudo, generator=generator)
    return Workload(x, index, y, attributes)
