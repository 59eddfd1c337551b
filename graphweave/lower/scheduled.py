"""What becomes of a user's schedule: which of its fields a kernel takes, and why it does not take the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphweave.core.errors import ScheduleError
from graphweave.core.schedule import CPU_FIELDS, GPU_FIELDS, Schedule
from graphweave.ir.loop.nodes import Edges, Kernel, TileGram, TileMatMul, Tiles
from graphweave.ir.loop.walk import csrs_around, statements
from graphweave.lower.feature_tiles import NotTiled, feature_tiles
from graphweave.lower.options import Target

_INSTEAD = {"cpp": "Move the tensors to a GPU, or use fields of the CPU", "triton": "Use gpu_* fields"}


_OF_EDGES = ("walk", "prefetch", "feature_tile", "source_partitions", "edge_order")
"""Fields that say how a kernel goes along its edges."""


def scheduled(kernel: Kernel, schedule: Schedule, target: Target, gathers: bool) -> tuple[Kernel, dict[str, str]]:
    """`kernel` rewritten as `schedule` says, and the fields that it does not take, each with the reason.

    `gathers`: its edges read rows of the other end of a map.
    """
    refused = _not_taken(kernel, schedule, target)
    if not gathers:
        why = "the kernel gathers no rows along its edges"
        refused.update((name, why) for name in ("source_partitions", "edge_order") if name in schedule.given)
    if schedule.feature_tile is not None and "feature_tile" not in refused:
        try:
            kernel = feature_tiles(kernel, schedule.feature_tile)
        except NotTiled as why:
            refused["feature_tile"] = str(why)
    return kernel, refused


def _not_taken(kernel: Kernel, schedule: Schedule, target: Target) -> dict[str, str]:
    return {name: reason for name in schedule.given if (reason := _reason(name, kernel, target)) is not None}


def check_taken(schedule: Schedule, target: Target, refusals: Iterable[Mapping[str, str]]) -> None:
    """ScheduleError if no kernel of a function takes any of the fields, or none takes a field that it could.

    `refusals` are those of each kernel.
    """
    told = list(refusals)
    wrong = GPU_FIELDS if target == "cpp" else CPU_FIELDS
    mine = [name for name in schedule.given if name not in wrong]
    if schedule.given and not mine:
        where = "a CPU" if target == "cpp" else "a GPU"
        raise ScheduleError(
            f"Schedule: expected a field that says something to {where}, where the tensors lie (got {schedule!r}). "
            f"{_INSTEAD[target]}."
        )
    for name in mine:
        if all(name in refused for refused in told):
            reasons = "; ".join(dict.fromkeys(refused[name] for refused in told))
            value = getattr(schedule, name)
            raise ScheduleError(
                f"Schedule: no kernel of the function can take {name}={value!r}: {reasons}. Leave it out, or change it."
            )


def _reason(name: str, kernel: Kernel, target: Target) -> str | None:
    if name in GPU_FIELDS and target == "cpp":
        return "the kernel runs on a CPU"
    if name in CPU_FIELDS and target == "triton":
        return "the kernel runs on a GPU"
    walks, products, nested = walks_edges(kernel), _multiplies(kernel), _nested(kernel)
    if name in _OF_EDGES and not walks:
        return "the kernel walks no edges"
    if name in ("walk", "chunks", "feature_tile", "source_partitions", "edge_order") and nested:
        return "a push that multiplies what it folds goes by blocks of its own size"
    if name == "product_tile" and (not products or nested):
        return "the kernel multiplies no tiles of rows or edges whose size could be chosen"
    if name in ("walk", "gpu_rows", "gpu_edges") and target == "triton" and (products or kernel.tile or nested):
        return "a kernel with products of matrices takes rows and edges as the products need them"
    return None


def walks_edges(kernel: Kernel) -> bool:
    """Whether the kernel goes along a map."""
    return any(isinstance(s, Edges | Tiles) for s in statements(kernel.body))


def _multiplies(kernel: Kernel) -> bool:
    return any(isinstance(s, TileMatMul | TileGram) for s in statements(kernel.body))


def _nested(kernel: Kernel) -> bool:
    return any(around is not None for around in csrs_around(kernel).values())
