// float16, used for storage. It converts to float.
#pragma once

#include <graphweave/lanes.h>

#if !defined(__FLT16_MANT_DIG__)
#error "half precision needs a compiler with _Float16 (GCC 12, clang 15)"
#endif
typedef _Float16 gw_f16;

// Its lanes are floats.
template <>
struct gw_memory<gw_f16> {
  typedef uint16_t stored;
  template <class V>
  GW_INLINE_MEMBER static auto read(V v) {
    constexpr int W = gw_count<V>;
#if defined(__AVX512F__)
    if constexpr (W == 16) return (gw_vec<float, W>)_mm512_cvtph_ps((__m256i)v);
#endif
#if defined(__F16C__)
    if constexpr (W == 8) return (gw_vec<float, W>)_mm256_cvtph_ps((__m128i)v);
    if constexpr (W == 4) return (gw_vec<float, W>)_mm_cvtph_ps(_mm_cvtsi64_si128((long long)v));
#endif
    gw_f16 halves[W];
    memcpy(halves, &v, sizeof v);
    gw_vec<float, W> x;
    for (int i = 0; i < W; ++i) x[i] = (float)halves[i];
    return x;
  }
  template <class V>
  GW_INLINE_MEMBER static auto written(V x) {
    constexpr int W = gw_count<V>;
    typedef gw_vec<uint16_t, W> R;
#if defined(__AVX512F__)
    if constexpr (W == 16) return (R)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
#if defined(__F16C__)
    if constexpr (W == 8) return (R)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
    if constexpr (W == 4) return (R)_mm_cvtsi128_si64(_mm_cvtps_ph((__m128)x, _MM_FROUND_TO_NEAREST_INT));
#endif
    gw_f16 halves[W];
    for (int i = 0; i < W; ++i) halves[i] = (gw_f16)x[i];
    R v;
    memcpy(&v, halves, sizeof v);
    return v;
  }
};
