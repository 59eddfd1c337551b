// Elementary functions of numbers and of vectors. An element of a vector has the same bits as the function of a number.
// There are branches only for rare arguments. Polynomials interpolate at Chebyshev nodes. Errors: gw_sin, gw_cos, and
// gw_pow of floats 1 ulp, gw_exp, gw_log and gw_erf 2 ulp, gw_tanh and gw_expm1 3 ulp, gw_log1p and gw_sigmoid 4 ulp.
// gw_sigmoid gives 0 where its value is denormal.
#pragma once

#include <graphweave/pointwise.h>

template <class V>
constexpr bool gw_is_single = sizeof(gw_element<V>) == 4;

// A polynomial whose highest coefficient comes first.
template <class V, class T>
GW_INLINE V gw_polynomial(V, T last) {
  return gw_const<V>(last);
}
template <class V>
GW_INLINE V gw_horner(V p, V) {
  return p;
}
template <class V, class T, class... Rest>
GW_INLINE V gw_horner(V p, V x, T next, Rest... rest) {
  return gw_horner(gw_fma(p, x, gw_const<V>(next)), x, rest...);
}
template <class V, class T, class... Rest>
GW_INLINE V gw_polynomial(V x, T first, Rest... rest) {
  return gw_horner(gw_const<V>(first), x, rest...);
}

// 2^n for a normal number. It is computed unsigned, since the n that comes from NaN is shifted past the end.
template <class V>
GW_INLINE V gw_power(gw_ints<V> n) {
  constexpr int bias = gw_is_single<V> ? 127 : 1023, place = gw_is_single<V> ? 23 : 52;
  return gw_of_bits<V>((gw_ints<V>)(((gw_naturals<V>)n + bias) << place));
}

// e^x = 2^n * e^r with x = n ln 2 + r. It overflows to inf, underflows gradually, and keeps NaN.
template <class V>
GW_INLINE V gw_exp(V x) {
  constexpr bool single = gw_is_single<V>;
  typedef gw_element<V> T;
  const V capped = gw_smaller(gw_const<V>(single ? 89 : 710), x);
  const V y = gw_larger(gw_const<V>(single ? -105 : -746), capped);
  // the nearest integer is in the low bits
  const V shift = gw_const<V>(single ? T(12582912) : T(6755399441055744));
  const V shifted = gw_fma(y, gw_const<V>(T(1.4426950408889634)), shift);
  const V n = shifted - shift;
  const V high = gw_const<V>(single ? T(-0.693359375) : T(-0.693147180369123816490));
  const V low = gw_const<V>(single ? T(2.12194440e-4f) : T(-1.90821492927058770002e-10));
  const V r = gw_fma(n, low, gw_fma(n, high, y));
  V p;
  if constexpr (single)
    p = gw_polynomial(r, 0.00139269266f, 0.00836377387f, 0.0416665501f, 0.166665734f, 0.5f);
  else
    p = gw_polynomial(r, 2.5101346928350339e-08, 2.7621338669142925e-07, 2.7557266418612302e-06, 2.4801518641395993e-05,
                      0.00019841269864380513, 0.0013888888918939168, 0.0083333333333297926, 0.041666666666620639,
                      0.16666666666666669, 0.5);
  p = gw_fma(p * r, r, r) + gw_const<V>(1);
  const gw_ints<V> exponent = gw_difference(gw_bits_of(shifted), gw_bits_of(shift));
  const gw_ints<V> half = exponent >> 1;
  return p * gw_power<V>(half) * gw_power<V>(exponent - half);
}

