// Kernels for typed products of edges, summed by row.
//
// Nothing of size edges x features is stored. A chunk is a block of consecutive rows of the result, which stay in cache;
// its edges come by type, then by row. Edges of one type and row are summed before they are multiplied, so there is one
// product for each pair of type and row; the rows of a tile are different, so products are added to them where they lie.
// One thread works on a block: no atomics, and sums in the same order for any number of threads.
#pragma once

#include <graphweave/prefetch.h>
#include <graphweave/products.h>

// Rows of one type that a product takes at once: whole blocks, whether they are 8, 6 or 4 rows high.
constexpr int64_t gw_typed_tile = 48;

// memory of the thread, null if there is none
template <class T>
GW_INLINE T* gw_scratch(int64_t count) {
  return static_cast<T*>(aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64));
}
// a shared flag is raised by any thread
GW_INLINE void gw_fail(int32_t& failed) {
#pragma omp atomic write
  failed = 1;
}

// Rows of one type and one block of columns, added to rows of the result: the operand of a product.
template <class T, int B, int K, int J>
struct gw_adds {
  const T* tile;
  T* const* out;
  int64_t from, into;
  const T* w;
  static constexpr int64_t count = K;
  static constexpr bool streams = false;
  GW_INLINE_MEMBER T left(int64_t i, int64_t k) const { return tile[i * B * K + from + k]; }
  GW_INLINE_MEMBER const T* right(int64_t k) const { return w + k * J; }
  GW_INLINE_MEMBER T* to(int64_t i) const { return out[i] + into; }
  GW_INLINE_MEMBER const T* begun(int64_t i) const { return to(i); }
  GW_INLINE_MEMBER gw_adds below(int64_t i) const { return {tile + i * B * K, out + i, from, into, w}; }
  GW_INLINE_MEMBER void ahead(int64_t, int64_t) const {}
};

template <int J, class T, class Op>
GW_APART void gw_typed_adds(const Op& op, int64_t rows) {
  gw_product<J, T>(op, rows, true);
}

// out[v][b][j] = sum over edges e with dst(e) = v of scale[e][b] * sum over k of x[src(e)][b][k] * w[t(e)][b][k][j]
// ptrs: x, w [types, B, K, J], scale (null for 1), out; then indptr, the row of x, the row of out and the edge at each
// position of the order. scales: of an edge, 1 or B. chunks: the bounds of blocks. 1 if there is no memory.
template <class T, class I, int B, int K, int J>
GW_INLINE int32_t gw_typed_scatter(void* const* ptrs, int64_t num_types, int64_t scales, const int64_t* chunks,
                                   int64_t num_chunks, int32_t num_threads) {
  const T* const x = static_cast<const T*>(ptrs[0]);
  const T* const w = static_cast<const T*>(ptrs[1]);
  const T* const scale = static_cast<const T*>(ptrs[2]);
  T* const out = static_cast<T*>(ptrs[3]);
  const I* const indptr = static_cast<const I*>(ptrs[4]);
  const I* const src = static_cast<const I*>(ptrs[5]);
  const I* const dst = static_cast<const I*>(ptrs[6]);
  const I* const edge = static_cast<const I*>(ptrs[7]);
  int32_t failed = 0;
#pragma omp parallel num_threads(num_threads) if (num_chunks > 1 && num_threads > 1)
  {
    T* const tile = gw_scratch<T>(gw_typed_tile * B * K);
    if (tile == nullptr) gw_fail(failed);
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      if (tile == nullptr) continue;
      memset(out + chunks[chunk] * B * J, 0, (chunks[chunk + 1] - chunks[chunk]) * B * J * sizeof(T));
      const I* const of_type = indptr + chunk * num_types;
      const int64_t end = of_type[num_types];
      for (int64_t type = 0; type < num_types; ++type) {
        int64_t n = 0, last = -1;
        T* into[gw_typed_tile];
        const auto multiply = [&]() {
          for (int64_t b = 0; b < B; ++b)
            gw_typed_adds<J, T>(gw_adds<T, B, K, J>{tile, into, b * K, b * J, w + (type * B + b) * K * J}, n);
        };
        for (int64_t e = of_type[type]; e < of_type[type + 1]; ++e) {
          const int64_t ahead = e + gw_typed_tile;
          if (ahead < end) gw_fetch<false, 3>(x + (int64_t)src[ahead] * B * K, B * K * sizeof(T));
          const T* const row = x + (int64_t)src[e] * B * K;
          const T* const by = scale ? scale + (int64_t)edge[e] * scales : nullptr;
          const bool fresh = dst[e] != last;
          if (fresh && n == gw_typed_tile) {
            multiply();
            n = 0;
          }
          if (fresh) into[n++] = out + (int64_t)dst[e] * B * J;
          last = dst[e];
          T* const sum = tile + (n - 1) * B * K;
          for (int64_t b = 0; b < B; ++b) {
            const T s = by ? by[scales > 1 ? b : 0] : T(1);
            if (fresh)
              for (int64_t k = 0; k < K; ++k) sum[b * K + k] = s * row[b * K + k];
            else
              for (int64_t k = 0; k < K; ++k) sum[b * K + k] += s * row[b * K + k];
          }
        }
        if (n > 0) multiply();
      }
    }
    free(tile);
  }
  return failed;
}
