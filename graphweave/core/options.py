"""Numbers and switches by which schedules and kernels of a target differ."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from graphweave.core.kernel_schedules import KernelSchedules
from graphweave.core.schedule import COMPILERS_CHOICE, Schedule

WIDEST = 512
"""C++ kernels multiply by matrices of types with at most this many rows and columns."""

Target: TypeAlias = Literal["cpp", "triton"]


@dataclass(frozen=True, slots=True)
class Options:
    """A gathered row is worth sharing between pushes if it has at least `wide` elements. An edge may keep values of at
    most `stash_width` elements from one pass over a row's edges to the next. Rows of at least `prefetch_bytes` are
    prefetched `prefetch_distance` edges ahead, if that is not 0. Matrix products on edges are computed in tiles of at
    most `tile` edges (`typed_tile` if each row has its own matrix); a product's row may be kept for the next pass if it
    has at most `stash_product` elements.

    Rows whose accumulators have more than `accumulators` bytes are computed in tiles of features, if that is not None.

    `online`: whether a softmax's maximum and sums share a pass in tiles of at most `online_tile` edges; "auto" does so
    where a second pass would gather the same wide rows again.

    `equal_runs`: whether a kernel whose rows have equally many edges, one after the other, computes where they are.
    Otherwise they have a CSR, as all edges.

    `items`: whether a kernel for a batch whose items have one graph walks the map of one item. Otherwise the batch has
    a map of its own.

    `row_products`: whether products with one matrix for all rows are members of regions, computed for tiles of rows
    of at most `row_tile`, whose arrays together have at most `tile_bytes`.

    Kernels compute typed products if no matrix has more than `typed_width` rows or columns. A gram that takes registers
    for more than `typed_gram` elements has a kernel of its own. With `typed_operand`, operands of more elements or of
    several diagonal blocks are read from memory, and so are all matrices. None means no bound.

    Narrow rows that a kernel gathers along one map are packed into rows of at most `packed_bytes`, a cache line, if
    that is not 0.

    Without `fuse` every node of a program is computed by itself, and its result is stored.

    With `chunks`, chains of row-wise steps run for chunks of rows (`lower/row_chains.py`).

    With `standalone`, nothing is left to PyTorch that a kernel can compute, however little it is.

    `schedule` is the user's, whose fields the numbers above follow where it has them (`options_for`). `schedules` are
    those that the user gives to some kernels by name: `of_kernel` makes one of them the `schedule` of its kernel.

    `target` is the language in which kernels are printed, `device` where their tensors lie.
    """

    wide: int = 8
    stash_width: int = 32
    prefetch_bytes: int = 16
    prefetch_distance: int = 16
    accumulators: int | None = 1 << 10
    tile: int = 32
    typed_tile: int = 64
    stash_product: int = 256
    online: Literal["auto", "always", "never"] = "auto"
    online_tile: int = 32
    equal_runs: bool = True
    items: bool = True
    row_products: bool = True
    row_tile: int | None = None
    tile_bytes: int = 1 << 16
    typed_width: int | None = WIDEST
    typed_gram: int | None = None
    typed_operand: int | None = None
    packed_bytes: int = 64
    fuse: bool = True
    chunks: bool = False
    standalone: bool = False
    schedule: Schedule = COMPILERS_CHOICE
    schedules: KernelSchedules | None = None
    target: Target = "cpp"
    device: str = "cpu"


def options_for(target: Target, device: str = "cpu", schedule: Schedule = COMPILERS_CHOICE) -> Options:
    """The choices for a target, those of `schedule` before the compiler's own.

    In Triton an edge keeps nothing from one pass to the next, which computes it again: the rows that it needs are in a
    cache by then, kept values would not be. The vendor's library computes products of rows. Wide operands of typed
    products are read from memory, as a program holds what it multiplies in registers.
    """
    if target == "cpp":
        return _with(Options(), schedule)
    return Options(
        stash_width=0, accumulators=None, stash_product=0, online="never", equal_runs=False, items=False,
        row_products=False, typed_width=None, typed_gram=1 << 12, typed_operand=256, packed_bytes=0, target=target,
        device=device, schedule=schedule,
    )  # fmt: skip


def by_schedule(options: Options, schedule: Schedule | None) -> Options:
    """`options`, which have no schedule of a user or that of the other half, with `schedule`, for all kernels or for
    those whose schedule is sought; unchanged for None."""
    if schedule is None:
        return options
    if options.schedules is not None:
        return replace(options, schedules=options.schedules.with_found(schedule))
    return _of_all(options, schedule)


def _of_all(options: Options, schedule: Schedule) -> Options:
    own = options_for(options.target, options.device, schedule)
    return replace(own, fuse=options.fuse, chunks=options.chunks, standalone=options.standalone)


def of_kernel(options: Options, kernel: str, lines: Collection[str]) -> Options:
    """The options of the kernel `kernel`, which computes `lines`, if its schedule is chosen by name."""
    found = options.schedules.naming(kernel, lines) if options.schedules is not None else []
    return _of_all(options, found[0][1]) if found else options


def _with(options: Options, schedule: Schedule) -> Options:
    if schedule.prefetch is not None:
        options = replace(options, prefetch_distance=schedule.prefetch)
    if schedule.product_tile is not None:
        size = schedule.product_tile
        options = replace(options, tile=size, typed_tile=size, row_tile=size)
    return replace(options, schedule=schedule)
