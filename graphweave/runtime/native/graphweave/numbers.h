// Numbers as bits, and multiply-add.
#pragma once

#include <graphweave/base.h>

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
