"""Products whose matrix depends on the type of the row: the GEMM template of Hector, Y[S] = X[G] W[T] (3.3.1).

Rows are visited in the order of their types. A chunk is a range of that order, whatever types lie in it, so that a type
that has nearly all rows is still split over threads, and types without rows cost a comparison. Rows are gathered and
scattered through pointers: blocks of rows x vectors of columns read rows of x where they lie, and store into rows of
the result. Matrices are read in place, except those whose layout does not suit (`_packs`), which are turned over once
for each run of rows of one type.

Products with very few columns (`_narrow`) are sums along the row, with vectors along the summed index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.preamble import preamble
from graphweave.core.types import DType

Kind: TypeAlias = Literal["matmul", "gram"]

ROWS = 48
"""Rows of one type that a product takes at once: whole blocks, whether they are 8, 6 or 4 rows high."""

TERMS = 64
"""Rows that a gram adds before it goes on to the next elements of its result."""

STAGED = 1024
"""Bytes of a row of several blocks up to which it is put together before it is written past the cache."""

INCLUDES = "\n".join(f"#include <{h}>" for h in ("algorithm", "cmath", "cstdint", "cstdlib", "cstring"))

HELPERS = """
#define GW_INLINE_MEMBER __attribute__((always_inline))
template <class T, class I> GW_INLINE T* gw_row(T* rows, const I* index, int64_t position, int64_t width) {
  return rows + (index ? (int64_t)index[position] : position) * width;
}
// asks for a row that lies anywhere, into the cache of LEVEL 3 (the first) or 2 (the second)
template <bool WRITE, int LEVEL> GW_INLINE void gw_fetch(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)row + i, WRITE, LEVEL);
}
template <class V> GW_INLINE void gw_put(void* to, V v, bool streams) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64)
    if (streams) return _mm512_stream_si512((__m512i*)to, (__m512i)v);
#elif defined(__AVX__)
  if constexpr (sizeof(V) == 32)
    if (streams) return _mm256_stream_si256((__m256i*)to, (__m256i)v);
#endif
  memcpy(to, &v, sizeof v);
}
// run(type, begin, end) for the rows of each type among positions begin..end, which are in the order of types
template <class I, class Run> GW_INLINE void gw_types(
    const I* indptr, int64_t num_types, int64_t begin, int64_t end, Run run) {
  if (begin >= end) return;
  int64_t type = std::upper_bound(indptr, indptr + num_types, (I)begin) - indptr - 1;
  while (begin < end) {
    while ((int64_t)indptr[type + 1] <= begin) ++type;
    const int64_t stop = std::min<int64_t>(indptr[type + 1], end);
    run(type, begin, stop);
    begin = stop;
  }
}"""

PRODUCT = """
// op.to(i)[c] = (add ? op.to(i)[c] : 0) + sum over k of op.left(i, k) * op.right(k)[c], R rows i, C vectors of columns
// c from `at` on, the last of them at `last`
template <int R, int C, int W, class T, class Op>
GW_INLINE void gw_typed_block(const Op& op, int64_t i, int64_t at, int64_t last, bool add) {
  typedef typename gw_vector<T, W>::type V;
  V acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      acc[r][c] = V{};
      if (add) memcpy(&acc[r][c], op.to(i + r) + at + (c == C - 1 ? last : c * W), sizeof(V));
    }
  for (int64_t k = 0; k < op.count; ++k) {
    const T* const right = op.right(k) + at;
    V y[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) memcpy(&y[c], right + (c == C - 1 ? last : c * W), sizeof(V));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V x = op.left(i + r, k) - V{};
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = gw_fma(x, y[c], acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) gw_put(op.to(i + r) + at + (c == C - 1 ? last : c * W), acc[r][c], op.streams);
}
// all rows of one group of columns, in blocks about equally high
template <int C, int W, class T, class Op>
GW_INLINE void gw_typed_rows(const Op& op, int64_t rows, int64_t at, int64_t last, bool add) {
  constexpr int most = gw_registers / C < 8 ? gw_registers / C : 8;
  const int64_t blocks = (rows + most - 1) / most;
  for (int64_t b = 0, i = 0; b < blocks; ++b) {
    const int64_t next = rows * (b + 1) / blocks;
    if (at == 0) op.ahead(i, next);
    switch (next - i) {
#define GW_ROWS(R) case R: if constexpr (R <= most) gw_typed_block<R, C, W, T>(op, i, at, last, add); break;
      GW_ROWS(1) GW_ROWS(2) GW_ROWS(3) GW_ROWS(4) GW_ROWS(5) GW_ROWS(6) GW_ROWS(7) GW_ROWS(8)
#undef GW_ROWS
    }
    i = next;
  }
}
// all J columns, in groups as those of gw_product
template <int J, class T, class Op>
static __attribute__((noinline)) void gw_typed_product(const Op& op, int64_t rows, bool add) {
  constexpr int W = gw_width<T, J>(), vectors = (J + W - 1) / W, most = (vectors + gw_vectors - 1) / gw_vectors;
  constexpr int groups = vectors > 1 && most > vectors / 2 ? vectors / 2 : most;
  constexpr int C = vectors / groups, larger = vectors % groups;
  int64_t at = 0;
  if constexpr (larger > 0)
    for (int g = 0; g < larger; ++g, at += (C + 1) * W) gw_typed_rows<C + 1, W, T>(op, rows, at, C * W, add);
  for (int g = larger; g < groups; ++g, at += C * W)
    gw_typed_rows<C, W, T>(op, rows, at, g == groups - 1 ? J - W - at : (C - 1) * W, add);
}"""

_TURN = """
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
// 8 x 8 elements turned over by three perfect shuffles of all 64
template <class T> GW_INLINE void gw_turn8(T* to, int64_t to_stride, const T* from, int64_t from_stride) {
  typedef T V __attribute__((vector_size(8 * sizeof(T))));
  V a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) memcpy(&a[i], from + i * from_stride, sizeof(V));
