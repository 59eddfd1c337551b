"""C++ functions for products of small matrices: gw_matmul and gw_gram, for tiles of edges.

Blocks of rows x vectors of the result stay in registers. Every element is one chain of fused multiply-adds in the order
of the summed index, whichever block it falls into, so it has the same bits in every tile: a maximum that is computed
again meets itself. Columns that do not fill a vector are covered by one that overlaps its neighbour.

With AVX-512 and 64 x 64 elements, gw_matmul multiplies 20 rows at the rate of torch.mm on thousands, 7 rows at 90 %, 1
row at 60 % of it; gw_gram at 80, 60 and 20 % (GCC 12, 2026-11).
"""

from __future__ import annotations

BLOCK = """
#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
constexpr int gw_bytes_of_vector = 64, gw_vectors = 4, gw_registers = 24;
#elif defined(__AVX__)
constexpr int gw_bytes_of_vector = 32, gw_vectors = 2, gw_registers = 12;
#else
constexpr int gw_bytes_of_vector = 16, gw_vectors = 2, gw_registers = 12;
#endif
template <class T, int W> struct gw_vector { typedef T type __attribute__((vector_size(W * sizeof(T)))); };
template <class T> struct gw_vector<T, 1> { typedef T type; };
template <class V> GW_INLINE V gw_fma(V a, V b, V c) { return a * b + c; }
#if defined(__FMA__)
// not left to the compiler, which may fuse in one block and not in another
GW_INLINE float gw_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GW_INLINE double gw_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#define GW_FMA(number, width, raw, call) \\
  GW_INLINE gw_vector<number, width>::type gw_fma( \\
      gw_vector<number, width>::type a, gw_vector<number, width>::type b, gw_vector<number, width>::type c) { \\
    return (gw_vector<number, width>::type)call((raw)a, (raw)b, (raw)c); \\
  }
GW_FMA(float, 4, __m128, _mm_fmadd_ps)
GW_FMA(float, 8, __m256, _mm256_fmadd_ps)
GW_FMA(double, 2, __m128d, _mm_fmadd_pd)
GW_FMA(double, 4, __m256d, _mm256_fmadd_pd)
#if defined(__AVX512F__)
GW_FMA(float, 16, __m512, _mm512_fmadd_ps)
GW_FMA(double, 8, __m512d, _mm512_fmadd_pd)
#endif
#endif
// the widest vector that fits into J columns
template <class T, int J> constexpr int gw_width() {
  int width = gw_bytes_of_vector / sizeof(T);
  while (width > J) width /= 2;
  return width * (int)sizeof(T) < 16 ? 1 : width;
}
// out[r][c] = (add ? out[r][c] : 0) + sum over k of a[r * ar + k * ak] * b[k * J + c],
// R rows r, C vectors of columns c, the last of them at `last`
template <int R, int C, int W, int J, class T>
GW_INLINE void gw_block(
    T* out, const T* a, int64_t ar, int64_t ak, const T* b, int64_t last, int64_t count, bool add) {
  typedef typename gw_vector<T, W>::type V;
  V acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      acc[r][c] = V{};
      if (add) memcpy(&acc[r][c], out + r * J + (c == C - 1 ? last : c * W), sizeof(V));
    }
  for (int64_t k = 0; k < count; ++k) {
    V y[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) memcpy(&y[c], b + k * J + (c == C - 1 ? last : c * W), sizeof(V));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V x = a[r * ar + k * ak] - V{};
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = gw_fma(x, y[c], acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) memcpy(out + r * J + (c == C - 1 ? last : c * W), &acc[r][c], sizeof(V));
}
// all rows of one group of columns, in blocks about equally high
template <int C, int W, int J, class T>
GW_INLINE void gw_rows(
    T* out, const T* a, int64_t ar, int64_t ak, const T* b, int64_t last, int64_t count, int64_t rows, bool add) {
  constexpr int most = gw_registers / C < 8 ? gw_registers / C : 8;
  const int64_t blocks = (rows + most - 1) / most;
  for (int64_t i = 0, r = 0; i < blocks; ++i) {
    const int64_t next = rows * (i + 1) / blocks;
    T* const o = out + r * J;
    const T* const p = a + r * ar;
    switch (next - r) {
#define GW_ROWS(R) case R: if constexpr (R <= most) gw_block<R, C, W, J>(o, p, ar, ak, b, last, count, add); break;
      GW_ROWS(1) GW_ROWS(2) GW_ROWS(3) GW_ROWS(4) GW_ROWS(5) GW_ROWS(6) GW_ROWS(7) GW_ROWS(8)
#undef GW_ROWS
    }
    r = next;
  }
}
// groups of columns hold about equally many vectors, two at least where there are two: the last, which overlaps its
// neighbour, is then in one group with it, which reads both before it writes
template <int J, class T>
GW_INLINE void gw_product(
    T* out, const T* a, int64_t ar, int64_t ak, const T* b, int64_t count, int64_t rows, bool add) {
  constexpr int W = gw_width<T, J>(), vectors = (J + W - 1) / W, most = (vectors + gw_vectors - 1) / gw_vectors;
  constexpr int groups = vectors > 1 && most > vectors / 2 ? vectors / 2 : most;
  constexpr int C = vectors / groups, larger = vectors % groups;
  int64_t at = 0;
  if constexpr (larger > 0)
    for (int g = 0; g < larger; ++g, at += (C + 1) * W)
      gw_rows<C + 1, W, J>(out + at, a, ar, ak, b + at, C * W, count, rows, add);
  for (int g = larger; g < groups; ++g, at += C * W)
    gw_rows<C, W, J>(out + at, a, ar, ak, b + at, g == groups - 1 ? J - W - at : (C - 1) * W, count, rows, add);
}"""

MATMUL = """
// out[t][j] = sum over k of x[t][k] * w[k][j], n rows t
template <int K, int J, class T>
static __attribute__((noinline)) void gw_matmul(
    T* __restrict__ out, const T* __restrict__ x, const T* __restrict__ w, int64_t n) {
  gw_product<J>(out, x, K, 1, w, K, n, false);
}"""

GRAM = """
// out[i][j] += sum over t of x[t][i] * y[t][j], n rows t
template <int I, int J, class T>
static __attribute__((noinline)) void gw_gram(
    T* __restrict__ out, const T* __restrict__ x, const T* __restrict__ y, int64_t n) {
  gw_product<J>(out, x, 1, I, y, n, I, true);
}"""
