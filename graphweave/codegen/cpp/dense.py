"""Products of tall matrices, rows in the hundred thousands and some dozen columns, called as kernels are.

A vendor's library tunes products for matrices that are large both ways. On tall ones each row is read once and written
once, so blocks of rows straight from and to memory, with the small matrix in cache, are ahead of it: inside a training
step, 169,343 x 64 x 64 in float32 takes 4.8 against 5.9 ms, its gram 6.1 against 6.8 ms (Xeon, AVX-512, 2 threads,
2026-11).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.preamble import preamble
from graphweave.core.types import DType

Kind: TypeAlias = Literal["matmul", "addmatmul", "gram"]

TILE = 64
"""Rows that are multiplied before the next are read."""

_AHEAD = """
// asks for the next rows: blocks read a column of lines at a time, which no hardware foresees
GW_INLINE void gw_ahead(const void* rows, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)rows + i);
}
"""

_ROWS = """
// out[r][j] {assign} sum over k of x[r][k] * w[k][j], rows r of each chunk
extern "C" int32_t {name}(
    void* const* ptrs, const int64_t*, const int64_t* chunks, int64_t num_chunks, int32_t num_threads) {{
  const {t}* const x = static_cast<const {t}*>(ptrs[0]);
  const {t}* const w = static_cast<const {t}*>(ptrs[1]);
  {t}* const out = static_cast<{t}*>(ptrs[2]);
#pragma omp parallel for num_threads(num_threads) if (num_chunks > 1 && num_threads > 1) schedule(dynamic, 1)
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {{
    for (int64_t r = chunks[chunk]; r < chunks[chunk + 1]; r += {tile}) {{
      const int64_t left = chunks[chunk + 1] - r, next = left < 2 * {tile} ? left - {tile} : {tile};
      if (left > {tile}) gw_ahead(x + (r + {tile}) * {k}, next * {k} * sizeof({t}));
      gw_product<{j}>(out + r * {j}, x + r * {k}, {k}, 1, w, {k}, left < {tile} ? left : {tile}, {add});
    }}
  }}
  return 0;
}}
"""

_GRAM = """
// out[i][j] = sum over rows r of x[r][i] * y[r][j]: a part for each chunk, folded in the order of chunks
extern "C" int32_t {name}(
    void* const* ptrs, const int64_t*, const int64_t* chunks, int64_t num_chunks, int32_t num_threads) {{
  const {t}* const x = static_cast<const {t}*>(ptrs[0]);
  const {t}* const y = static_cast<const {t}*>(ptrs[1]);
  {t}* const out = static_cast<{t}*>(ptrs[2]);
  constexpr int64_t stride = ({k} * {j} * sizeof({t}) + 63) / 64 * 64 / sizeof({t});
  {t}* const parts = static_cast<{t}*>(aligned_alloc(64, num_chunks * stride * sizeof({t})));
  if (parts == nullptr) return 1;
#pragma omp parallel for num_threads(num_threads) if (num_chunks > 1 && num_threads > 1) schedule(dynamic, 1)
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {{
    {t}* const part = parts + chunk * stride;
    memset(part, 0, {k} * {j} * sizeof({t}));
    for (int64_t r = chunks[chunk]; r < chunks[chunk + 1]; r += {tile}) {{
      const int64_t left = chunks[chunk + 1] - r, next = left < 2 * {tile} ? left - {tile} : {tile};
      if (left > {tile}) {{
        gw_ahead(x + (r + {tile}) * {k}, next * {k} * sizeof({t}));
        gw_ahead(y + (r + {tile}) * {j}, next * {j} * sizeof({t}));
      }}
      gw_gram<{k}, {j}>(part, x + r * {k}, y + r * {j}, left < {tile} ? left : {tile});
    }}
  }}
  memset(out, 0, {k} * {j} * sizeof({t}));
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk)
    for (int64_t i = 0; i < {k} * {j}; ++i) out[i] += parts[chunk * stride + i];
  free(parts);
  return 0;
}}
"""


def product_name(kind: Kind, k: int, j: int, dtype: DType) -> str:
    return f"{kind}_{k}_{j}_{dtype.value}"


def print_product(kind: Kind, k: int, j: int, dtype: DType) -> str:
    """C++ text of `product_name(...)`: x [rows, k] and w [k, j] give out [rows, j]; of a gram, y [rows, j] and [k, j].

    Pointers are x, w (or y), out; an addmatmul adds to what out holds.
    """
    form = _GRAM if kind == "gram" else _ROWS
    helpers = preamble({"gw_gram"} if kind == "gram" else {"gw_block"})
    adds = kind == "addmatmul"
    names = {"name": product_name(kind, k, j, dtype), "t": ctype(dtype), "k": k, "j": j, "tile": TILE}
    body = form.format(**names, add="true" if adds else "false", assign="+=" if adds else "=")
    return "\n".join(
        ["#include <cmath>\n#include <cstdint>\n#include <cstdlib>\n#include <cstring>", helpers + _AHEAD, body]
    )
