"""A process's rank, as its starter says it: torchrun, Slurm's srun, or variables set by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from graphweave.core.errors import DataError

_SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
"""Variables of PyTorch, and those of a process that srun started. A batch script itself has no SLURM_STEP_NUM_TASKS."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Process `rank` of `size`, number `local_rank` on its machine.

    `supervised_by` is the number of the torchrun that watches the process, None for other starters; `local_size` is
    the number of processes that it watches.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int = 1
    supervised_by: int | None = None

    def supervises(self, rank: int) -> bool:
        """Whether process `rank` has the same torchrun, which then ends this process when that one fails."""
        return self.supervised_by is not None and rank // self.local_size == self.supervised_by


def place(environment: Mapping[str, str] = os.environ) -> RankPlace | None:
    """The place of this process; None if it is the only one. DataError for variables that do not go together."""
    names = {name: name for name in _SLURM}
    if not {"RANK", "WORLD_SIZE"} & environment.keys() and _SLURM["WORLD_SIZE"] in environment:
        names = _SLURM
    given = {name: environment[names[name]] for name in names if names[name] in environment}
    if not {"RANK", "WORLD_SIZE"} & given.keys():
        return None
    numbers = {name: _number(names[name], text) for name, text in given.items()}
    for name in ("RANK", "WORLD_SIZE"):
        if name not in numbers:
            other = names["WORLD_SIZE" if name == "RANK" else "RANK"]
            raise DataError(
                f"{names[name]} is not set, but {other} is (got {environment[other]!r}). Set both, or unset both."
            )
    rank, size = numbers["RANK"], numbers["WORLD_SIZE"]
    if not 0 <= rank < size:
        raise DataError(
            f"{names['RANK']} must be from 0 to {names['WORLD_SIZE']} - 1 (got {rank} of {size}). Correct one of them."
        )
    if size == 1:
        return None
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in environment:
            raise DataError(
                f"{name} is not set, so {size} processes ({names['WORLD_SIZE']}) cannot meet (got MASTER_ADDR"
                f" {environment.get('MASTER_ADDR')!r}, MASTER_PORT {environment.get('MASTER_PORT')!r}). Use torchrun,"
                " or set it by the machine of rank 0 and a free port there."
            )
    by_torchrun = "TORCHELASTIC_RUN_ID" in environment and "GROUP_RANK" in environment
    return RankPlace(
        rank, size, numbers.get("LOCAL_RANK", rank),
        _number("LOCAL_WORLD_SIZE", environment.get("LOCAL_WORLD_SIZE", "1")),
        _number("GROUP_RANK", environment["GROUP_RANK"]) if by_torchrun else None,
    )  # fmt: skip


def export(place: RankPlace) -> None:
    """Set the variables that torch.distributed reads."""
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.size), LOCAL_RANK=str(place.local_rank))


def restarts() -> int:
    """How often torchrun has started the ranks again after a failure (--max-restarts)."""
    return _number("TORCHELASTIC_RESTART_COUNT", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise DataError(f"{name} must be a whole number (got {text!r}). Correct it, or unset it.") from error
