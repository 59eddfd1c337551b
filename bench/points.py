"""How fast points are searched, against SciPy's tree with all cores, scikit-learn, and libraries of neighbour lists.

    python -m bench.points [--points 1000 100000] [--repeats 7] [--threads 2] [--out FILE]

`knn` and `radius` are timed with the building of the tree, on points that are spread evenly in 3 dims (about 16
neighbours within the radius), and `knn` also in 8 dims and, for few points, in 64. SciPy answers by `query` and
`query_ball_point` with `workers=-1`, whose lists are joined to one array as a graph needs it, and in the other way by
`query_pairs`, which uses one core. `fps` has no peer that is as easily installed; the plain loop in PyTorch stands for
it. Periodic neighbours are those of atoms in a skewed cell, about 50 for each, against ASE, matscipy and vesin where
these are installed. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from bench.common import arguments, interleaved, ratio_table, save
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


def check(name: str, systems: Systems) -> None:
    """All systems find the same pairs, in whatever order."""
    results = {who: np.asarray(call()) for who, call in systems.items() if "i < j" not in who}
    ours = results.pop("graphweave")
    for who, theirs in results.items():
        same = ours.shape == theirs.shape and (
            np.array_equal(ours, theirs) or np.array_equal(*(r[:, np.lexsort(r)] for r in (ours, theirs)))
        )
        if not same:
            raise AssertionError(f"{name}: {who} finds something else than graphweave")


def cases(count: int) -> dict[str, Systems]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, dtype=torch.float64, generator=generator)
    wide = torch.rand(count, 8, dtype=torch.float64, generator=generator)
    r = (16 / count * 3 / (4 * np.pi)) ** (1 / 3)
    shape = torch.tensor([[1.0, 0, 0], [0.4, 0.9, 0], [-0.2, 0.3, 1.1]], dtype=torch.float64)
    cell = shape * (count / 0.1 / float(torch.linalg.det(shape))) ** (1 / 3)  # 0.1 atoms in a cubic angstrom
    found = {
        "knn, 3 dims": knn_systems(x),
        "knn, 8 dims": knn_systems(wide if count <= 10_000 else wide[: count // 5]),
        "radius, 3 dims": radius_systems(x, r),
        "fps, a tenth": far_systems(x if count <= 10_000 else x[: count // 5], 0.1),
        "periodic": periodic_systems(x @ cell, cell, (50 / 0.1 * 3 / (4 * np.pi)) ** (1 / 3)),
    }
    if count <= 10_000:
        found["knn, 64 dims"] = knn_systems(torch.randn(count, 64, dtype=torch.float64, generator=generator))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--repeats", type=int, default=7)
    options: argparse.Namespace = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {"benchmark": "points", "threads": options.threads, "cases": {}}
    for count in options.points:
        rows = []
        for name, systems in cases(count).items():
            check(name, systems)
            taken = interleaved(systems, repeats=options.repeats, warmup=1)
            ours = taken["graphweave"].median
            found = {who: {"seconds": one.median, "ratio": one.median / ours} for who, one in taken.items()}
            record["cases"][f"{name}, {count} points"] = found
            rows += [[name, who, f"{1e3 * one['seconds']:.2f}", f"{one['ratio']:.2f}x"] for who, one in found.items()]
        ratio_table(f"{count:,} points", ["", "", "ms", "/ graphweave"], rows)
    save(options.out, record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
