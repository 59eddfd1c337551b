// Pointwise operators that the standard library has no branch-free, NaN-keeping form of.
#pragma once

#include <graphweave/base.h>

// NaN wins, as in torch
template <class T>
GW_INLINE T gw_max(T a, T b) {
  return ((a > b) | (a != a)) ? a : b;
}
template <class T>
GW_INLINE T gw_min(T a, T b) {
  return ((a < b) | (a != a)) ? a : b;
}
template <class T>
GW_INLINE T gw_select(bool c, T a, T b) {
  return c ? a : b;
}
template <class T>
GW_INLINE T gw_relu(T x) {
  return x < T(0) ? T(0) : x;
}
template <class T>
GW_INLINE T gw_sign(T x) {
  return (T)((x > T(0)) - (x < T(0)));
}
// of integers; the smallest is its own absolute value
template <class T>
GW_INLINE T gw_abs(T x) {
  return x < T(0) ? (T)(0 - (uint64_t)x) : x;
}
