// Kernels for products of tall matrices: each row is read once and written once, with the small matrix in cache.
#pragma once

#include <graphweave/prefetch.h>
#include <graphweave/products.h>

// Rows that are multiplied before the next are read: blocks read a column of lines at a time, which no hardware
// foresees, so the next rows are prefetched.
constexpr int64_t gw_tall_rows = 64;

// run(r, n) for tiles of n rows from r
template <class Run>
GW_INLINE void gw_tall_tiles(int64_t begin, int64_t end, Run run) {
  for (int64_t r = begin; r < end; r += gw_tall_rows) run(r, end - r < gw_tall_rows ? end - r : gw_tall_rows);
}
// prefetches the tile behind the one at r, of rows of `width` elements
template <class T>
GW_INLINE void gw_tall_ahead(const T* rows, int64_t width, int64_t r, int64_t end) {
  const int64_t left = end - r, next = left < 2 * gw_tall_rows ? left - gw_tall_rows : gw_tall_rows;
  if (left > gw_tall_rows) gw_fetch<false, 3>(rows + (r + gw_tall_rows) * width, next * width * sizeof(T));
}

// ptrs: x [rows, K], w [K, J], out [rows, J]: out[r][j] = (ADD ? out[r][j] : 0) + sum over k of x[r][k] * w[k][j]
template <class T, int K, int J, bool ADD>
GW_INLINE int32_t gw_tall_matmul(void* const* ptrs, const int64_t* chunks, int64_t num_chunks, int32_t num_threads) {
  const T* const x = static_cast<const T*>(ptrs[0]);
  const T* const w = static_cast<const T*>(ptrs[1]);
  T* const out = static_cast<T*>(ptrs[2]);
#pragma omp parallel for num_threads(num_threads) if (num_chunks > 1 && num_threads > 1) schedule(dynamic, 1)
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const int64_t end = chunks[chunk + 1];
    gw_tall_tiles(chunks[chunk], end, [&](int64_t r, int64_t n) {
      gw_tall_ahead(x, K, r, end);
      gw_product<J, T>(gw_plain<J, T>{out + r * J, x + r * K, K, 1, w, K}, n, ADD);
    });
  }
  return 0;
}

// ptrs: x [rows, K], y [rows, J], out [K, J]: out[i][j] = sum over r of x[r][i] * y[r][j]. Each chunk has a part of its
// own, which are folded in the order of chunks. 1 if there is no memory for them.
template <class T, int K, int J>
GW_INLINE int32_t gw_tall_gram(void* const* ptrs, const int64_t* chunks, int64_t num_chunks, int32_t num_threads) {
  const T* const x = static_cast<const T*>(ptrs[0]);
  const T* const y = static_cast<const T*>(ptrs[1]);
  T* const out = static_cast<T*>(ptrs[2]);
  constexpr int64_t stride = (K * J * sizeof(T) + 63) / 64 * 64 / sizeof(T);
  T* const parts = static_cast<T*>(aligned_alloc(64, num_chunks * stride * sizeof(T)));
  if (parts == nullptr) return 1;
#pragma omp parallel for num_threads(num_threads) if (num_chunks > 1 && num_threads > 1) schedule(dynamic, 1)
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    T* const part = parts + chunk * stride;
    const int64_t end = chunks[chunk + 1];
    memset(part, 0, K * J * sizeof(T));
    gw_tall_tiles(chunks[chunk], end, [&](int64_t r, int64_t n) {
      gw_tall_ahead(x, K, r, end);
      gw_tall_ahead(y, J, r, end);
      gw_gram<K, J>(part, x + r * K, y + r * J, n);
    });
  }
  memset(out, 0, K * J * sizeof(T));
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk)
    for (int64_t i = 0; i < K * J; ++i) out[i] += parts[chunk * stride + i];
  free(parts);
  return 0;
}
