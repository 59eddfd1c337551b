// Products with too few columns for a vector. They are sums along the row, with vectors along the summed index.
#pragma once

#include <graphweave/vectors.h>

// The sum of a vector's elements, by halves.
template <class T, int W>
GW_INLINE T gw_across(typename gw_vector<T, W>::type v) {
  if constexpr (W == 1) {
    return v;
  } else {
    typename gw_vector<T, W / 2>::type low, high;
    memcpy(&low, &v, sizeof low);
    memcpy(&high, (const char*)&v + sizeof low, sizeof low);
    return gw_across<T, W / 2>(low + high);
  }
}

// The last K % W elements of a row that has at least W, at their places in a vector whose other lanes are 0.
template <class T, int K, int W>
GW_INLINE typename gw_vector<T, W>::type gw_rest(const T* row) {
  typedef typename gw_vector<T, W>::type V;
  T lanes[W];
  for (int i = 0; i < W; ++i) lanes[i] = i < W - K % W ? T(0) : row[K - W + i];
  V v;
  memcpy(&v, lanes, sizeof v);
  return v;
}

// op.to(i)[j] = sum over k of op.row(i)[k] * op.w[j][k], for R rows i and J columns.
template <int R, int K, int J, class T, class Op>
GW_INLINE void gw_dots(const Op& op, int64_t i) {
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
      memcpy(&x, op.row(i + r) + k, sizeof x);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) acc[r][j] = gw_fma(x, y[j], acc[r][j]);
    }
  }
  if constexpr (K % W != 0)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V x = gw_rest<T, K, W>(op.row(i + r));
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) acc[r][j] = gw_fma(x, gw_rest<T, K, W>(op.w + j * K), acc[r][j]);
    }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) op.to(i + r)[j] = gw_across<T, W>(acc[r][j]);
}

// Computes all rows.
template <int K, int J, class T, class Op>
GW_INLINE void gw_narrow_product(const Op& op, int64_t rows) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    op.ahead(i, i + 4);
    gw_dots<4, K, J, T>(op, i);
  }
  for (; i < rows; ++i) gw_dots<1, K, J, T>(op, i);
}