// The natural logarithm. Numbers too small to be normal are scaled into the normal range. inf and NaN are returned as
// they are.
template <class V>
GW_INLINE V gw_log(V x) {
  constexpr bool single = gw_is_single<V>;
  typedef gw_element<V> T;
  typedef gw_element<gw_ints<V>> I;
  const V least = gw_const<V>(single ? T(1.17549435e-38f) : T(2.2250738585072014e-308));
  const V scaled = gw_select(x < least, x * gw_const<V>(single ? T(8388608) : T(18014398509481984)), x);
  // so that the fraction begins at the root of 1/2; unsigned, since -0 wraps
  const I root = single ? (I)0x3f3504f3 : (I)INT64_C(0x3fe6a09e667f3bcd);
  const gw_ints<V> bits = gw_difference(gw_bits_of(scaled), gw_const<gw_ints<V>>(root));
  const V zeros = gw_select(x < least, gw_const<V>(single ? 23 : 54), V{});
  const V n = gw_to_float<V>(bits >> (single ? 23 : 52)) - zeros;
  const gw_ints<V> fraction = bits & gw_const<gw_ints<V>>(single ? (I)0x007fffff : (I)INT64_C(0x000fffffffffffff));
  const V f = gw_of_bits<V>(fraction + gw_const<gw_ints<V>>(root)) - gw_const<V>(1);
  V y;
  if constexpr (single) {
    const V p = gw_polynomial(f, 0.0696770115f, -0.114795894f, 0.116866671f, -0.12425776f, 0.142489532f, -0.166677961f,
                              0.200007184f, -0.24999997f, 0.333333312f);
    const V square = f * f;
    y = ((p * f * square - n * gw_const<V>(2.12194440e-4f)) - gw_const<V>(0.5f) * square) + f +
        n * gw_const<V>(0.693359375f);
  } else {  // log(1 + f) = f - s (f - r) with s = f / (2 + f)
    const V s = f / (f + gw_const<V>(2)), z = s * s;
    const V r = z * gw_polynomial(z, 0.13086767009995384, 0.13268759668555402, 0.1538624020581371, 0.18181795630884748,
                                  0.2222222239180047, 0.2857142857080323, 0.4000000000000088, 0.6666666666666666);
    y = n * gw_const<V>(0.693147180369123816490) + (f - (s * (f - r) - n * gw_const<V>(1.90821492927058770002e-10)));
  }
  const V infinity = gw_const<V>((T)gw_infinity);
  const V beyond = gw_select(x == V{}, -infinity, gw_select(x != x, x, gw_const<V>((T)gw_nan)));
  return gw_select(x > V{}, gw_select(x < infinity, y, x), beyond);
}

template <class V>
GW_INLINE V gw_log1p(V x) {
  const V one = gw_const<V>(1), u = one + x;
  const V y = gw_log(u) * (x / (u - one));  // corrects the rounding of u
  return gw_select(u == one, x, gw_select(u < gw_const<V>(gw_infinity), y, u));
}

// e^x - 1 = 2^n (e^r - 1) + (2^n - 1), for doubles. Floats are computed as doubles.
template <class V>
GW_INLINE V gw_expm1_wide(V x) {
  const V y = gw_larger(gw_const<V>(-45), gw_smaller(gw_const<V>(45), x));
  const V shift = gw_const<V>(6755399441055744.0);
  const V shifted = gw_fma(y, gw_const<V>(1.4426950408889634), shift);
  const V n = shifted - shift;
  const V high = gw_fma(n, gw_const<V>(-0.693147180369123816490), y);
  const V low = n * gw_const<V>(1.90821492927058770002e-10);
  const V r = high - low, lost = (high - r) - low;
  const V p = gw_polynomial(r, 2.0914686968086876e-09, 2.5105217004720745e-08, 2.75572736431103e-07,
                            2.7557255400206422e-06, 2.4801587325547743e-05, 0.00019841269874820627,
                            0.0013888888888883748, 0.008333333333326136, 0.04166666666666667, 0.1666666666666667);
  const V square = r * r;
  const V tail = gw_fma(p, square * r, gw_fma(r, lost, lost));
  const V half = gw_const<V>(0.5) * square;
  const V scale = gw_power<V>(gw_difference(gw_bits_of(shifted), gw_bits_of(shift)));
  const V small = r + (half + tail);
  const V other = scale * small + (scale - gw_const<V>(1));
  const V near = gw_select(n == V{}, small, other);
  const V far = gw_select(x > gw_const<V>(45), gw_exp(x), near);
  return gw_select(x == V{}, x, far);  // -0 stays
}

