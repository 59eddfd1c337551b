"""Graphs of typed nodes and edges for `bench.relational`: synthetic ones of published sizes, and real knowledge graphs.

Nodes are sorted by type and edges by relation, as by DGL's and PyG's own conversions, so that their layers can skip a
sort. This file imports NumPy and PyTorch only, because DGL's virtual environment reads the same cases.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WIDTH = "BENCH_RELATIONAL_WIDTH"
"""Environment variable with another width of features and results than 64, for all processes of a benchmark."""

FEATURES = int(os.environ.get(WIDTH, "64"))

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a graph as printed in Table 3 of Hector (Wu et al., ASPLOS 2024).

    `inverses`: half of the relations are the inverses of the other half, as in DGL's RDF graphs.
    """

    nodes: int
    node_types: int
    edges: int
    relations: int
    inverses: bool


SYNTHETIC = {
    "aifb": Shape(7_300, 7, 49_000, 104, True),
    "mutag": Shape(27_000, 5, 148_000, 50, True),
    "bgs": Shape(95_000, 27, 673_000, 122, True),
    "biokg": Shape(94_000, 5, 4_800_000, 51, False),
    "tiny": Shape(300, 3, 1_500, 8, True),
    "am": Shape(1_900_000, 7, 5_700_000, 108, True),
    "mag": Shape(1_900_000, 4, 21_000_000, 4, False),
    "wikikg2": Shape(2_500_000, 1, 16_000_000, 535, False),
}
"""Synthetic graphs, named by the graph that has their size; `tiny` is for trying things out."""

ON_DEMAND = ("tiny", "am", "mag", "wikikg2")
"""Graphs that are measured only if they are named."""

REAL = {"rdf_aifb": "rdf_aifb.npz", "fb15k_237": "fb15k_237.npz", "wn18rr": "wn18rr.npz"}
"""Files of real graphs, which have one node type, and get the inverse of every relation."""

GRAPHS = (*SYNTHETIC, *REAL)


@dataclass(frozen=True, slots=True)
class Case:
    """A graph with the inputs of a layer: N nodes, E edges, T node types, R relations.

    x [N, FEATURES] and norm [E] are float32, indices int64. norm is 1 / (edges of the same relation into the same
    node). ends [R, 2] are the node types that a relation connects, counts [T] the numbers of nodes of each type.
    """

    x: Tensor
    y: Tensor
    src: Tensor
    dst: Tensor
    etype: Tensor
    ntype: Tensor
    norm: Tensor
    ends: Tensor
    counts: Tensor

    @property
    def num_relations(self) -> int:
        return self.ends.size(0)

    @property
    def num_node_types(self) -> int:
        return self.counts.size(0)

    @property
    def arrays(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in Case.__slots__}

    @property
    def first_nodes(self) -> list[int]:
        """[T + 1]: the number of the first node of each type, then the number of all nodes."""
        return [0, *self.counts.cumsum(0).tolist()]

    @property
    def first_edges(self) -> list[int]:
        """[R + 1]: the number of the first edge of each relation, then the number of all edges."""
        return [0, *torch.bincount(self.etype, minlength=self.num_relations).cumsum(0).tolist()]

    @property
    def compaction(self) -> float:
        """Unique pairs (source, relation) over edges: Hector's entity compaction ratio."""
        return torch.unique(self.src * self.num_relations + self.etype).numel() / self.src.numel()

    def by_relation(self) -> list[Tensor]:
        """The edges of each relation, [2, edges], by the numbers of nodes within their types."""
        first, bounds, types = self.first_nodes, self.first_edges, self.ends.tolist()
        both = torch.stack([self.src, self.dst])
        return [
            both[:, bounds[r] : bounds[r + 1]] - torch.tensor([[first[s]], [first[d]]], device=both.device)
            for r, (s, d) in enumerate(types)
        ]


def case_of(arrays: Mapping[str, Tensor]) -> Case:
    """The case whose `arrays` these are, among others."""
    return Case(**{name: arrays[name] for name in Case.__slots__})


def save(case: Case, path: str | Path) -> None:
    arrays: dict[str, Any] = {name: value.numpy() for name, value in case.arrays.items()}
    np.savez(path, **arrays)


def kept(name: str, folder: Path) -> Case:
    """The case of `make`, from a file of the temporary folder if an earlier process made it."""
    path = kept_path(f"{name}-{FEATURES}.npz")
    if not path.is_file():
        partial = path.with_name(f"{os.getpid()}-{path.name}")
        save(make(name, folder), partial)
        partial.replace(path)
    with np.load(path) as arrays:
        return case_of({name: torch.from_numpy(arrays[name]) for name in Case.__slots__})


def kept_path(name: str) -> Path:
    """Where a graph that takes seconds to make is kept for the other processes of benchmarks."""
    folder = Path(tempfile.gettempdir()) / f"graphweave-bench-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder / name


