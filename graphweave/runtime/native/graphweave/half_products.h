// Products of numbers of half precision, summed in float32.
//
// Two bfloat16 that are summed one after the other lie in 32 bits, as the instructions of AVX512-BF16 take them; where
// there are none, `gw_fma` widens both. float16 is widened when it is packed. A tile is packed before it is multiplied:
// that moves K numbers a row, of which the product reads each J times.
#pragma once

#include <graphweave/row_products.h>

#include <type_traits>

// How numbers H are multiplied: `element` holds `per` of them.
template <class H>
struct gw_packing {
  typedef float element;
  static constexpr int per = 1;
  template <class X>
  GW_INLINE_MEMBER static element of(X x, X) {
    return (float)(H)(float)x;
  }
};
#if defined(GW_BFLOAT16)
template <>
struct gw_packing<gw_bf16> {
  typedef int32_t element;
  static constexpr int per = 2;
  template <class X>
  GW_INLINE_MEMBER static element of(X first, X second) {
    return (int32_t)((uint32_t)gw_bf16(first).bits | (uint32_t)gw_bf16(second).bits << 16);
  }
};
#endif
template <class H>
using gw_element = typename gw_packing<H>::element;

// elements that hold n numbers
template <class H>
constexpr int64_t gw_elements(int64_t n) {
  return (n + gw_packing<H>::per - 1) / gw_packing<H>::per;
}
// Columns of a packed matrix: of fewer than 4 the rest are zeros, so that there is a vector.
constexpr int gw_columns(int J) { return J < 4 ? 4 : J; }

// K numbers of a row, those that are summed one after the other side by side
template <class H, int K, class X>
GW_INLINE void gw_pack_row(gw_element<H>* __restrict__ to, const X* __restrict__ from) {
  constexpr int per = gw_packing<H>::per;
#pragma omp simd
  for (int k = 0; k < K / per; ++k) to[k] = gw_packing<H>::of(from[k * per], from[k * per + per - 1]);
  if constexpr (K % per != 0) to[K / per] = gw_packing<H>::of(from[K - 1], X(0.0f));
}
// n sums, as they are stored
template <class Out>
GW_INLINE void gw_store_sums(Out* __restrict__ to, const float* __restrict__ sums, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) to[j] = Out(sums[j]);
}
#if defined(GW_BFLOAT16)
GW_INLINE void gw_store_sums(gw_bf16* __restrict__ to, const float* __restrict__ sums, int64_t n) {
  typedef uint16_t __attribute__((may_alias)) bits;  // GCC makes vectors of numbers, but not of structures
  bits* const out = (bits*)to;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const uint32_t b = (uint32_t)gw_bits(sums[j]), top = b >> 16, rounded = (b + 0x7fffu + (top & 1u)) >> 16;
    out[j] = (uint16_t)(sums[j] != sums[j] ? top | 0x40u : rounded);
  }
}
#endif
// n rows of K numbers, those of one column and of rows that are summed one after the other side by side
template <class H, int K, class X>
GW_INLINE void gw_pack_rows(gw_element<H>* __restrict__ to, const X* const* rows, int64_t from, int64_t n) {
  constexpr int per = gw_packing<H>::per;
  for (int64_t t = 0; t < n; t += per, to += K) {
    const X* const first = rows[t] + from;
    const X* const second = rows[t + per - 1 < n ? t + per - 1 : t] + from;
    if (t + per <= n)
#pragma omp simd
      for (int k = 0; k < K; ++k) to[k] = gw_packing<H>::of(first[k], second[k]);
    else
#pragma omp simd
      for (int k = 0; k < K; ++k) to[k] = gw_packing<H>::of(first[k], X(0.0f));
  }
}
// B matrices [K, J], or [J, K] if TRANSPOSED
template <class H, int B, int K, int J, bool TRANSPOSED, class W>
GW_APART void gw_pack_matrices(gw_element<H>* to, const W* w) {
  constexpr int per = gw_packing<H>::per, P = gw_columns(J);
  const auto at = [&](int k, int j) { return k < K && j < J ? w[TRANSPOSED ? j * K + k : k * J + j] : W(0.0f); };
  for (int b = 0; b < B; ++b, w += K * J)
    for (int k = 0; k < K; k += per)
      for (int j = 0; j < P; ++j) *to++ = gw_packing<H>::of(at(k, j), at(k + per - 1, j));
}

// out[k][b][j] = (add ? add[k][b][j] : 0) + sum over i of x[k][b][i] * w[b][i][j], n rows k of at most MOST; `w` is packed
template <class H, int B, int K, int J, int MOST, class Out, class X, class Add>
GW_APART void gw_half_matmul(Out out, X x, const gw_element<H>* w, Add add, int64_t n) {
  constexpr int P = gw_columns(J);
  constexpr int64_t E = gw_elements<H>(K);
  alignas(64) gw_element<H> packed[MOST * E];
  alignas(64) float sums[MOST * P];
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t i = 0; i < n; ++i) gw_pack_row<H, K>(packed + i * E, x.row(i, B * K) + b * K);
    if (add.rows != nullptr)
      for (int64_t i = 0; i < n; ++i) {
        const auto* const row = add.row(i, B * J) + b * J;
#pragma omp simd
        for (int j = 0; j < J; ++j) sums[i * P + j] = (float)row[j];
        for (int j = J; j < P; ++j) sums[i * P + j] = 0.0f;
      }
    gw_product<P, float>(gw_plain<P, float, gw_element<H>>{sums, packed, E, 1, w + b * E * P, E, sums, false}, n,
                         add.rows != nullptr);
    for (int64_t i = 0; i < n; ++i) gw_store_sums(out.row(i, B * J) + b * J, sums + i * P, J);
  }
}

// out[b][i][j] = (add ? out[b][i][j] : 0) + sum over k of x[k][b][i] * y[k][b][j], n rows k of at most MOST
template <class H, int B, int K, int J, int MOST, class X, class Y>
GW_APART void gw_half_gram(float* out, X x, Y y, int64_t n, bool add) {
  constexpr bool narrow = J < 4 && K > J;  // then the sum is that of [J, K]
  constexpr int64_t most = gw_elements<H>(MOST);
  const int64_t count = gw_elements<H>(n);
  alignas(64) gw_element<H> first[most * K], other[most * J];
  const std::remove_reference_t<decltype(*x.rows)>* x_rows[MOST];
  const std::remove_reference_t<decltype(*y.rows)>* y_rows[MOST];
  for (int64_t i = 0; i < n; ++i) {
    x_rows[i] = x.row(i, B * K);
    y_rows[i] = y.row(i, B * J);
  }
  for (int64_t b = 0; b < B; ++b) {
    float* const sum = out + b * K * J;
    gw_pack_rows<H, K>(first, x_rows, b * K, n);
    gw_pack_rows<H, J>(other, y_rows, b * J, n);
    if constexpr (narrow) {
      alignas(64) float turned[J * K];
      gw_product<K, float>(gw_plain<K, float, gw_element<H>>{turned, other, 1, J, first, count, turned, false}, J, false);
      for (int i = 0; i < K; ++i)
        for (int j = 0; j < J; ++j) sum[i * J + j] = (add ? sum[i * J + j] : 0.0f) + turned[j * K + i];
    } else {
      gw_product<J, float>(gw_plain<J, float, gw_element<H>>{sum, first, 1, K, other, count, sum, false}, K, add);
    }
  }
}
