"""The result of a user's schedule: a kernel rewritten by it, the fields it does not take, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphweave.core.errors import ScheduleError
from graphweave.core.options import Options, Target
from graphweave.core.schedule import CPU_FIELDS, EDGE_FIELDS, GPU_FIELDS, Schedule
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import csrs_around, mapped, statements
from graphweave.ir.message.infer import numel
from graphweave.lower.divide import SLOTS
from graphweave.lower.feature_tiles import FeatureTiles, NotTiled, feature_tiles
from graphweave.lower.row_order import in_row_order
from graphweave.lower.source_partitions import folds_edges, partitioned

_INSTEAD = {"cpp": "Move the tensors to a GPU, or use fields of the CPU", "triton": "Use gpu_* fields"}

_TILES = ("feature_tile", "register_tile")

_LEAST_TILE = 64
"""The compiler's own tiles have at least this many features, since each goes through the graph again."""

_OF_A_CSR = ("walk", "row_order", "edge_order", "source_partitions")
"""Fields that a kernel does not take whose rows have equally many edges, one after the other, or that walks items."""

_NOT_NESTED = ("walk", "row_order", "edge_order", "source_partitions", *_TILES, "unroll", "chunks")
"""Fields that a fused push does not take."""

_FOLDS = (
    "the kernel folds its edges into rows, and each run of a row's edges along the curve would have a partial result: "
    "give source_partitions too"
)

