// Random numbers as a function of a seed and a position: Philox-2x32 with ten rounds, as in ir/philox.py. Positions are
// numbers or vectors of numbers.
#pragma once

#include <graphweave/lane_values.h>

// a * b for numbers below 2^32.
template <class V>
GW_INLINE V gw_wide_product(V a, V b) {
  return a * b;
}
#if defined(__SSE2__)
GW_INLINE gw_vec<uint64_t, 2> gw_wide_product(gw_vec<uint64_t, 2> a, gw_vec<uint64_t, 2> b) {
  return (gw_vec<uint64_t, 2>)_mm_mul_epu32((__m128i)a, (__m128i)b);
}
#endif
#if defined(__AVX2__)
GW_INLINE gw_vec<uint64_t, 4> gw_wide_product(gw_vec<uint64_t, 4> a, gw_vec<uint64_t, 4> b) {
  return (gw_vec<uint64_t, 4>)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
#endif
#if defined(__AVX512F__)
GW_INLINE gw_vec<uint64_t, 8> gw_wide_product(gw_vec<uint64_t, 8> a, gw_vec<uint64_t, 8> b) {
  return (gw_vec<uint64_t, 8>)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}
#endif

// A block of two words, each in the low half of its number.
template <class V>
struct gw_words {
  V a, b;
};
template <class V>
GW_INLINE gw_words<gw_naturals<V>> gw_philox(int64_t seed, V position) {
  typedef gw_naturals<V> N;
  const N low = gw_const<N>(0xffffffffu), factor = gw_const<N>(0xd256d193u), at = (N)position;
  const uint32_t weyl = 0x9e3779b9u, key = (uint32_t)seed;
  N a = at & low, b = (at >> 32) ^ gw_const<N>((uint64_t)seed >> 32);
#pragma GCC unroll 10
  for (uint32_t round = 0; round < 10; ++round) {
    const N product = gw_wide_product(a, factor);
    a = (product >> 32) ^ gw_const<N>((uint32_t)(key + round * weyl)) ^ b;
    b = product & low;
  }
  return {a, b};
}
// A number in [0, 1) with 24 random bits.
template <class V>
GW_INLINE auto gw_uniform_f32(int64_t seed, V position) {
  const auto word = gw_philox(seed, position).a >> 8;
  if constexpr (std::is_arithmetic_v<V>)
    return (float)(int32_t)word * 5.9604644775390625e-08f;
  else
    return gw_converted<float>(gw_converted<int32_t>(word)) * 5.9604644775390625e-08f;
}
// A number in [0, 1) with 53 random bits.
template <class V>
GW_INLINE auto gw_uniform_f64(int64_t seed, V position) {
  const auto words = gw_philox(seed, position);
  const auto bits = (words.a << 21) + (words.b >> 11);
  if constexpr (std::is_arithmetic_v<V>)
    return (double)(int64_t)bits * 1.1102230246251565e-16;
  else
    return gw_converted<double>((V)bits) * 1.1102230246251565e-16;
}
