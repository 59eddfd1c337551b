// Prefetches of rows, which no hardware foresees.
#pragma once

#include <graphweave/base.h>

// A row at an arbitrary address, into the cache of LEVEL 3 (the first) or 2 (the second).
template <bool WRITE, int LEVEL>
GW_INLINE void gw_fetch(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)row + i, WRITE, LEVEL);
}

// Rows first .. last - 1, of `width` elements, into the second cache.
template <class T>
GW_INLINE void gw_fetch_rows(const T* rows, int64_t width, int64_t first, int64_t last) {
  if (first < last) gw_fetch<false, 2>(rows + first * width, (last - first) * width * sizeof(T));
}

// Edges of one row that are asked for together, at most: more would push each other out.
constexpr int64_t gw_fetched_edges = 64;

// The rows of `width` elements that the edges of rows first .. last - 1 gather, into the second cache.
template <class T, class I>
GW_INLINE void gw_fetch_edges(
    const T* rows, int64_t width, const I* column, const I* indptr, int64_t first, int64_t last) {
  for (int64_t v = first; v < last; ++v) {
    const int64_t begin = indptr[v], end = indptr[v + 1];
    const int64_t stop = end - begin < gw_fetched_edges ? end : begin + gw_fetched_edges;
    for (int64_t k = begin; k < stop; ++k)
      gw_fetch<false, 2>(rows + (int64_t)column[k] * width, width * sizeof(T));
  }
}
