// Vectors as wide as the machine's registers.
#pragma once

#include <graphweave/numbers.h>
#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

// Constants of products: bytes of a vector, the most vectors in one row of a block, and the vectors of a block that fit
// into registers.
#if defined(__AVX512F__)
constexpr int gw_bytes_of_vector = 64, gw_vectors = 4, gw_registers = 24;
#elif defined(__AVX__)
constexpr int gw_bytes_of_vector = 32, gw_vectors = 2, gw_registers = 12;
#else
constexpr int gw_bytes_of_vector = 16, gw_vectors = 2, gw_registers = 12;
#endif

// A vector of W elements. For W = 1 it is the element itself.
template <class T, int W>
struct gw_vector {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
};
template <class T>
struct gw_vector<T, 1> {
  typedef T type;
};

// a * b + c, fused here and not by the compiler, which might fuse it in one block and not in another.
template <class V>
GW_INLINE V gw_fma(V a, V b, V c) {
#if defined(__ARM_FEATURE_FMA)
  for (unsigned i = 0; i < sizeof(V) / sizeof(a[0]); ++i) c[i] = gw_madd(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}
GW_INLINE float gw_fma(float a, float b, float c) { return gw_madd(a, b, c); }
GW_INLINE double gw_fma(double a, double b, double c) { return gw_madd(a, b, c); }
#if defined(__FMA__)
#define GW_FMA(number, width, raw, call)                                                                              \
  GW_INLINE gw_vector<number, width>::type gw_fma(gw_vector<number, width>::type a, gw_vector<number, width>::type b, \
                                                  gw_vector<number, width>::type c) {                                 \
    return (gw_vector<number, width>::type)call((raw)a, (raw)b, (raw)c);                                              \
  }
GW_FMA(float, 4, __m128, _mm_fmadd_ps)
GW_FMA(float, 8, __m256, _mm256_fmadd_ps)
GW_FMA(double, 2, __m128d, _mm_fmadd_pd)
GW_FMA(double, 4, __m256d, _mm256_fmadd_pd)
#if defined(__AVX512F__)
GW_FMA(float, 16, __m512, _mm512_fmadd_ps)
GW_FMA(double, 8, __m512d, _mm512_fmadd_pd)
#endif
#undef GW_FMA
#endif

// a0 * b0 + a1 * b1 + c, where a is two bfloat16 numbers, with a0 in the lower half. Instructions for this round
// differently.
GW_INLINE float gw_fma(int32_t a, int32_t b, float c) {
  const float low = gw_madd(gw_float((int32_t)((uint32_t)a << 16)), gw_float((int32_t)((uint32_t)b << 16)), c);
  return gw_madd(gw_float(a & ~0xffff), gw_float(b & ~0xffff), low);
}
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
#define GW_PAIRS(width, half, raw, call)                                                                               \
  GW_INLINE gw_vector<float, width>::type gw_fma(gw_vector<int32_t, width>::type a, gw_vector<int32_t, width>::type b, \
                                                 gw_vector<float, width>::type c) {                                    \
    return (gw_vector<float, width>::type)call((raw)c, (half)a, (half)b);                                              \
  }
GW_PAIRS(4, __m128bh, __m128, _mm_dpbf16_ps)
GW_PAIRS(8, __m256bh, __m256, _mm256_dpbf16_ps)
GW_PAIRS(16, __m512bh, __m512, _mm512_dpbf16_ps)
#else
#define GW_PAIRS(width)                                                                                                \
  GW_INLINE gw_vector<float, width>::type gw_fma(gw_vector<int32_t, width>::type a, gw_vector<int32_t, width>::type b, \
                                                 gw_vector<float, width>::type c) {                                    \
    typedef gw_vector<float, width>::type V;                                                                           \
    return gw_fma((V)(a & ~0xffff), (V)(b & ~0xffff), gw_fma((V)(a << 16), (V)(b << 16), c));                          \
  }
GW_PAIRS(4)
GW_PAIRS(8)
GW_PAIRS(16)
#endif
#undef GW_PAIRS

// The width of the widest vector that fits into J columns.
template <class T, int J>
constexpr int gw_width() {
  int width = gw_bytes_of_vector / sizeof(T);
  while (width > J) width /= 2;
  return width * (int)sizeof(T) < 16 ? 1 : width;
}