template <class V>
GW_INLINE V gw_erf_wide(V x) {
  const V a = gw_abs(x), one = gw_const<V>(1), z = x * x;
  const V p = gw_polynomial(z, 5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08,
                            -1.6350312701054695e-07, 1.6461000484121368e-06, -1.4925595266831182e-05,
                            0.0001205533111164271, -0.000854832698083379, 0.0052239776248180145, -0.026866170645076792,
                            0.11283791670954879, -0.3761263890318375, 0.1283791670955126);
  const V near = gw_fma(p, x, x);
  // 1 - e^(-a^2) q(t) with t = 1 / (1 + a / 2); this is 1 for a above 6
  const V capped = gw_select(a > gw_const<V>(6), gw_const<V>(6), a);
  const V t = one / gw_fma(capped, gw_const<V>(0.5), one);
  const V q =
      gw_polynomial(t, -0.07440021243346044, 0.5535022023245029, -1.8535316382081848, 3.6426059404027527,
                    -4.583844406614994, 3.799359906028882, -2.1298439188930316, 0.9210072415249974, -0.3377317752090611,
                    0.0031605924750990814, -0.011294696331083888, 0.08342915067749279, 0.17661452876291867,
                    0.24676994208173553, 0.28210194185256204, 0.28209433744603646, 1.273194538411999e-08);
  const V far = one - gw_exp(-(capped * capped)) * q;
  return gw_select(a < one, near, gw_select(x < V{}, -far, far));  // NaN is not below 1, and goes through `far`
}

// x = n pi / 2 + r for |x| < 10^6. pi / 2 has three parts, and n times each of the first two is exact.
template <class V>
struct gw_turned {
  V r, lost;
  gw_ints<V> n;
};
template <class V>
GW_INLINE gw_turned<V> gw_reduced(V x) {
  const V shift = gw_const<V>(6755399441055744.0);
  const V shifted = gw_fma(x, gw_const<V>(0.6366197723675814), shift);
  const V n = shifted - shift;
  const V first = x - n * gw_const<V>(1.5707963267341256), part = n * gw_const<V>(6.077100506303966e-11);
  const V second = first - part;
  const V small = n * gw_const<V>(2.0222662487959506e-21) - ((first - second) - part);
  const V r = second - small;
  return {r, (second - r) - small, gw_difference(gw_bits_of(shifted), gw_bits_of(shift))};
}
// sin(n pi / 2 + r).
template <class V>
GW_INLINE V gw_wave(gw_turned<V> x) {
  const V r = x.r, z = r * r, half = gw_const<V>(0.5) * z;
  const V s = gw_polynomial(z, -7.586685070091267e-13, 1.605853141458901e-10, -2.5052106231157904e-08,
                            2.7557319219335453e-06, -0.0001984126984126506, 0.008333333333333331, -0.16666666666666666);
  const V c = gw_polynomial(z, -1.1382614868413877e-11, 2.087614602468733e-09, -2.755731727056031e-07,
                            2.4801587298763433e-05, -0.0013888888888887395, 0.041666666666666664);
  const V one = gw_const<V>(1), about = one - half;
  const V sine = r + gw_fma(s, z * r, x.lost - half * x.lost);
  const V cosine = about + (((one - about) - half) + gw_fma(c, z * z, -(r * x.lost)));
  const gw_ints<V> unit = gw_const<gw_ints<V>>(1);
  const V either = gw_select((x.n & unit) == unit, cosine, sine);
  return gw_select(((x.n >> 1) & unit) == unit, -either, either);
}

