// Elementary functions without branches, which the compiler vectorises over lanes; those of the standard library are
// calls. Polynomials interpolate at Chebyshev nodes. Errors: gw_exp and gw_log 2 ulp, gw_tanh 3 ulp, gw_log1p and
// gw_sigmoid 4 ulp; gw_sigmoid gives 0 where its value is denormal.
#pragma once

#include <graphweave/numbers.h>

// 2^n of a normal number; unsigned, since what NaN makes of n is shifted past the end
GW_INLINE float gw_power(int32_t n) { return gw_float((int32_t)((uint32_t)(n + 127) << 23)); }
GW_INLINE double gw_power(int64_t n) { return gw_double((int64_t)((uint64_t)(n + 1023) << 52)); }

// 2^n * e^r with x = n ln 2 + r; overflows to inf, underflows gradually, keeps NaN
GW_INLINE float gw_exp(float x) {
  const float capped = x > 89.0f ? 89.0f : x;
  const float y = capped < -105.0f ? -105.0f : capped;
  const float shifted = gw_madd(y, 1.44269504f, 12582912.0f);  // the nearest integer sits in the low bits
  const float n = shifted - 12582912.0f;
  const float r = gw_madd(n, 2.12194440e-4f, gw_madd(n, -0.693359375f, y));
  float p = 0.00139269266f;
  p = gw_madd(p, r, 0.00836377387f);
  p = gw_madd(p, r, 0.0416665501f);
  p = gw_madd(p, r, 0.166665734f);
  p = gw_madd(p, r, 0.5f);
  p = gw_madd(p * r, r, r) + 1.0f;
  const int32_t exponent = gw_bits(shifted) - 0x4b400000;
  const int32_t half = exponent >> 1;
  return p * gw_power(half) * gw_power(exponent - half);
}

GW_INLINE double gw_exp(double x) {
  const double capped = x > 710.0 ? 710.0 : x;
  const double y = capped < -746.0 ? -746.0 : capped;
  const double shifted = gw_madd(y, 1.4426950408889634, 6755399441055744.0);
  const double n = shifted - 6755399441055744.0;
  const double r = gw_madd(n, -1.90821492927058770002e-10, gw_madd(n, -0.693147180369123816490, y));
  double p = 2.5101346928350339e-08;
  p = gw_madd(p, r, 2.7621338669142925e-07);
  p = gw_madd(p, r, 2.7557266418612302e-06);
  p = gw_madd(p, r, 2.4801518641395993e-05);
  p = gw_madd(p, r, 0.00019841269864380513);
  p = gw_madd(p, r, 0.0013888888918939168);
  p = gw_madd(p, r, 0.0083333333333297926);
  p = gw_madd(p, r, 0.041666666666620639);
  p = gw_madd(p, r, 0.16666666666666669);
  p = gw_madd(p, r, 0.5);
  p = gw_madd(p * r, r, r) + 1.0;
  const int64_t exponent = gw_bits(shifted) - INT64_C(0x4338000000000000);
  const int64_t half = exponent >> 1;
  return p * gw_power(half) * gw_power(exponent - half);
}

GW_INLINE float gw_log(float x) {
  const bool tiny = x < 1.17549435e-38f;  // denormals are scaled into the normal range
  const int32_t bits = (int32_t)((uint32_t)gw_bits(tiny ? x * 8388608.0f : x) - 0x3f3504f3u);  // -0 wraps
  const float n = (float)(bits >> 23) - (tiny ? 23.0f : 0.0f);
  const float f = gw_float((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  float p = 0.0696770115f;
  p = gw_madd(p, f, -0.114795894f);
  p = gw_madd(p, f, 0.116866671f);
  p = gw_madd(p, f, -0.12425776f);
  p = gw_madd(p, f, 0.142489532f);
  p = gw_madd(p, f, -0.166677961f);
  p = gw_madd(p, f, 0.200007184f);
  p = gw_madd(p, f, -0.24999997f);
  p = gw_madd(p, f, 0.333333312f);
  const float square = f * f;
  const float y = ((p * f * square - n * 2.12194440e-4f) - 0.5f * square) + f + n * 0.693359375f;
  const float finite = x < INFINITY ? y : x;  // inf and NaN are their own logarithms
  return x > 0.0f ? finite : (x == 0.0f ? -INFINITY : (x != x ? x : NAN));
}

GW_INLINE float gw_log1p(float x) {
  const float u = 1.0f + x;
  const float y = gw_log(u) * (x / (u - 1.0f));  // corrects the rounding of u
  return u == 1.0f ? x : (u < INFINITY ? y : u);
}

GW_INLINE float gw_tanh(float x) {
  const float a = x < 0.0f ? -x : x;
  const float t = a * a;
  float p = -0.00609670822f;
  p = gw_madd(p, t, 0.0209971737f);
  p = gw_madd(p, t, -0.053850908f);
  p = gw_madd(p, t, 0.133327697f);
  p = gw_madd(p, t, -0.333333289f);
  const float far = 1.0f - 2.0f / (gw_exp(2.0f * a) + 1.0f);
  return __builtin_copysignf(a < 0.625f ? gw_madd(p * t, a, a) : far, x);  // -0 keeps its sign
}

GW_INLINE float gw_sigmoid(float x) { return 1.0f / (1.0f + gw_exp(-x)); }
GW_INLINE double gw_sigmoid(double x) { return 1.0 / (1.0 + gw_exp(-x)); }
