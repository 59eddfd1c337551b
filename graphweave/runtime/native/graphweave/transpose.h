// Transposed matrices.
#pragma once

#include <graphweave/base.h>

#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
// Transposes 8 x 8 elements by three perfect shuffles of all 64.
template <class T>
GW_INLINE void gw_transpose8(T* to, int64_t to_stride, const T* from, int64_t from_stride) {
  typedef T V __attribute__((vector_size(8 * sizeof(T))));
  V a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) memcpy(&a[i], from + i * from_stride, sizeof(V));
#pragma GCC unroll 3
  for (int round = 0; round < 3; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = b[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) memcpy(to + i * to_stride, &a[i], sizeof(V));
}
#else
template <class T>
GW_INLINE void gw_transpose8(T* to, int64_t to_stride, const T* from, int64_t from_stride) {
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) to[j * to_stride + i] = from[i * from_stride + j];
}
#endif

// to[c][r] = from[r][c].
template <class T>
GW_INLINE void gw_transpose_rows(T* to, const T* from, int64_t rows, int64_t columns) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t r = 0; r < whole_rows; r += 8)
    for (int64_t c = 0; c < whole_columns; c += 8)
      gw_transpose8(to + c * rows + r, rows, from + r * columns + c, columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      memcpy(to + c * rows + r, from + r * columns + c, sizeof(T));
}

template <int R, int C, class T>
GW_INLINE void gw_transpose(T* to, const T* from) {
  gw_transpose_rows(to, from, R, C);
}
