// The micro-product: one matrix, row-major, times rows whose addresses an operand knows.
//
// Blocks of rows x vectors of the result stay in registers. Every element is one chain of fused multiply-adds in the
// order of the summed index, in whichever block it lies. So it has the same bits in every tile, and a maximum that is
// computed again equals itself. Columns that do not fill a vector are covered by a vector that overlaps its neighbour.
//
// With AVX-512 and 64 x 64 elements, gw_matmul multiplies 20 rows at the rate of torch.mm on thousands, 7 rows at 90 %,
// 1 row at 60 % of it; gw_gram at 80, 60 and 20 % (GCC 12, 2026-11).
//
// An operand `op` says where elements are:
//   op.count        how many products are summed
//   op.left(i, k)   element k of row i, of the same type as the matrix's elements
//   op.right(k)     row k of the matrix; `gw_fma` multiplies two elements, and may sum several numbers packed in one
//   op.to(i)        row i of the result
//   op.begun(i)     row i of what the product is added to, if anything: the result itself, or other memory
//   op.below(i)     the operand whose row 0 is row i of this one
//   op.streams      whether the result bypasses the cache; its rows are then whole aligned vectors
//   op.ahead(i, n)  called before rows i .. n - 1 are multiplied, to prefetch others
#pragma once

#include <graphweave/streaming.h>
#include <graphweave/vectors.h>

// op.to(i)[c] = (add ? op.begun(i)[c] : 0) + sum over k of op.left(i, k) * op.right(k)[c], for R rows i and C vectors
// of columns c from `at` on. The last vector is `last` columns after `at`.
template <int R, int C, int W, class T, class Op>
GW_INLINE void gw_block(const Op& op, int64_t at, int64_t last, bool add) {
  typedef decltype(op.left(0, 0)) E;
  typedef typename gw_vector<T, W>::type V;
  typedef typename gw_vector<E, W>::type Y;
  V acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      acc[r][c] = V{};
      if (add) memcpy(&acc[r][c], op.begun(r) + at + (c == C - 1 ? last : c * W), sizeof(V));
    }
  for (int64_t k = 0; k < op.count; ++k) {
    const E* const right = op.right(k) + at;
    Y y[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) memcpy(&y[c], right + (c == C - 1 ? last : c * W), sizeof(Y));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Y x = op.left(r, k) - Y{};
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = gw_fma(x, y[c], acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) gw_put(op.to(r) + at + (c == C - 1 ? last : c * W), acc[r][c], op.streams);
}

// Computes all rows of one group of columns, in blocks of about equal height.
template <int C, int W, class T, class Op>
GW_INLINE void gw_rows(const Op& op, int64_t rows, int64_t at, int64_t last, bool add) {
  constexpr int most = gw_registers / C < 8 ? gw_registers / C : 8;
  const int64_t blocks = (rows + most - 1) / most;
  for (int64_t b = 0, i = 0; b < blocks; ++b) {
    const int64_t next = rows * (b + 1) / blocks;
    if (at == 0) op.ahead(i, next);
    const Op here = op.below(i);
    switch (next - i) {
#define GW_ROWS(R)                                                      \
  case R:                                                               \
    if constexpr (R <= most) gw_block<R, C, W, T>(here, at, last, add); \
    break;
      GW_ROWS(1) GW_ROWS(2) GW_ROWS(3) GW_ROWS(4) GW_ROWS(5) GW_ROWS(6) GW_ROWS(7) GW_ROWS(8)
#undef GW_ROWS
    }
    i = next;
  }
}

// Computes all J columns. Groups of columns hold about equally many vectors, and at least two if there are two. So the
// last vector, which overlaps its neighbour, is in one group with it, and the group reads both before it writes.
template <int J, class T, class Op>
GW_INLINE void gw_product(const Op& op, int64_t rows, bool add) {
  constexpr int W = gw_width<T, J>(), vectors = (J + W - 1) / W, most = (vectors + gw_vectors - 1) / gw_vectors;
  constexpr int groups = vectors > 1 && most > vectors / 2 ? vectors / 2 : most;
  constexpr int C = vectors / groups, larger = vectors % groups;
  int64_t at = 0;
  if constexpr (larger > 0)
    for (int g = 0; g < larger; ++g, at += (C + 1) * W) gw_rows<C + 1, W, T>(op, rows, at, C * W, add);
  for (int g = larger; g < groups; ++g, at += C * W)
    gw_rows<C, W, T>(op, rows, at, g == groups - 1 ? J - W - at : (C - 1) * W, add);
}

// The operand for contiguous rows: a[i * ar + k * ak] times b[k][c], stored to out[i][c], with J columns.
template <int J, class T, class E = T>
struct gw_plain {
  T* out;
  const E* a;
  int64_t ar, ak;
  const E* b;
  int64_t count;
  const T* added;
  bool streams;
  GW_INLINE_MEMBER E left(int64_t i, int64_t k) const { return a[i * ar + k * ak]; }
  GW_INLINE_MEMBER const E* right(int64_t k) const { return b + k * J; }
  GW_INLINE_MEMBER T* to(int64_t i) const { return out + i * J; }
  GW_INLINE_MEMBER const T* begun(int64_t i) const { return added + i * J; }
  GW_INLINE_MEMBER gw_plain below(int64_t i) const {
    return {out + i * J, a + i * ar, ar, ak, b, count, added + i * J, streams};
  }
  GW_INLINE_MEMBER void ahead(int64_t, int64_t) const {}
};

// out[t][j] = sum over k of x[t][k] * w[k][j], for n rows t. The result bypasses the cache if it `streams`.
template <int K, int J, class T>
GW_APART void gw_matmul(T* __restrict__ out, const T* __restrict__ x, const T* __restrict__ w, int64_t n,
                        bool streams = false) {
  gw_product<J, T>(gw_plain<J, T>{out, x, K, 1, w, K, out, streams}, n, false);
}

// out[t][j] = added[t][j] + sum over k of x[t][k] * w[k][j], for n rows t. `out` and `added` may be the same memory.
template <int K, int J, class T>
GW_APART void gw_addmatmul(T* out, const T* added, const T* __restrict__ x, const T* __restrict__ w, int64_t n,
                           bool streams = false) {
  gw_product<J, T>(gw_plain<J, T>{out, x, K, 1, w, K, added, streams}, n, true);
}

// out[i][j] += sum over t of x[t][i] * y[t][j], for n rows t.
template <int I, int J, class T>
GW_APART void gw_gram(T* __restrict__ out, const T* __restrict__ x, const T* __restrict__ y, int64_t n) {
  gw_product<J, T>(gw_plain<J, T>{out, x, 1, I, y, n, out, false}, I, true);
}
