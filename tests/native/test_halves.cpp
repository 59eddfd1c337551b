// Half precision: every number goes to float and back; numbers between two go to the even one.
#include <graphweave/bfloat16.h>
#ifdef __FLT16_MANT_DIG__
#include <graphweave/float16.h>
#endif

#include "check.h"

static uint16_t rounded(float x) { return gw_bf16(x).bits; }

int main() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    gw_bf16 half;
    half.bits = (uint16_t)bits;
    const float x = half;
    if (x != x) continue;
    CHECK(rounded(x) == bits, "%x became %x", bits, rounded(x));
    if ((bits & 0x7fff) >= 0x7f7f) continue;  // nothing finite is larger
    const int32_t low = (int32_t)(bits << 16);
    const uint16_t even = (uint16_t)(bits + (bits & 1));
    CHECK(rounded(gw_float(low + 0x8000)) == even, "half way from %x to %x", bits, rounded(gw_float(low + 0x8000)));
    CHECK(rounded(gw_float(low + 0x7fff)) == bits, "below half of %x", bits);
    CHECK(rounded(gw_float(low + 0x8001)) == bits + 1, "above half of %x", bits);
  }
  for (uint32_t bits :
       {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {  // those that rounding would carry over, too
    const float nan = gw_bf16(gw_float((int32_t)bits));
    CHECK(nan != nan, "NaN %x became a number", bits);
  }
  CHECK(rounded(std::numeric_limits<float>::max()) == 0x7f80, "the largest float is nearer to infinity");
#ifdef __FLT16_MANT_DIG__
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t stored = (uint16_t)bits;
    gw_f16 half;
    memcpy(&half, &stored, sizeof half);
    const gw_f16 back = (gw_f16)(float)half;
    uint16_t after;
    memcpy(&after, &back, sizeof after);
    CHECK(after == stored || (float)half != (float)half, "%x became %x", bits, after);
  }
#endif
}
