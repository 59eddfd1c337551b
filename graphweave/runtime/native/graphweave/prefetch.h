// Prefetches of rows, which no hardware foresees.
#pragma once

#include <graphweave/base.h>

// A row at an arbitrary address, into the cache of LEVEL 3 (the first) or 2 (the second).
template <bool WRITE, int LEVEL>
GW_INLINE void gw_fetch(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)row + i, WRITE, LEVEL);
}