#pragma GCC unroll 3
  for (int round = 0; round < 3; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = b[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) memcpy(to + i * to_stride, &a[i], sizeof(V));
}
#else
template <class T> GW_INLINE void gw_turn8(T* to, int64_t to_stride, const T* from, int64_t from_stride) {
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) to[j * to_stride + i] = from[i * from_stride + j];
}
#endif
// to[c][r] = from[r][c]
template <int R, int C, class T> GW_INLINE void gw_turn(T* to, const T* from) {
  constexpr int rows = R / 8 * 8, columns = C / 8 * 8;
  for (int r = 0; r < rows; r += 8)
    for (int c = 0; c < columns; c += 8) gw_turn8(to + c * R + r, R, from + r * C + c, C);
  for (int r = 0; r < R; ++r)
    for (int c = r < rows ? columns : 0; c < C; ++c) to[c * R + r] = from[r * C + c];
}"""

_DOT = """
template <class T, int W> GW_INLINE T gw_across(typename gw_vector<T, W>::type v) {
  if constexpr (W == 1) {
    return v;
  } else {
    typename gw_vector<T, W / 2>::type low, high;
    memcpy(&low, &v, sizeof low);
    memcpy(&high, (const char*)&v + sizeof low, sizeof low);
    return gw_across<T, W / 2>(low + high);
  }
}
// the last K % W elements of a row of at least W, in their places of a vector whose other lanes are 0
template <class T, int K, int W> GW_INLINE typename gw_vector<T, W>::type gw_rest(const T* row) {
  typedef typename gw_vector<T, W>::type V;
  T lanes[W];
  for (int i = 0; i < W; ++i) lanes[i] = i < W - K % W ? T(0) : row[K - W + i];
  V v;
  memcpy(&v, lanes, sizeof v);
  return v;
}
// out[i][j] = sum over k of x[i][k] * w[j][k] for J columns, R rows i
template <int R, int K, int J, class T, class Op> GW_INLINE void gw_typed_dots(const Op& op, int64_t i) {
  constexpr int W = gw_width<T, K>();
  typedef typename gw_vector<T, W>::type V;
  V acc[R][J];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) acc[r][j] = V{};
  for (int64_t k = 0; k + W <= K; k += W) {
    V y[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) memcpy(&y[j], op.w + j * K + k, sizeof(V));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      V x;
      memcpy(&x, op.x[i + r] + op.from + k, sizeof x);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) acc[r][j] = gw_fma(x, y[j], acc[r][j]);
    }
  }
  if constexpr (K % W != 0)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V x = gw_rest<T, K, W>(op.x[i + r] + op.from);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) acc[r][j] = gw_fma(x, gw_rest<T, K, W>(op.w + j * K), acc[r][j]);
    }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) op.to(i + r)[j] = gw_across<T, W>(acc[r][j]);
}
template <int K, int J, class T, class Op>
static __attribute__((noinline)) void gw_typed_narrow(const Op& op, int64_t rows) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    op.ahead(i, i + 4);
    gw_typed_dots<4, K, J, T>(op, i);
  }
  for (; i < rows; ++i) gw_typed_dots<1, K, J, T>(op, i);
}"""

_HEAD = """
extern "C" int32_t {name}(
    void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks, int32_t num_threads) {{
  constexpr int64_t B = {b}, K = {k}, J = {j};
  const {t}* const x = static_cast<const {t}*>(ptrs[0]);
  const {t}* const {second} = static_cast<const {t}*>(ptrs[1]);
  {t}* const out = static_cast<{t}*>(ptrs[2]);
  const {i}* const indptr = static_cast<const {i}*>(ptrs[3]);
  const {i}* const x_row = static_cast<const {i}*>(ptrs[4]);
  const {i}* const {other}_row = static_cast<const {i}*>(ptrs[5]);
  const int64_t num_types = sizes[0];
  int32_t failed = 0;
"""

_MATMUL = """
// rows of one type and one block of columns
struct gw_times {{
  const {t}* const* x;
  {t}* const* out;
  int64_t from, into;
  const {t}* w;
  bool streams, fetches_no_result;
  const {t}* rows;  // of x
  {t}* results;
  const {i} *x_row, *out_row;
  int64_t position, end;  // of row 0 of the tile; of the chunk
  static constexpr int64_t count = {k};
  GW_INLINE_MEMBER {t} left(int64_t i, int64_t k) const {{ return x[i][from + k]; }}
  GW_INLINE_MEMBER const {t}* right(int64_t k) const {{ return w + k * {j}; }}
  GW_INLINE_MEMBER {t}* to(int64_t i) const {{ return out[i] + into; }}
  // asks for the rows that the next tile reads, and writes
  GW_INLINE_MEMBER void ahead(int64_t begin, int64_t stop) const {{
    if (from != 0) return;
    for (int64_t i = begin; i < stop; ++i) {{
      const int64_t p = position + {rows} + i;
      if (p >= end) return;
      gw_fetch<false, 3>(gw_row(rows, x_row, p, {b} * {k}), {b} * {k} * sizeof({t}));
      if (fetches_no_result || !out_row) continue;
      gw_fetch<true, 3>(gw_row(results, out_row, p, {b} * {j}), {b} * {j} * sizeof({t}));
    }}
  }}
}};
// out[r][b][j] = sum over k of x[g(r)][b][k] * w[t(r)][b][k][j]
"""

_MATMUL_BODY = """\
  constexpr bool lines = J * sizeof({t}) % 64 == 0;  // of the cache
  constexpr bool stages = !lines && B * J * sizeof({t}) % 64 == 0 && B * J * sizeof({t}) <= {staged};
  const bool streams = (lines || stages) && gw_streams(out, (int64_t)indptr[num_types] * B * J * sizeof({t}));
#pragma omp parallel num_threads(num_threads) if (num_chunks > 1 && num_threads > 1)
  {{
    {t}* const packed = {packed};
    if ({packs} && packed == nullptr) {{
#pragma omp atomic write
      failed = 1;
    }}
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {{
      if ({packs} && packed == nullptr) continue;
      gw_types(indptr, num_types, chunks[chunk], chunks[chunk + 1], [&](int64_t type, int64_t begin, int64_t stop) {{
        const {t}* matrix = w + type * B * K * J;
        if constexpr ({packs}) {{
          for (int64_t b = 0; b < B; ++b) gw_turn<{turn_r}, {turn_c}>(packed + b * K * J, matrix + b * K * J);
          matrix = packed;
        }}
        for (int64_t p = begin; p < stop; p += {rows}) {{
          const int64_t n = std::min<int64_t>({rows}, stop - p);
          const {t}* from[{rows}];
          {t}* into[{rows}];
          alignas(64) {t} stage[stages ? {rows} * B * J : 1];
          for (int64_t i = 0; i < n; ++i) {{
            from[i] = gw_row(x, x_row, p + i, B * K);
            into[i] = stages && streams ? stage + i * B * J : gw_row(out, out_row, p + i, B * J);
          }}
          for (int64_t b = 0; b < B; ++b) {{
            const gw_times op{{from, into, b * K, b * J, matrix + b * K * J, lines && streams, streams, x,
                              out, x_row, out_row, p, chunks[chunk + 1]}};
            {call};
          }}
          if (stages && streams)
            for (int64_t i = 0; i < n; ++i) gw_stream(gw_row(out, out_row, p + i, B * J), into[i], B * J * sizeof({t}));
        }}
      }});
    }}
    if (streams) gw_streamed();
    free(packed);
  }}
  return failed;
}}
"""

_GRAM = """
// an element of the result is a sum over rows of one type; i counts elements of x's rows, or of y's where J is narrow
struct gw_outer {{
  const {t}* const* x;
  const {t}* const* y;
  int64_t from, into;
  int64_t count;
  {t}* part;
  const {t} *x_rows, *y_rows;
  const {i} *x_row, *y_row;
  int64_t position, end;  // of row 0 of the tile; of the chunk
  static constexpr bool streams = false;
  GW_INLINE_MEMBER {t} left(int64_t i, int64_t k) const {{ return {left}; }}
  GW_INLINE_MEMBER const {t}* right(int64_t k) const {{ return {right}; }}
  GW_INLINE_MEMBER {t}* to(int64_t i) const {{ return part + i * {columns}; }}
  // asks for some of the rows that the next tile reads: those that are as far in it as i in all elements
  GW_INLINE_MEMBER void ahead(int64_t begin, int64_t stop) const {{
    if (from + into != 0) return;
    for (int64_t k = begin * count / {height}; k < stop * count / {height}; ++k) {{
      const int64_t p = position + {terms} + k;
      if (p >= end) return;
      gw_fetch<false, 2>(gw_row(x_rows, x_row, p, {b} * {k}), {b} * {k} * sizeof({t}));
      gw_fetch<false, 2>(gw_row(y_rows, y_row, p, {b} * {j}), {b} * {j} * sizeof({t}));
    }}
  }}
}};
// out[t][b][i][j] = sum over rows r of type t of x[g(r)][b][i] * y[h(r)][b][j]: what a chunk adds to a type that began
// in an earlier one is a part of its own, folded in the order of chunks
"""

_GRAM_BODY = """\
  constexpr int64_t size = B * K * J, stride = (size * sizeof({t}) + 63) / 64 * 64 / sizeof({t});
  {t}* const parts = static_cast<{t}*>(aligned_alloc(64, num_chunks * stride * sizeof({t})));
  if (parts == nullptr) return 1;
