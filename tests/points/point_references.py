"""Near, far and periodic points by comparing all with all, in float64."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def squares(y: Tensor, x: Tensor) -> Tensor:
    """Squares of distances [len(y), len(x)], added up in the order of the dims as the native code does."""
    out = torch.zeros(len(y), len(x), dtype=torch.float64)
    for d in range(x.shape[1]):
        out += (x[:, d].double()[None] - y[:, d].double()[:, None]) ** 2
    return out


def same_set(batch_y: Tensor | None, batch_x: Tensor | None, shape: tuple[int, int]) -> Tensor:
    """Whether y and x are of one set."""
    y = torch.zeros(shape[0], dtype=torch.int64) if batch_y is None else batch_y
    x = torch.zeros(shape[1], dtype=torch.int64) if batch_x is None else batch_x
    return y[:, None] == x[None]


def knn(x: Tensor, y: Tensor, k: int, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """Of equally far points the first, since the sort is stable."""
    far = squares(y, x)
    meant = same_set(batch_y, batch_x, (len(y), len(x)))
    order = torch.where(meant, far, torch.inf).sort(dim=1, stable=True).indices[:, :k]
    rows = torch.arange(len(y))[:, None].expand_as(order)
    kept = meant.gather(1, order)
    return torch.stack([rows[kept], order[kept]])


def radius(x: Tensor, y: Tensor, r: float, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    near = (squares(y, x) <= r * r) & same_set(batch_y, batch_x, (len(y), len(x)))
    return near.nonzero().T


def fps(x: Tensor, start: int, count: int) -> Tensor:
    nearest = torch.full((len(x),), torch.inf, dtype=torch.float64)
    chosen = [start]
    while len(chosen) < count:
        nearest = torch.minimum(nearest, squares(x[chosen[-1] :][:1], x)[0])
        nearest[chosen[-1]] = -1
        chosen.append(int((nearest == nearest.max()).int().argmax()))
    return torch.tensor(chosen[:count], dtype=torch.int64)


def neighbours(pos: Tensor, cutoff: float, cell: Tensor, periodic: list[bool], reach: int) -> tuple[Tensor, Tensor]:
    """Pairs and shifts of one system, of all images up to `reach` cells away, sorted."""
    pos, cell = pos.double(), cell.double()
    ranges = [range(-reach, reach + 1) if repeats else (0,) for repeats in periodic]
    found = []
    apart = pos[None, :] - pos[:, None]
    for shift in itertools.product(*ranges):
        moved = sum((n * row for n, row in zip(shift, cell, strict=True)), torch.zeros_like(cell[0]))
        far = sum(column**2 for column in (apart + moved).unbind(2))
        near = torch.as_tensor(far) <= cutoff * cutoff
        if not any(shift):
            near.fill_diagonal_(False)
        found += [(int(i), int(j), *shift) for i, j in near.nonzero()]
    table = torch.tensor(sorted(found), dtype=torch.int64).reshape(-1, 2 + len(periodic))
    return table[:, :2].T, table[:, 2:]
