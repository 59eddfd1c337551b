"""`Schedule`: how a kernel walks its edges and features, as data that a user writes and the compiler reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from graphweave.core.errors import ScheduleError
from graphweave.core.schedule_drawing import draw_schedule

Walk = Literal["rows", "edges", "divided"]
RowOrder = Literal["given", "degree", "locality"]
EdgeOrder = Literal["given", "source", "degree", "locality", "hilbert"]
EdgeFormat = Literal["csr", "coo"]

WALKS: tuple[Walk, ...] = get_args(Walk)
ROW_ORDERS: tuple[RowOrder, ...] = get_args(RowOrder)
EDGE_ORDERS: tuple[EdgeOrder, ...] = get_args(EdgeOrder)
EDGE_FORMATS: tuple[EdgeFormat, ...] = get_args(EdgeFormat)
VECTOR_BYTES = (16, 32, 64)
_CHOICES: dict[str, tuple[Any, ...]] = {
    "walk": WALKS, "row_order": ROW_ORDERS, "edge_order": EDGE_ORDERS, "edge_format": EDGE_FORMATS,
    "vector_bytes": VECTOR_BYTES,
}  # fmt: skip

GPU_FIELDS = ("gpu_rows", "gpu_edges", "gpu_warps", "gpu_stages", "gpu_registers")
"""Fields that only a GPU takes."""

CPU_FIELDS = (
    "row_order", "edge_order", "source_partitions", "feature_tile", "register_tile", "rfactor", "vector_bytes",
    "unroll", "prefetch", "product_tile", "threads", "chunks",
)  # fmt: skip
"""Fields that only a CPU takes."""

EDGE_FIELDS = (
    "walk",
    "row_order",
    "edge_order",
    "source_partitions",
    "feature_tile",
    "register_tile",
    "unroll",
    "prefetch",
)
"""Fields that say how a kernel goes along edges that are grouped by their rows."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How kernels are scheduled: FeatGraph's template parameters and feature dimension schedules (Hu et al., 2020,
    sections III-C and IV-A) as one value. None in a field leaves the choice to the compiler, so `Schedule()` chooses
    nothing. docs/schedules.md shows the paper's listings.

    It is given to `graphweave.compile(fn, options={"schedule": Schedule(...)})`, which applies each field to every
    kernel of `fn`, forward and backward, that can take it. A schedule never changes a result beyond the order of sums.
    For one schedule, results have the same bits for any number of threads.

    `repr` evaluates to an equal schedule; `to_dict` and `from_dict` go through JSON.
    Raises ScheduleError for a value that a field cannot have, and for fields that contradict each other.
    """

    walk: Walk | None = None
    """How rows are shared out: "rows" gives each chunk equally many rows, "edges" about equally many rows and edges
    together, "divided" does as "edges" and cuts long rows into pieces that several threads take."""

    edge_format: EdgeFormat | None = None
    """Format of the edges for a kernel that computes values of edges (an SDDMM): "csr" groups them by one of their
    ends, whose row is then read once; "coo" is the list of edges as it is, which needs no format of the graph. Kernels
    that fold edges into rows need them grouped. All kernels of a function have the same."""

    row_order: RowOrder | None = None
    """Order in which rows are computed: "given" is the user's, "degree" begins with the rows that have most edges,
    "locality" is the reverse Cuthill-McKee order, in which rows that gather the same sources are near each other. Long
    rows are not divided in an order other than "given"."""

    edge_order: EdgeOrder | None = None
    """Order of the edges of a row: "given" is the user's, "source" the order of their sources' rows, "degree" begins
    with the edges whose source has most edges, "locality" is the reverse Cuthill-McKee order of the sources. "hilbert"
    visits the edges of all rows along a Hilbert curve over rows and sources (FeatGraph, section III-C.1). A kernel that
    folds edges into rows takes it only with `source_partitions`, whose blocks are then visited along the curve."""

    source_partitions: int | None = None
    """Number of equal ranges of sources that a kernel goes through one after the other, so that the rows gathered from
    one range stay in a cache: FeatGraph's one-dimensional graph partitioning (figure 6). Each row has a partial result
    for each range in which it has edges, and these are folded at the end. With `feature_tile`, a kernel goes through
    all ranges for each tile of features."""

    feature_tile: int | tuple[int, ...] | None = None
    """Features that a kernel computes at a time: it goes through the graph once for each tile of that many, in which
    the gathered rows are narrower, so that more of them stay in a cache (FeatGraph, section III-C.1). A number divides
    the width of the kernel's results, all feature dimensions taken together; a tuple has a number for each feature
    dimension (figure 8)."""

    register_tile: int | None = None
    """Place of the accumulators. Without it a row has accumulators for all its features in memory. With it a row's
    edges are walked once for each tile of that many features, whose accumulators fit into registers. It divides
    `feature_tile`, or the width of the kernel's results."""

    rfactor: int | None = None
    """Number of partial results of a reduction over features, such as the dot product of an edge's ends; a power of
    two from 4 to 64. Feature i goes into the one at i modulo the number, the lanes of vectors compute them side by
    side, and they are folded by halves: TVM's rfactor, and the tree of FeatGraph's figure 4. Without it they are 16, of
    doubles 8, or half of that. All kernels of a function have the same, since they compare what others compute
    again."""

    vector_bytes: int | None = None
    """Upper limit on the bytes of a vector in a loop over features: 16, 32 or 64. The machine's vectors may be
    shorter."""

    unroll: int | None = None
    """Number of edges that are written out in the body of the loop over a row's edges."""

    prefetch: int | None = None
    """Number of edges between the prefetch of a gathered row and its use; 0 prefetches none."""

    product_tile: int | None = None
    """Upper limit on the rows, or edges, that one call of the micro-product multiplies."""

    threads: int | None = None
    """Threads that a kernel runs on, in place of PyTorch's number."""

    chunks: int | None = None
    """Upper limit on the chunks of rows of a kernel; a thread takes one at a time. Totals over all rows are summed
    chunk by chunk, so that their last bits depend on it."""

    gpu_rows: int | None = None
    """Rows that a program on a GPU takes; a power of two. It coarsens a kernel as Hector's factor of coarsening does: a
    program does the work of so many."""

    gpu_edges: int | None = None
    """Edges of each of its rows that a program on a GPU takes in one step; a power of two."""

    gpu_warps: int | None = None
    """Warps of a program on a GPU; a power of two, at most 32."""

    gpu_stages: int | None = None
    """Stages of the software pipeline of a program's loops on a GPU."""

    gpu_registers: int | None = None
    """Upper limit on the registers of a thread on a GPU, from 16 to 255, so that more programs run at once: the bounds
    of launches in Hector's schedules. The rest is spilled to memory."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value not in choices):
                _refuse(name, f"one of {', '.join(map(repr, choices))}", value)
        for name in ("source_partitions", "register_tile", "unroll", "product_tile", "threads", "chunks", "gpu_stages"):
            self._whole(name, 1)
        self._whole("prefetch", 0)
        for name in ("gpu_rows", "gpu_edges", "gpu_warps", "rfactor"):
            value = self._whole(name, 1)
            if value is not None and value & (value - 1):
                _refuse(name, "a power of two, such as 1, 4 or 16", value)
        if self.gpu_warps is not None and self.gpu_warps > 32:
            _refuse("gpu_warps", "at most 32", self.gpu_warps)
        if (registers := self._whole("gpu_registers", 16)) is not None and registers > 255:
            _refuse("gpu_registers", "at most 255", registers)
        if self.rfactor is not None and not 4 <= self.rfactor <= 64:
            _refuse("rfactor", "from 4 to 64", self.rfactor)
        self._check_tiles()
        self._check_orders()

    def _whole(self, name: str, least: int) -> int | None:
        value = getattr(self, name)
        if value is not None and not _is_whole(value, least):
            _refuse(name, f"a whole number from {least} on", value)
        return value

    def _check_tiles(self) -> None:
        tile = self.feature_tile
        sizes = tile if isinstance(tile, tuple) else (tile,)
        if tile is not None and not (sizes and all(_is_whole(size, 1) for size in sizes)):
            _refuse("feature_tile", "a whole number from 1 on, or a tuple of such", tile)
        if tile is None or self.register_tile is None:
            return
        features = math.prod(size for size in sizes if size is not None)
        if self.register_tile >= features or features % self.register_tile:
            _refuse("register_tile", f"a proper divisor of the {features} features of feature_tile", self.register_tile)

    def _check_orders(self) -> None:
        """Refuses `walk` and `row_order` together with fields that already determine how rows are cut and ordered."""
        if self.in_pieces and self.walk is not None:
            why = "source_partitions" if self.source_partitions is not None else "edge_order='hilbert'"
            _refuse("walk", f"None with {why}, which cuts every row", self.walk)
        if self.edge_order == "hilbert" and self.row_order is not None:
            _refuse("row_order", "None with edge_order='hilbert', which orders rows too", self.row_order)
        if self.walk == "divided" and self.row_order not in (None, "given"):
            _refuse(
                "row_order", "'given' with walk='divided', whose pieces are cut from rows as they lie", self.row_order
            )

    @property
    def in_pieces(self) -> bool:
        """Whether every row is cut into pieces that are visited in an order of their own."""
        return self.source_partitions is not None or self.edge_order == "hilbert"

    @property
    def given(self) -> dict[str, Any]:
        """The fields that choose something, with their values."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def __repr__(self) -> str:
        return f"Schedule({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    def to_dict(self) -> dict[str, object]:
        """The fields that choose something, as values that JSON has."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.given.items()}

    def draw(self, *, features: int = 64, dark: bool = False) -> str:
        """SVG of how the schedule walks a small graph, for rows of so many features: the edges that each thread visits
        in their order, the features computed at a time, and the loops in words. `dark` is for dark pages."""
        if not _is_whole(features, 1):
            raise ScheduleError(
                f"Schedule.draw: 'features' must be a whole number from 1 on (got {features!r}). Pass a row's width."
            )
        return draw_schedule(self.given, features, dark=dark)

    def save(self, path: str | Path, *, features: int = 64, dark: bool = False) -> None:
        """Write what `draw` draws to an SVG file."""
        Path(path).write_text(self.draw(features=features, dark=dark), encoding="utf-8")

    @classmethod
    def from_dict(cls, given: Mapping[str, object]) -> Schedule:
        """The schedule that `to_dict` gave. ScheduleError for a name that is no field, or a value a field cannot
        have."""
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


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _refuse(name: str, expected: str, value: object) -> None:
    raise ScheduleError(
        f"Schedule: {name!r} must be {expected} (got {value!r}). Pass such a value, or None for the compiler's choice."
    )
