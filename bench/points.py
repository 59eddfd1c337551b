"""How fast points are searched, against SciPy's tree with all cores, scikit-learn, and libraries of neighbour lists.

    python -m bench.points [--points 1000 100000] [--repeats 7] [--threads 2] [--out FILE] [--resume]

`knn` and `radius` are timed with the building of the tree, on points that are spread evenly in 3 dims (about 16
neighbours within the radius), and `knn` also in 8 dims and, for few points, in 64. SciPy answers by `query` and
`query_ball_point` with `workers=-1`, whose lists are joined to one array as a graph needs it, and in the other way by
`query_pairs`, which uses one core. `fps` has no peer that is as easily installed; the plain loop in PyTorch stands for
it. Periodic neighbours are those of atoms in a skewed cell, about 50 for each, against ASE, matscipy and vesin where
these are installed. Results are compared before anything is timed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from bench.case import Bench, Case, Check, Peers
from bench.runner import run
from bench.steps import Result, Step
from graphweave.points import fps, knn_graph, neighbours, radius_graph

Systems: TypeAlias = "dict[str, Callable[[], Any]]"
K = 16


def knn_systems(x: Tensor) -> Systems:
    a = x.numpy()
    return {
        "graphweave": lambda: knn_graph(x, K, loop=True)[0].view(-1, K),
        "scipy": lambda: cKDTree(a).query(a, K, workers=-1)[1],
        "sklearn": lambda: NearestNeighbors(n_neighbors=K, n_jobs=-1).fit(a).kneighbors(a, return_distance=False),
    }


def radius_systems(x: Tensor, r: float) -> Systems:
    a = x.numpy()

    def joined() -> Any:
        lists = cKDTree(a).query_ball_point(a, r, workers=-1, return_sorted=True)
        rows = np.repeat(np.arange(len(a)), [len(found) for found in lists])
        return np.stack([np.concatenate(lists).astype(np.int64), rows])

    def sparse() -> Any:
        near = NearestNeighbors(radius=r, n_jobs=-1).fit(a).radius_neighbors_graph(a)
        return np.stack([near.indices, np.repeat(np.arange(len(a)), np.diff(near.indptr))])

    return {
        "graphweave": lambda: radius_graph(x, r, loop=True),
        "scipy": joined,
        "scipy, pairs i < j": lambda: cKDTree(a).query_pairs(r, output_type="ndarray"),
        "sklearn": sparse,
    }


def far_systems(x: Tensor, ratio: float) -> Systems:
    def plain() -> Tensor:
        nearest, chosen = torch.full((len(x),), torch.inf, dtype=x.dtype), [0]
        for _ in range(int(len(x) * ratio) - 1):
            nearest = torch.minimum(nearest, (x - x[chosen[-1]]).square().sum(1))
            chosen.append(int(nearest.argmax()))
        return torch.tensor(chosen)

    return {"graphweave": lambda: fps(x, ratio=ratio, random_start=False), "torch": plain}


def periodic_systems(pos: Tensor, cell: Tensor, cutoff: float) -> Systems:
    found: Systems = {"graphweave": lambda: neighbours(pos, cutoff, cell).pairs}
    at, box = pos.numpy(), cell.numpy()
    if find_spec("ase") is not None:
        from ase.neighborlist import primitive_neighbor_list

        found["ase"] = lambda: np.stack(primitive_neighbor_list("ijS", (True,) * 3, box, at, cutoff)[:2])
    if find_spec("matscipy") is not None:
        from matscipy.neighbours import neighbour_list

        pbc = np.ones(3, dtype=bool)
        found["matscipy"] = lambda: np.stack(neighbour_list("ijS", cutoff=cutoff, positions=at, cell=box, pbc=pbc)[:2])
    if find_spec("vesin") is not None:
        from vesin import NeighborList

        vesin = NeighborList(cutoff=cutoff, full_list=True)
        found["vesin"] = lambda: np.stack(vesin.compute(points=at, box=box, periodic=True, quantities="ijS")[:2])
    return found


def same_pairs(got: Result, want: Result) -> tuple[float, str]:
    """Error 0 if both are equal tables, or the same pairs in whatever order, or the pairs with i < j alone; else 1."""
    ours, theirs = (np.asarray(one.outputs[0]) for one in (want, got))
    if ours.ndim == 2 and theirs.ndim == 2 and theirs.shape[1] == 2 != ours.shape[1]:
        ours, theirs = ours[:, ours[0] < ours[1]], theirs.T
    equal = np.array_equal(ours, theirs)
    if ours.shape == theirs.shape:
        equal = equal or np.array_equal(_sorted(ours), _sorted(theirs))
    return (0.0 if equal else 1.0), "a pair"


def _sorted(pairs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return pairs[:, np.lexsort(pairs)]


def build(kind: str, count: int) -> Peers:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, dtype=torch.float64, generator=generator)
    few = count if count <= 10_000 else count // 5
    if kind == "knn, 3 dims":
        found = knn_systems(x)
    elif kind.startswith("knn"):
        found = knn_systems(torch.rand(few, int(kind.split()[1]), dtype=torch.float64, generator=generator))
    elif kind == "radius, 3 dims":
        found = radius_systems(x, (16 / count * 3 / (4 * np.pi)) ** (1 / 3))
    elif kind == "fps, a tenth":
        found = far_systems(x[:few], 0.1)
    else:
        shape = torch.tensor([[1.0, 0, 0], [0.4, 0.9, 0], [-0.2, 0.3, 1.1]], dtype=torch.float64)
        cell = shape * (count / 0.1 / float(torch.linalg.det(shape))) ** (1 / 3)  # 0.1 atoms in a cubic angstrom
        found = periodic_systems(x @ cell, cell, (50 / 0.1 * 3 / (4 * np.pi)) ** (1 / 3))
    return {name: partial(_prepared, call) for name, call in found.items()}


def _prepared(call: Step) -> Step:
    return call


KINDS = {
    "knn, 3 dims": ("graphweave", "scipy", "sklearn"),
    "knn, 8 dims": ("graphweave", "scipy", "sklearn"),
    "radius, 3 dims": ("graphweave", "scipy", "scipy, pairs i < j", "sklearn"),
    "fps, a tenth": ("graphweave", "torch"),
    "periodic": ("graphweave", *(name for name in ("ase", "matscipy", "vesin") if find_spec(name) is not None)),
    "knn, 64 dims": ("graphweave", "scipy", "sklearn"),
}
"""Searches, and the peers of each."""


def cases(options: Namespace) -> Iterator[Case]:
    check = Check(0.0, "graphweave", error=same_pairs)
    for count in options.points:
        for kind, peers in KINDS.items():
            if kind != "knn, 64 dims" or count <= 10_000:
                sizes = {"kind": kind, "count": count}
                yield Case(f"{kind}, {count} points", build, peers, check, sizes, {"count": 200})


BENCH = Bench("bench.points", __doc__, cases, {"points": (1_000, 100_000)}, repeats=7)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