def missing(name: str, folder: Path) -> str | None:
    """Why a graph cannot be made; None if it can."""
    if name not in REAL or (folder / REAL[name]).is_file():
        return None
    return f"{folder / REAL[name]} is absent"


def make(name: str, folder: Path, seed: int = 0) -> Case:
    if name in SYNTHETIC:
        counts, ends, src, dst, etype = synthetic(SYNTHETIC[name], seed)
    else:
        counts, ends, src, dst, etype = _real(folder / REAL[name])
    order = np.lexsort((src, dst, etype))
    src, dst, etype = src[order], dst[order], etype[order]
    nodes = int(counts.sum())
    _, which, times = np.unique(dst * len(ends) + etype, return_inverse=True, return_counts=True)
    generator = torch.Generator().manual_seed(seed)
    return Case(
        x=torch.randn(nodes, FEATURES, generator=generator),
        y=torch.randint(FEATURES, (nodes,), generator=generator),
        src=torch.from_numpy(src),
        dst=torch.from_numpy(dst),
        etype=torch.from_numpy(etype),
        ntype=torch.from_numpy(np.repeat(np.arange(len(counts)), counts)),
        norm=torch.from_numpy((1.0 / times[which]).astype(np.float32)),
        ends=torch.from_numpy(ends),
        counts=torch.from_numpy(counts),
    )


def _zipf(total: int, parts: int) -> Index:
    """Sizes proportional to 1 / rank, largest first, at least 1, that add up to `total`."""
    share = 1.0 / np.arange(1, parts + 1)
    sizes: Index = np.maximum(1, np.floor(total * share / share.sum())).astype(np.int64)
    sizes[0] += total - sizes.sum()
    return sizes


def synthetic(shape: Shape, seed: int) -> tuple[Index, Index, Index, Index, Index]:
    """Node counts, ends of relations, sources, destinations and relations of edges.

    Sizes of node types and of relations follow Zipf's law. Each relation connects two random node types, which have at
    least 8 pairs of nodes for each of its edges if possible. It has no duplicate edges. Both ends of an edge are drawn
    from a power law over the type's nodes, which are ranked at random.
    """
    random = np.random.default_rng(seed)
    counts = random.permutation(_zipf(shape.nodes, shape.node_types))
    first = np.r_[0, counts.cumsum()]
    rank = [random.permutation(count) for count in counts]
    drawn, edges = (shape.relations // 2, shape.edges // 2) if shape.inverses else (shape.relations, shape.edges)
    sizes = random.permutation(_zipf(edges, drawn))
    room = counts[:, None] * counts[None, :]
    ends, parts = [], []
    for size in sizes:
        fitting = np.argwhere(room >= 8 * size)
        s, d = fitting[random.integers(len(fitting))] if len(fitting) else np.argwhere(room == room.max())[0]
        keys = _pairs(int(size), int(counts[s]), int(counts[d]), random)
        ends.append((s, d))
        parts.append((first[s] + rank[s][keys // counts[d]], first[d] + rank[d][keys % counts[d]]))
    if shape.inverses:
        ends += [(d, s) for s, d in ends]
        parts += [(dst, src) for src, dst in parts]
    etype = np.repeat(np.arange(len(parts)), [len(src) for src, _ in parts])
    src, dst = (np.concatenate([part[end] for part in parts]) for end in (0, 1))
    return counts, np.array(ends, dtype=np.int64), src, dst, etype


def _pairs(size: int, rows: int, columns: int, random: np.random.Generator) -> Index:
    """`size` different numbers row * columns + column. Low rows and columns are frequent (density ~ 1 / sqrt)."""
    size = min(size, rows * columns)
    keys: Index = np.empty(0, dtype=np.int64)
    for power in [2] * 20 + [1] * 200:  # once the frequent pairs are used up, uniform ones fill the rest
        if len(keys) >= size:
            break
        more = 2 * (size - len(keys)) + 8
        row, column = ((random.random(more) ** power * count).astype(np.int64) for count in (rows, columns))
        keys = np.unique(np.r_[keys, row * columns + column])
    return random.permutation(keys)[:size]


def _real(path: Path) -> tuple[Index, Index, Index, Index, Index]:
    """The same arrays as `synthetic`, from a file. All splits of a knowledge graph are joined; inverses follow."""
    with np.load(path) as arrays:
        parts = [""] if "head" in arrays.files else ["train_", "valid_", "test_"]
        head, rel, tail = (
            np.concatenate([arrays[part + key] for part in parts]).astype(np.int64) for key in ("head", "rel", "tail")
        )
        nodes, relations = int(arrays["num_nodes"]), len(arrays["rel_names"])
    ends = np.zeros((2 * relations, 2), dtype=np.int64)
    return np.array([nodes]), ends, np.r_[head, tail], np.r_[tail, head], np.r_[rel, rel + relations]
