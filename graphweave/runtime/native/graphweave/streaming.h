// Stores that bypass the cache, for outputs too large to stay in it.
#pragma once

#include <graphweave/base.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

// An output of at least this many bytes is not expected to stay in cache.
constexpr int64_t gw_streamed_from = 16 << 20;

// Copies 64-byte lines to 64-byte aligned memory, bypassing the cache.
GW_INLINE void gw_stream(void* to, const void* from, int64_t bytes) {
#if defined(__AVX512F__)
  for (int64_t i = 0; i < bytes; i += 64)
    _mm512_stream_si512((__m512i*)((char*)to + i), _mm512_load_si512((const char*)from + i));
#elif defined(__AVX__)
  for (int64_t i = 0; i < bytes; i += 32)
    _mm256_stream_si256((__m256i*)((char*)to + i), _mm256_load_si256((const __m256i*)((const char*)from + i)));
#else
  memcpy(to, from, bytes);
#endif
}
// Stores a vector of a product, bypassing the cache if it `streams`, in which case `to` is aligned.
template <class V>
GW_INLINE void gw_put(void* to, V v, bool streams) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64)
    if (streams) return _mm512_stream_si512((__m512i*)to, (__m512i)v);
#elif defined(__AVX__)
  if constexpr (sizeof(V) == 32)
    if (streams) return _mm256_stream_si256((__m256i*)to, (__m256i)v);
#endif
  memcpy(to, &v, sizeof v);
}
// Whether an output at `to` should be streamed.
GW_INLINE bool gw_streams(const void* to, int64_t bytes) {
  return bytes >= gw_streamed_from && (uintptr_t)to % 64 == 0;
}
// Call this after the last streamed store, so that other threads see all of them.
GW_INLINE void gw_streamed() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}
