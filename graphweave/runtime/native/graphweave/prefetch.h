// Prefetches of rows that hardware cannot foresee.
#pragma once

#include <graphweave/base.h>

// Prefetches a row at an arbitrary address into the cache of LEVEL 3 (the first) or 2 (the second).
template <bool WRITE, int LEVEL>
GW_INLINE void gw_fetch(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)row + i, WRITE, LEVEL);
}

// Prefetches at most `count` rows of `width` elements, from row `first` on and before row `last`.
template <class T>
GW_INLINE void gw_fetch_rows(const T* rows, int64_t width, int64_t first, int64_t count, int64_t last) {
  const int64_t next = last - first < count ? last - first : count;
  if (next > 0) gw_fetch<false, 2>(rows + first * width, next * width * sizeof(T));
}
