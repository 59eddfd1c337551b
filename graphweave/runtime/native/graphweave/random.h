// Random numbers as a function of a seed and a position: Philox-2x32 of ten rounds, as in ir/philox.py.
#pragma once

#include <graphweave/base.h>

GW_INLINE void gw_philox_round(uint32_t& a, uint32_t& b, uint32_t key) {
  const uint64_t product = (uint64_t)a * 0xd256d193u;
  a = (uint32_t)(product >> 32) ^ key ^ b;
  b = (uint32_t)product;
}
// the first word of a block, and the second in `b`; the rounds are written out so that a loop over lanes vectorises
GW_INLINE uint32_t gw_philox(int64_t seed, int64_t position, uint32_t& b) {
  const uint32_t weyl = 0x9e3779b9u, key = (uint32_t)seed;
  uint32_t a = (uint32_t)position;
  b = (uint32_t)((uint64_t)position >> 32) ^ (uint32_t)((uint64_t)seed >> 32);
  gw_philox_round(a, b, key);
  gw_philox_round(a, b, key + 1 * weyl);
  gw_philox_round(a, b, key + 2 * weyl);
  gw_philox_round(a, b, key + 3 * weyl);
  gw_philox_round(a, b, key + 4 * weyl);
  gw_philox_round(a, b, key + 5 * weyl);
  gw_philox_round(a, b, key + 6 * weyl);
  gw_philox_round(a, b, key + 7 * weyl);
  gw_philox_round(a, b, key + 8 * weyl);
  gw_philox_round(a, b, key + 9 * weyl);
  return a;
}
// in [0, 1), of 24 bits
GW_INLINE float gw_uniform_f32(int64_t seed, int64_t position) {
  uint32_t b;
  return (float)(int32_t)(gw_philox(seed, position, b) >> 8) * 5.9604644775390625e-08f;
}
// in [0, 1), of 53 bits
GW_INLINE double gw_uniform_f64(int64_t seed, int64_t position) {
  uint32_t b;
  const uint32_t a = gw_philox(seed, position, b);
  return (double)(int64_t)(((uint64_t)a << 21) + (b >> 11)) * 1.1102230246251565e-16;
}
