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
template <int R, int C, class T>
GW_INLINE void gw_transpose(T* to, const T* from) {
  constexpr int rows = R / 8 * 8, columns = C / 8 * 8;
  for (int r = 0; r < rows; r += 8)
    for (int c = 0; c < columns; c += 8) gw_transpose8(to + c * R + r, R, from + r * C + c, C);
  for (int r = 0; r < R; ++r)
    for (int c = r < rows ? columns : 0; c < C; ++c) to[c * R + r] = from[r * C + c];
}
