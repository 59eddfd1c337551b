"""Typed products summed by row, in Triton: out[v] = sum over edges e with dst(e) = v of scale(e) x[src(e)] w[t(e)].

Nothing of size edges x features is stored. A program has a block of consecutive rows, and nobody else writes to them;
it walks the tiles of `runtime/typed_pairs.py` one after the other: edges of a row and type are summed first, so there
is one product for each pair of type and row, and the rows of a tile are different, so products are added to them where
they lie. No atomics: the order of every sum is that of the tables.

Half types: see `typed.py`. What is summed before it is multiplied is rounded to TF32 there, and so cannot overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.codegen.triton.typed import (
    COLUMNS,
    HEAD,
    TERMS,
    element_names,
    inside,
    masked,
    matrix_names,
    program_names,
    tile,
    tiles,
)
from graphweave.core.types import DType

_SCATTER = """\
def {name}(
    x, w, scale, sums, sources, order, edges, targets, pairs, kinds, tiles, M: tl.constexpr, PRECISION: tl.constexpr
):
    # sums[v, b, j] = sum over edges e of v of scale[e, b] * sum over k of x[src(e), b, k] * w[t(e), b, k, j]
    program = tl.program_id(0).to(tl.int64)
    block = {part}
    b = {b}
    j = {j_from}tl.arange(0, {j_tile})
    for tile in range(tl.load(tiles + block), tl.load(tiles + block + 1)):
        kind = tl.load(kinds + tile)
        pair = tl.load(pairs + tile) + tl.arange(0, M)
        pair_ok = pair < tl.load(pairs + tile + 1)
        begin = tl.load(edges + pair, mask=pair_ok, other=0)
        count = tl.load(edges + pair + 1, mask=pair_ok, other=0) - begin
        longest = tl.max(count, axis=0)
        product = tl.zeros([M, {j_tile}], {acc})
        for step in range(0, {k}, {k_tile}):
            k = step + tl.arange(0, {k_tile})
            row = tl.zeros([M, {k_tile}], {acc})
            for i in range(0, longest):
                edge_ok = i < count
                source = tl.load(sources + begin + i, mask=edge_ok, other=0).to(tl.int64)
                at_x = source[:, None] * {x_width} + (b * {k} + k)[None, :]
                value = tl.load(x + at_x, mask={x_ok}, other=0.0){widen}
{add}
            at_w = {matrix} + {w_k} + {w_j}
            matrix = tl.load(w + at_w{w_ok}){widen}
            product = tl.dot(row, matrix, product, input_precision=PRECISION, out_dtype={acc})
        target = tl.load(targets + pair, mask=pair_ok, other=0).to(tl.int64)
        at_sum = sums + target[:, None] * {out_width} + (b * {j} + j)[None, :]
        ok = {out_ok}
        tl.debug_barrier()  # other threads of this program may have stored what is read here
        tl.store(at_sum, tl.load(at_sum, mask=ok, other=0.0) + product, mask=ok)
"""

_ADD = """\
                row += value"""
_ADD_SCALED = """\
                edge = tl.load(order + begin + i, mask=edge_ok, other=0).to(tl.int64)
                factor = tl.load(scale + {at_scale}, mask=edge_ok, other=0.0){widen}
                row += factor[:, None] * value"""


@dataclass(frozen=True, slots=True)
class ScatterProgram:
    """Which kernel: x [nodes, blocks, k], matrices [types, blocks, k, j], `scales` numbers an edge: 0, 1 or blocks.

    `transposed`: matrices are given as [types, blocks, j, k]. Indices may be int32 or int64.
    """

    blocks: int
    k: int
    j: int
    dtype: DType
    transposed: bool = False
    scales: int = 0

    @property
    def name(self) -> str:
        flags = "_t" * self.transposed + (f"_by_{self.scales}" if self.scales else "")
        return f"typed_scatter_{self.blocks}_{self.k}_{self.j}_{self.dtype.value}{flags}"

    @property
    def programs(self) -> int:
        """Of one block of rows."""
        return self.blocks * tiles(self.j)


def print_scatter(kernel: ScatterProgram) -> str:
    """The module's text, with the function `kernel.name`.

    `sums` [rows + slots, blocks, j] is 0 before, has the type that half types are summed in, and is to be folded;
    `sources` is the row of x at each position, and without scales `scale` is not read; the other tables are those of
    `TypedPairs`. There are `kernel.programs` programs for each block. M is a power of two, 16 at least, and the pairs
    of a tile at most.
    """
    k, j, blocks = kernel.k, kernel.j, kernel.blocks
    j_tile, k_tile = tile(j, COLUMNS), tile(k, TERMS)
    x_ok, w_ok = inside("k", k, k_tile, "[None, :]"), inside("k", k, k_tile, "[:, None]")
    out_ok = inside("j", j, j_tile, "[None, :]")
    elements = element_names(kernel.dtype)
    at_scale = "edge" if kernel.scales == 1 else f"edge * {kernel.scales} + b"
    add = _ADD_SCALED.format(at_scale=at_scale, **elements) if kernel.scales else _ADD
    text = _SCATTER.format(
        name=kernel.name, k=k, j=j, x_width=blocks * k, out_width=blocks * j, j_tile=j_tile, k_tile=k_tile,
        x_ok=" & ".join(filter(None, ["edge_ok[:, None]", x_ok])),
        out_ok=" & ".join(filter(None, ["pair_ok[:, None]", out_ok])), w_ok=masked(w_ok, out_ok), add=add, **elements,
        **program_names(blocks, 1, 1, tiles(j), j_tile), **matrix_names(blocks, k, j, kernel.transposed),
    )  # fmt: skip
    return HEAD + text
