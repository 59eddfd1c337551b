// Rows in the order of their types, gathered and scattered through indices.
#pragma once

#include <algorithm>

#include <graphweave/base.h>

// Rows of one type that a product takes at once: whole blocks, whether they are 8, 6 or 4 rows high.
constexpr int64_t gw_typed_tile = 48;

// the row at a position of the order; without an index, position p is row p
template <class T, class I>
GW_INLINE T* gw_row(T* rows, const I* index, int64_t position, int64_t width) {
  return rows + (index ? (int64_t)index[position] : position) * width;
}

// run(type, begin, end) for the rows of each type among positions begin .. end - 1
template <class I, class Run>
GW_INLINE void gw_types(const I* indptr, int64_t num_types, int64_t begin, int64_t end, Run run) {
  if (begin >= end) return;
  int64_t type = std::upper_bound(indptr, indptr + num_types, (I)begin) - indptr - 1;
  while (begin < end) {
    while ((int64_t)indptr[type + 1] <= begin) ++type;
    const int64_t stop = std::min<int64_t>(indptr[type + 1], end);
    run(type, begin, stop);
    begin = stop;
  }
}

// Memory of the thread for a matrix that is transposed, or a tile: null if there is none, or if `needed` is false.
template <class T>
GW_INLINE T* gw_scratch(int64_t count, bool needed = true) {
  return needed ? static_cast<T*>(aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)) : nullptr;
}
// a shared flag is raised by any thread
GW_INLINE void gw_fail(int32_t& failed) {
#pragma omp atomic write
  failed = 1;
}
