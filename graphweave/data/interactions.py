"""Who chose what: pairs of users and items, of which some are held back to test recommendations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive, read_archive

_LAYOUT = "train_user, train_item, test_user, test_item, num_users and num_items"


@dataclass(frozen=True, slots=True, eq=False)
class Interactions:
    """`train`, `val` and `test` are [2, n] int64: users, and the items that they chose. A user may be in several."""

    train: Tensor
    val: Tensor
    test: Tensor
    num_users: int
    num_items: int
    name: str


def interactions(path: str | Path, *, seed: int = 0) -> Interactions:
    """Pairs from a file of named arrays, read without pickle: `train_user`, `train_item`, `test_user`, `test_item`,
    `num_users`, `num_items`. A tenth of the training pairs, drawn by `seed`, validates. DataError for anything else."""
    file = read_archive(path, _LAYOUT)
    users, items = file.count("num_users"), file.count("num_items")
    train, test = (_pairs(file, part, users, items) for part in ("train", "test"))
    file.tell_unused()
    order = torch.randperm(train.size(1), generator=torch.Generator().manual_seed(seed))
    held = order[: train.size(1) // 10]
    kept = torch.ones(train.size(1), dtype=torch.bool)
    kept[held] = False
    return Interactions(train[:, kept], train[:, ~kept], test, users, items, file.name)


def _pairs(file: Archive, part: str, users: int, items: int) -> Tensor:
    user = file.numbers(f"{part}_user", users, "user", "the file")
    item = file.numbers(f"{part}_item", items, "item", "the file")
    if user.numel() != item.numel() or not user.numel():
        raise DataError(
            f"{file.name}: '{part}_user' and '{part}_item' must have one length, above 0 (got {user.numel()} and"
            f" {item.numel()}). Correct the file."
        )
    return torch.stack([user, item])