#pragma omp parallel num_threads(num_threads) if (num_chunks > 1 && num_threads > 1)
  {{
#pragma omp for schedule(static)
    for (int64_t type = 0; type < num_types; ++type)
      if (indptr[type] == indptr[type + 1]) memset(out + type * size, 0, size * sizeof({t}));
    {t}* const packed = {packed};
    if ({packs} && packed == nullptr) {{
#pragma omp atomic write
      failed = 1;
    }}
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {{
      if ({packs} && packed == nullptr) continue;
      gw_types(indptr, num_types, chunks[chunk], chunks[chunk + 1], [&](int64_t type, int64_t begin, int64_t stop) {{
        {t}* const target = begin > (int64_t)indptr[type] ? parts + chunk * stride : out + type * size;
        {t}* const part = {packs} ? packed : target;
        for (int64_t p = begin; p < stop; p += {terms}) {{
          const int64_t n = std::min<int64_t>({terms}, stop - p);
          const {t} *first[{terms}], *other[{terms}];
          for (int64_t i = 0; i < n; ++i) {{
            first[i] = gw_row(x, x_row, p + i, B * K);
            other[i] = gw_row(y, y_row, p + i, B * J);
          }}
          for (int64_t b = 0; b < B; ++b) {{
            const gw_outer op{{first, other, b * K, b * J, n, part + b * K * J, x, y, x_row, y_row, p,
                              chunks[chunk + 1]}};
            gw_typed_product<{columns}, {t}>(op, {height}, p > begin);
          }}
        }}
        if constexpr ({packs})
          for (int64_t b = 0; b < B; ++b) gw_turn<{turn_r}, {turn_c}>(target + b * K * J, packed + b * K * J);
      }});
    }}
    free(packed);
  }}
  for (int64_t chunk = 1; chunk < num_chunks && !failed; ++chunk) {{
    const int64_t begin = chunks[chunk];
    if (begin >= chunks[chunk + 1]) continue;
    const int64_t type = std::upper_bound(indptr, indptr + num_types + 1, ({i})begin) - indptr - 1;
    if ((int64_t)indptr[type] == begin) continue;
    {t}* const sum = out + type * size;
    for (int64_t i = 0; i < size; ++i) sum[i] += parts[chunk * stride + i];
  }}
  free(parts);
  return failed;
}}
"""


@dataclass(frozen=True, slots=True)
class TypedKernel:
    """Which kernel: x [rows, blocks, k] and matrices [types, blocks, k, j], or y [rows, blocks, j] of a gram.

    `transposed`: matrices are given as [types, blocks, j, k] (never of a gram). `wide`: indices are int64, else int32.
    """

    kind: Kind
    blocks: int
    k: int
    j: int
    dtype: DType
    transposed: bool = False
    wide: bool = False

    @property
    def name(self) -> str:
        flags = ("_t" if self.transposed else "") + ("_wide" if self.wide else "")
        return f"typed_{self.kind}_{self.blocks}_{self.k}_{self.j}_{self.dtype.value}{flags}"


def print_typed(kernel: TypedKernel) -> str:
    """C++ text of the function `kernel.name`.

    Pointers are x, w (or y), out, indptr [types + 1] of the rows in the order of their types, and two indices that say
    which row of x and which row of out (or y) stand at each position of that order: null where row p is at position p.
    The one size is the number of types; chunks are ranges of positions.
    """
    narrow = kernel.j * kernel.dtype.itemsize < 16  # too few columns for a vector
    names = {
        "name": kernel.name, "t": ctype(kernel.dtype), "i": "int64_t" if kernel.wide else "int32_t",
        "b": kernel.blocks, "k": kernel.k, "j": kernel.j, "rows": ROWS, "terms": TERMS, "staged": STAGED,
    }  # fmt: skip
    if kernel.kind == "gram":
        names |= _gram_names(kernel, narrow)
        forms, used = (PRODUCT, _TURN, _GRAM, _HEAD, _GRAM_BODY), {"gw_block"}
    else:
        names |= _matmul_names(kernel, narrow)
        forms, used = (_DOT if narrow else PRODUCT, _TURN, _MATMUL, _HEAD, _MATMUL_BODY), {"gw_block", "gw_stream"}
    names["packed"] = (
        f"static_cast<{names['t']}*>(aligned_alloc(64, (B * K * J * sizeof({names['t']}) + 63) / 64 * 64))"
        if names["packs"] == "true"
        else "nullptr"
    )
    helpers = "".join(form for form in forms[:-3])
    return "\n".join([INCLUDES, preamble(used) + HELPERS + helpers, *(f.format(**names) for f in forms[-3:])])


def _matmul_names(kernel: TypedKernel, narrow: bool) -> dict[str, str | int]:
    """Narrow products read the matrix as [j, k], others as [k, j]; a matrix of one row or column is both."""
    packs = kernel.transposed != narrow and kernel.k > 1 and kernel.j > 1
    product = "gw_typed_narrow<K, J, {t}>(op, n)" if narrow else "gw_typed_product<J, {t}>(op, n, false)"
    return {
        "second": "w", "other": "out", "packs": "true" if packs else "false",
        "call": product.format(t=ctype(kernel.dtype)),
        "turn_r": kernel.j if kernel.transposed else kernel.k, "turn_c": kernel.k if kernel.transposed else kernel.j,
    }  # fmt: skip


def _gram_names(kernel: TypedKernel, narrow: bool) -> dict[str, str | int]:
    """Narrow grams are computed as [j, k], whose rows make vectors."""
    left, right = "x[k][from + i]", "y[k] + into"
    if narrow:
        left, right = "y[k][into + i]", "x[k] + from"
    return {
        "second": "y", "other": "y", "packs": "true" if narrow and kernel.k > 1 and kernel.j > 1 else "false",
        "left": left, "right": right, "height": kernel.j if narrow else kernel.k,
        "columns": kernel.k if narrow else kernel.j, "turn_r": kernel.j, "turn_c": kernel.k,
    }  # fmt: skip
