// bfloat16, for storage: it converts to float.
#pragma once

#include <graphweave/numbers.h>

#define GW_BFLOAT16

// the upper half of a float, rounded to even
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