// Lanes in which `rare` is true are computed one by one by the C library.
template <class M, class V, class F, class... Args>
GW_INLINE V gw_except(M rare, V common, F function, Args... args) {
  if (__builtin_expect(gw_any(rare), 0)) {
    if constexpr (std::is_arithmetic_v<V>) {
      return function(args...);
    } else {
      for (int i = 0; i < gw_count<V>; ++i)
        if (rare[i]) common[i] = function(args[i]...);
    }
  }
  return common;
}
template <class V>
GW_INLINE auto gw_has_far_angle(V x) {
  return gw_not(gw_abs(x) < gw_const<V>(1e6));
}
template <class V>
GW_INLINE V gw_sin_wide(V x) {
  const V y = gw_select(x == V{}, x, gw_wave(gw_reduced(x)));  // -0 stays
  return gw_except(gw_has_far_angle(x), y, [](double at) { return gw_library::sin(at); }, x);
}
template <class V>
GW_INLINE V gw_cos_wide(V x) {
  gw_turned<V> turned = gw_reduced(x);
  turned.n = gw_sum(turned.n, gw_const<gw_ints<V>>(1));
  return gw_except(gw_has_far_angle(x), gw_wave(turned), [](double at) { return gw_library::cos(at); }, x);
}
// x^y through the logarithm, which is precise enough for results that are rounded to float. Numbers with a sign, zeros
// whose powers are infinite, and infinities go to the C library.
template <class V>
GW_INLINE V gw_pow_of_floats(V x, V y) {
  const V infinity = gw_const<V>(gw_infinity), zero{};
  const auto usual = gw_and(gw_and(gw_bits_of(x) >= gw_ints<V>{}, x < infinity),
                            gw_and(gw_abs(y) < infinity, gw_or(x > zero, y > zero)));
  return gw_except(
      gw_not(usual), gw_exp(y * gw_log(x)),
      [](double a, double b) { return (double)gw_library::pow((float)a, (float)b); }, x, y);
}

// Applies `function` to doubles. Floats are computed as doubles and rounded once.
template <class V, class F, class... Args>
GW_INLINE V gw_through_double(F function, V x, Args... more) {
  if constexpr (!gw_is_single<V>) {
    return function(x, more...);
  } else if constexpr (std::is_arithmetic_v<V>) {
    return (float)function((double)x, (double)more...);
  } else {
    const auto low = function(gw_converted<double>(gw_low(x)), gw_converted<double>(gw_low(more))...);
    const auto high = function(gw_converted<double>(gw_high(x)), gw_converted<double>(gw_high(more))...);
    return gw_joined(gw_converted<float>(low), gw_converted<float>(high));
  }
}
#define GW_WIDE(name)                                                     \
  template <class V>                                                      \
  GW_INLINE V name(V x) {                                                 \
    return gw_through_double([](auto at) { return name##_wide(at); }, x); \
  }
GW_WIDE(gw_expm1)
GW_WIDE(gw_erf)
GW_WIDE(gw_sin)
GW_WIDE(gw_cos)
#undef GW_WIDE

template <class V>
GW_INLINE V gw_pow(V x, V y) {
  if constexpr (gw_is_single<V>)
    return gw_through_double([](auto a, auto b) { return gw_pow_of_floats(a, b); }, x, y);
  else
    return gw_each([](double a, double b) { return gw_library::pow(a, b); }, x, y);
}
template <class V>
GW_INLINE V gw_atan2(V y, V x) {
  return gw_each([](auto a, auto b) { return gw_library::atan2(a, b); }, y, x);
}

template <class V>
GW_INLINE V gw_tanh(V x) {
  const V a = gw_abs(x), one = gw_const<V>(1), two = gw_const<V>(2);
  V y;
  if constexpr (gw_is_single<V>) {
    const V t = a * a;
    const V p = gw_polynomial(t, -0.00609670822f, 0.0209971737f, -0.053850908f, 0.133327697f, -0.333333289f);
    const V far = one - two / (gw_exp(two * a) + one);
    y = gw_select(a < gw_const<V>(0.625f), gw_fma(p * t, a, a), far);
  } else {
    const V e = gw_expm1_wide(two * a);
    y = gw_select(a < one, e / (e + two), one - two / (e + two));
  }
  return gw_with_sign(y, x);  // -0 keeps its sign
}

template <class V>
GW_INLINE V gw_sigmoid(V x) {
  const V one = gw_const<V>(1);
  return one / (one + gw_exp(-x));
}
