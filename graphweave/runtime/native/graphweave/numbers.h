// Numbers as bits, multiply-add, and functions of the C library.
#pragma once

#include <graphweave/base.h>

// Some of what <cmath> declares: to read all of it takes as long as a small kernel takes in all.
namespace gw_library {
#define GW_OF_ONE(name)                                            \
  GW_INLINE float name(float x) { return __builtin_##name##f(x); } \
  GW_INLINE double name(double x) { return __builtin_##name(x); }
#define GW_OF_TWO(name)                                                        \
  GW_INLINE float name(float x, float y) { return __builtin_##name##f(x, y); } \
  GW_INLINE double name(double x, double y) { return __builtin_##name(x, y); }
GW_OF_ONE(ceil)
GW_OF_ONE(cos)
GW_OF_ONE(fabs)
GW_OF_ONE(floor)
GW_OF_ONE(sin)
GW_OF_ONE(sqrt)
GW_OF_TWO(atan2)
GW_OF_TWO(pow)
#undef GW_OF_ONE
#undef GW_OF_TWO
}  // namespace gw_library

GW_INLINE int32_t gw_bits(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
GW_INLINE int64_t gw_bits(double x) {
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
GW_INLINE float gw_float(int32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
GW_INLINE double gw_double(int64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// a * b + c, rounded once where the machine can. It is written out, since the compiler is told not to fuse.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
GW_INLINE float gw_madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GW_INLINE double gw_madd(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
GW_INLINE float gw_madd(float a, float b, float c) { return a * b + c; }
GW_INLINE double gw_madd(double a, double b, double c) { return a * b + c; }
#endif
