"""Typed products summed by row: out[v] = sum over edges e with dst(e) = v of scale(e) x[src(e)] w[t(e)].

Nothing of size edges x features is stored. A chunk is a block of consecutive rows of the result, which stay in cache;
its edges come by type, then by row. Edges of one type and row are summed before they are multiplied, so there is one
product for each pair of type and row; the rows of a tile are different, so products are added to them where they lie.
One thread works on a block: no atomics, and sums in the same order for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.preamble import preamble
from graphweave.codegen.cpp.typed import HELPERS, INCLUDES, PRODUCT, ROWS
from graphweave.core.types import DType

_SCATTER = """
// rows of one type and one block of columns, added to rows of the result
struct gw_adds {{
  const {t}* tile;
  {t}* const* out;
  int64_t from, into;
  const {t}* w;
  static constexpr int64_t count = {k};
  static constexpr bool streams = false;
  GW_INLINE_MEMBER {t} left(int64_t i, int64_t k) const {{ return tile[i * {b} * {k} + from + k]; }}
  GW_INLINE_MEMBER const {t}* right(int64_t k) const {{ return w + k * {j}; }}
  GW_INLINE_MEMBER {t}* to(int64_t i) const {{ return out[i] + into; }}
  GW_INLINE_MEMBER void ahead(int64_t, int64_t) const {{}}
}};
// out[v][b][j] = sum over edges e with dst(e) = v of scale[e][b] * sum over k of x[src(e)][b][k] * w[t(e)][b][k][j]
extern "C" int32_t {name}(
    void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks, int32_t num_threads) {{
  constexpr int64_t B = {b}, K = {k}, J = {j};
  const {t}* const x = static_cast<const {t}*>(ptrs[0]);
  const {t}* const w = static_cast<const {t}*>(ptrs[1]);
  const {t}* const scale = static_cast<const {t}*>(ptrs[2]);
  {t}* const out = static_cast<{t}*>(ptrs[3]);
  const {i}* const indptr = static_cast<const {i}*>(ptrs[4]);
  const {i}* const src = static_cast<const {i}*>(ptrs[5]);
  const {i}* const dst = static_cast<const {i}*>(ptrs[6]);
  const {i}* const edge = static_cast<const {i}*>(ptrs[7]);
  const int64_t num_types = sizes[0], scales = sizes[1];
  int32_t failed = 0;
#pragma omp parallel num_threads(num_threads) if (num_chunks > 1 && num_threads > 1)
  {{
    {t}* const tile = static_cast<{t}*>(aligned_alloc(64, ({rows} * B * K * sizeof({t}) + 63) / 64 * 64));
    if (tile == nullptr) {{
#pragma omp atomic write
      failed = 1;
    }}
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {{
      if (tile == nullptr) continue;
      memset(out + chunks[chunk] * B * J, 0, (chunks[chunk + 1] - chunks[chunk]) * B * J * sizeof({t}));
      const {i}* const of_type = indptr + chunk * num_types;
      const int64_t end = of_type[num_types];
      for (int64_t type = 0; type < num_types; ++type) {{
        int64_t n = 0, last = -1;
        {t}* into[{rows}];
        const auto multiply = [&]() {{
          for (int64_t b = 0; b < B; ++b)
            gw_typed_product<J, {t}>(gw_adds{{tile, into, b * K, b * J, w + (type * B + b) * K * J}}, n, true);
        }};
        for (int64_t e = of_type[type]; e < of_type[type + 1]; ++e) {{
          if (e + {rows} < end) gw_fetch<false, 3>(x + (int64_t)src[e + {rows}] * B * K, B * K * sizeof({t}));
          const {t}* const row = x + (int64_t)src[e] * B * K;
          const {t}* const by = scale ? scale + (int64_t)edge[e] * scales : nullptr;
          const bool fresh = dst[e] != last;
          if (fresh && n == {rows}) {{
            multiply();
            n = 0;
          }}
          if (fresh) into[n++] = out + (int64_t)dst[e] * B * J;
          last = dst[e];
          {t}* const sum = tile + (n - 1) * B * K;
          for (int64_t b = 0; b < B; ++b) {{
            const {t} s = by ? by[scales > 1 ? b : 0] : {t}(1);
            if (fresh)
              for (int64_t k = 0; k < K; ++k) sum[b * K + k] = s * row[b * K + k];
            else
              for (int64_t k = 0; k < K; ++k) sum[b * K + k] += s * row[b * K + k];
          }}
        }}
        if (n > 0) multiply();
      }}
    }}
    free(tile);
  }}
  return failed;
}}
"""


@dataclass(frozen=True, slots=True)
class ScatterKernel:
    """Which kernel: x [nodes, blocks, k], matrices [types, blocks, k, j]. `wide`: indices are int64, else int32."""

    blocks: int
    k: int
    j: int
    dtype: DType
    wide: bool = False

    @property
    def name(self) -> str:
        return f"typed_scatter_{self.blocks}_{self.k}_{self.j}_{self.dtype.value}" + ("_wide" if self.wide else "")


def print_scatter(kernel: ScatterKernel) -> str:
    """C++ text of the function `kernel.name`.

    Pointers are x, w, the scale (null for 1) and out; then indptr, the row of x, the row of out and the edge at each
    position of `runtime/typed_blocks.py`. Sizes are the numbers of types, and of scales an edge (1 or blocks). Chunks
    are the bounds of blocks.
    """
    names = {
        "name": kernel.name, "t": ctype(kernel.dtype), "i": "int64_t" if kernel.wide else "int32_t",
        "b": kernel.blocks, "k": kernel.k, "j": kernel.j, "rows": ROWS,
    }  # fmt: skip
    return "\n".join([INCLUDES, preamble({"gw_block"}) + HELPERS + PRODUCT, _SCATTER.format(**names)])
