// bfloat16, used for storage. It converts to float.
#pragma once

#include <graphweave/lanes.h>

#define GW_HAS_BFLOAT16

// The upper half of a float, rounded to even.
struct gw_bf16 {
  uint16_t bits;
  gw_bf16() = default;
  explicit inline gw_bf16(float x) {
    const uint32_t b = (uint32_t)gw_bits(x);
    bits = (b & 0x7fffffffu) > 0x7f800000u ? (uint16_t)((b >> 16) | 0x40u)
                                           : (uint16_t)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
  }
  inline operator float() const { return gw_float((int32_t)((uint32_t)bits << 16)); }
};

// Its lanes are floats.
template <>
struct gw_memory<gw_bf16> {
  typedef uint16_t stored;
  static constexpr int DENORMAL = 0x20;
  template <class V>
  GW_INLINE_MEMBER static auto read(V v) {
    return (gw_vec<float, gw_count<V>>)(gw_converted<uint32_t>(v) << 16);
  }
  template <class V>
  GW_INLINE_MEMBER static auto written(V x) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    if constexpr (gw_count<V> == 16) {  // the instruction takes denormal numbers for 0
      if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)x, DENORMAL) == 0, 1))
        return (gw_vec<uint16_t, 16>)_mm512_cvtneps_pbh((__m512)x);
    }
#endif
    const auto b = (gw_naturals<V>)x, top = b >> 16;
    const auto rounded = (b + 0x7fffu + (top & 1u)) >> 16;
    return gw_converted<uint16_t>(gw_select(x != x, top | 0x40u, rounded));
  }
};