_GROUPED = "the kernel folds edges into rows, or multiplies them with matrices, and needs them grouped"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A kernel by a user's schedule.

    `whole` is without tiles and orders of rows: its long rows are divided. `pieces` are the kernels that run in place
    of `kernel` where every row is cut into pieces. `taken` is the schedule without the fields `not_taken`, for what is
    decided when the kernel is launched.
    """

    kernel: loop.Kernel
    whole: loop.Kernel
    pieces: tuple[loop.Kernel, ...]
    taken: Schedule
    not_taken: Mapping[str, str]


def scheduled(kernel: loop.Kernel, options: Options, gathers: bool, shape: Sequence[int]) -> Scheduled:
    """`kernel` rewritten as the schedule of `options` says. Where that says nothing of tiles, wide rows have tiles too.

    `gathers`: its edges read rows of the other end of a map. `shape` are the feature dimensions of its results.
    """
    schedule, target = options.schedule, options.target
    refused = {name: why for name in schedule.given if (why := _reason(name, kernel, schedule, target, gathers))}
    taken = _without(schedule, refused)
    whole = _hinted(kernel, taken)
    if taken.in_pieces:
        made, untiled = _tiled(partitioned(whole), taken, shape)
        kernel, pieces = whole, made
    else:
        (kernel,), untiled = _tiled((whole,), taken, shape)
        pieces = ()
        if options.accumulators is not None and not any(name in schedule.given for name in _TILES):
            kernel = _narrowed(whole, options.accumulators, shape) if gathers and not _nested(whole) else whole
    if taken.row_order not in (None, "given") and not taken.in_pieces:
        kernel = in_row_order(kernel)
    return Scheduled(kernel, whole, pieces, _without(taken, untiled), refused | untiled)


def _without(schedule: Schedule, refused: Mapping[str, str]) -> Schedule:
    return replace(schedule, **dict.fromkeys(refused)) if refused else schedule


def _hinted(kernel: loop.Kernel, schedule: Schedule) -> loop.Kernel:
    """`kernel` with vectors, unrolled loops over edges and partial results of folds as `schedule` says."""

    def statement(stmt: loop.Stmt) -> loop.Stmt:
        stmt = mapped(stmt, lambda e: e, statement)
        if isinstance(stmt, loop.Edges) and schedule.unroll is not None:
            return replace(stmt, unroll=schedule.unroll)
        if isinstance(stmt, loop.FoldLanes) and schedule.rfactor is not None:
            return replace(stmt, parts=schedule.rfactor)
        return stmt

    if schedule.unroll is not None or schedule.rfactor is not None:
        kernel = replace(kernel, body=tuple(map(statement, kernel.body)))
    return kernel if schedule.vector_bytes is None else replace(kernel, vectors=schedule.vector_bytes)


def _tiled(
    kernels: tuple[loop.Kernel, ...], schedule: Schedule, shape: Sequence[int]
) -> tuple[tuple[loop.Kernel, ...], dict[str, str]]:
    """Those of `kernels` that walk edges in the tiles of `schedule`, and the fields that they cannot take, with why."""
    tiles, made, refused = FeatureTiles(), kernels, dict[str, str]()
    for name in [name for name in _TILES if name in schedule.given]:
        if name == "feature_tile":
            wanted = replace(tiles, around=schedule.feature_tile)
        else:
            wanted = replace(tiles, within=schedule.register_tile)
        try:
            made = tuple(feature_tiles(k, wanted, shape) if _walks_rows(k) else k for k in kernels)
        except NotTiled as why:
            refused[name] = str(why)
        else:
            tiles = wanted
    return made, refused


def _narrowed(kernel: loop.Kernel, most: int, shape: Sequence[int]) -> loop.Kernel:
    """`kernel` in the widest tiles of features of which a row's accumulators have at most `most` bytes, if it needs and
    can have such tiles, and an edge computes at most a quarter as much for every tile anew as for the tile itself."""
    arrays = [(numel(s.shape), s.dtype.itemsize) for s in statements(kernel.body) if isinstance(s, loop.Alloc)]
    width = max((size for size, _ in arrays), default=0)
    each = sum(itemsize for size, itemsize in arrays if size == width)
    if width * each <= most:
        return kernel
    tile = max((n for n in range(1, most // each + 1) if width % n == 0), default=0)
    if tile < max(_LEAST_TILE, 4 * _repeated(kernel, width)):
        return kernel
    try:
        return feature_tiles(kernel, FeatureTiles(around=tile), shape)
    except NotTiled:
        return kernel


def _repeated(kernel: loop.Kernel, width: int) -> int:
    """Numbers that an edge computes for every tile anew: those of folds, and of loops over other than all features."""
    count = 0
    for walk in (s for s in statements(kernel.body) if isinstance(s, loop.Edges)):
        for stmt in statements(walk.body):
            if isinstance(stmt, loop.Lanes | loop.FoldLanes):
                size = numel([extent for _, extent in stmt.lanes])
                count += size if size != width or isinstance(stmt, loop.FoldLanes) else 0
    return count


def _walks_rows(kernel: loop.Kernel) -> bool:
    """Whether the kernel goes along the edges of rows or of pieces of rows, and does not fold pieces."""
    return any(csr.name != SLOTS for csr in kernel.csrs)


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
            f"Schedule: expected a field for {where}, where the tensors lie (got {schedule!r}). {_INSTEAD[target]}."
        )
    for name in mine:
        if all(name in refused for refused in told):
            reasons = "; ".join(dict.fromkeys(refused[name] for refused in told))
            value = getattr(schedule, name)
            raise ScheduleError(
                f"Schedule: no kernel of the function can take {name}={value!r}: {reasons}. Leave it out, or change it."
            )


def _reason(name: str, kernel: loop.Kernel, schedule: Schedule, target: Target, gathers: bool) -> str | None:
    """Why the kernel does not take the field; tiles may be refused later."""
    if name in GPU_FIELDS and target == "cpp":
        return "the kernel runs on a CPU"
    if name in CPU_FIELDS and target == "triton":
        return "the kernel runs on a GPU"
    products, nested = _multiplies(kernel), _nested(kernel)
    if name in EDGE_FIELDS and not walks_edges(kernel):
        return "the kernel walks no edges"
    if name in _OF_A_CSR and any(csr.positions is not None for csr in kernel.csrs):
        return "each row of the kernel has equally many edges, which lie one after the other"
    if name in _OF_A_CSR and kernel.items is not None:
        return "the kernel walks one graph for each item of a batch"
    if name in _NOT_NESTED and nested:
        return "a push that multiplies what it folds goes by blocks of its own size"
    if not gathers and (
        name in ("source_partitions", "edge_order") or (name == "row_order" and schedule.row_order == "locality")
    ):
        return "the kernel gathers no rows along its edges"
    if name == "edge_order" and schedule.edge_order == "hilbert" and schedule.source_partitions is None:
        return _FOLDS if folds_edges(kernel) else None
    if name == "row_order" and (products or kernel.tile) and not (schedule.in_pieces and gathers):
        return "the kernel multiplies matrices for tiles of neighbouring rows or edges"
    if name == "edge_format" and walks_edges(kernel) is (schedule.edge_format == "coo"):
        return _GROUPED if schedule.edge_format == "coo" else "the kernel computes no values of edges"
    if name == "rfactor" and not _reduces(kernel, schedule.rfactor):
        return f"the kernel reduces no {schedule.rfactor} features or more to a number"
    if name == "vector_bytes" and not any(isinstance(s, loop.Lanes | loop.FoldLanes) for s in statements(kernel.body)):
        return "the kernel has no loop over features"
    if name == "product_tile" and (not products or nested):
        return "the kernel multiplies no tiles of rows or edges whose size could be chosen"
    if name in ("walk", "gpu_rows", "gpu_edges") and target == "triton" and (products or kernel.tile or nested):
        return "a kernel with products of matrices takes rows and edges as the products need them"
    return None


def walks_edges(kernel: loop.Kernel) -> bool:
    """Whether the kernel goes along a map."""
    return any(isinstance(s, loop.Edges | loop.Tiles) for s in statements(kernel.body))


def _reduces(kernel: loop.Kernel, parts: int | None) -> bool:
    folds = (s for s in statements(kernel.body) if isinstance(s, loop.FoldLanes))
    return any(parts is not None and numel([extent for _, extent in s.lanes]) >= parts for s in folds)


def _multiplies(kernel: loop.Kernel) -> bool:
    return any(isinstance(s, loop.TileMatMul | loop.TileGram) for s in statements(kernel.body))


def _nested(kernel: loop.Kernel) -> bool:
    return any(around is not None for around in csrs_around(kernel).values())
