"""`Schedule`: how a kernel walks its edges and features, as data that a user writes and the compiler reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from graphweave.core.errors import ScheduleError

Walk = Literal["rows", "edges", "divided"]

EdgeOrder = Literal["given", "source", "degree"]

WALKS: tuple[Walk, ...] = get_args(Walk)

EDGE_ORDERS: tuple[EdgeOrder, ...] = get_args(EdgeOrder)

GPU_FIELDS = ("gpu_rows", "gpu_edges", "gpu_warps", "gpu_stages")
"""Fields that say something to a GPU alone."""

CPU_FIELDS = ("feature_tile", "source_partitions", "edge_order", "prefetch", "product_tile", "threads", "chunks")
"""Fields that say something to a CPU alone."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How kernels are scheduled: FeatGraph's template parameters and feature dimension schedules (Hu et al., 2020,
    sections III-C and IV-A) as one value. None in a field leaves the choice to the compiler, so `Schedule()` chooses
    nothing.

    It is given to `graphweave.compile(fn, options={"schedule": Schedule(...)})`, which applies each field to every
    kernel of `fn`, forward and backward, that the field can apply to. A schedule never changes a result beyond the
    order of sums. For one schedule, results have the same bits for any number of threads.

    `repr` evaluates back to an equal schedule; `to_dict` and `from_dict` go through JSON.
    Raises ScheduleError for a value that a field cannot have.
    """

    walk: Walk | None = None
    """How rows are shared out: "rows" gives each chunk equally many rows, "edges" about equally many rows and edges
    together, "divided" does as "edges" and cuts long rows into pieces that several threads take."""

    feature_tile: int | None = None
    """Features that a kernel computes at a time: it goes through the graph once for each tile of so many, in which the
    gathered rows are narrower, so that more of them stay in a cache (FeatGraph, section III-C.1). It divides the width
    of the kernel's results, all feature dimensions taken together."""

    source_partitions: int | None = None
    """Equal ranges of sources that a kernel goes through one after the other, so that the rows gathered from one range
    stay in a cache: FeatGraph's one-dimensional graph partitioning (figure 6). Each row has a result for each range it
    has edges of, and these are folded at last. Edges are in the order "source". With `feature_tile`, all ranges are
    gone through for each tile of features."""

    edge_order: EdgeOrder | None = None
    """Order of the edges of a row: "given" is the user's, "source" that of their sources' rows, "degree" begins with
    those whose source has the most edges."""

    prefetch: int | None = None
    """A gathered row is asked for so many edges before it is read; 0 asks for none."""

    product_tile: int | None = None
    """Rows, or edges, that one call of the micro-product multiplies at once, at most."""

    threads: int | None = None
    """Threads that a kernel runs on, in place of PyTorch's number."""

    chunks: int | None = None
    """Chunks of rows that a kernel is shared out in, at most; a thread takes one at a time. Totals over all rows are
    summed chunk by chunk, so that their last bits depend on it."""

    gpu_rows: int | None = None
    """Rows that a program of a GPU takes; a power of two."""

    gpu_edges: int | None = None
    """Edges of each of its rows that a program of a GPU takes at a step; a power of two."""

    gpu_warps: int | None = None
    """Warps of a program of a GPU; a power of two, at most 32."""

    gpu_stages: int | None = None
    """Stages of the software pipeline of a program's loops on a GPU."""

    def __post_init__(self) -> None:
        if self.walk is not None and self.walk not in WALKS:
            _refuse("walk", f"one of {', '.join(map(repr, WALKS))}", self.walk)
        if self.edge_order is not None and self.edge_order not in EDGE_ORDERS:
            _refuse("edge_order", f"one of {', '.join(map(repr, EDGE_ORDERS))}", self.edge_order)
        if self.source_partitions is not None:
            self._partitions_alone()
        for name in ("feature_tile", "source_partitions", "product_tile", "threads", "chunks", "gpu_stages"):
            self._whole(name, 1)
        self._whole("prefetch", 0)
        for name in ("gpu_rows", "gpu_edges", "gpu_warps"):
            value = self._whole(name, 1)
            if value is not None and value & (value - 1):
                _refuse(name, "a power of two, such as 1, 4 or 16", value)
        if self.gpu_warps is not None and self.gpu_warps > 32:
            _refuse("gpu_warps", "at most 32", self.gpu_warps)

    def _partitions_alone(self) -> None:
        """Partitions say themselves how rows are cut, and in which order their edges are."""
        if self.edge_order not in (None, "source"):
            _refuse("edge_order", "'source' where there are source_partitions", self.edge_order)
        if self.walk is not None:
            _refuse("walk", "None where there are source_partitions, which cut every row", self.walk)

    def _whole(self, name: str, least: int) -> int | None:
        value = getattr(self, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            _refuse(name, f"a whole number from {least} on", value)
        return value

    @property
    def given(self) -> dict[str, Any]:
        """The fields that choose something, with their values."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def __repr__(self) -> str:
        return f"Schedule({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    def to_dict(self) -> dict[str, Any]:
        """The fields that choose something, as values that JSON has."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.given.items()}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Schedule:
        """The schedule that `to_dict` gave. ScheduleError for a name that is no field, or a value it cannot have."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise ScheduleError(
                    f"Schedule: expected fields out of {', '.join(known)} (got {name!r}). Name one of these."
                )
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        return cls(**values)


COMPILERS_CHOICE = Schedule()
"""The schedule that leaves everything to the compiler."""


def _refuse(name: str, expected: str, value: object) -> None:
    raise ScheduleError(
        f"Schedule: {name!r} must be {expected} (got {value!r}). Pass such a value, or None for the compiler's choice."
    )
