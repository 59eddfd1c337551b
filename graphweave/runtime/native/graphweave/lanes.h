// Loops over lanes as loops over vectors. W neighbouring lanes are one vector, of which the first K are loaded and
// stored.
#pragma once

#include <graphweave/lane_values.h>

// Attribute of a lambda that is the body of a loop.
#define GW_BODY __attribute__((always_inline))

template <int W, int K>
struct gw_some_lanes {
  static constexpr int lanes = W, there = K;
};
// Calls body(vectors, c) for the lanes c, c + 1, ... of each vector of a loop over N lanes. The lanes left after whole
// vectors form a vector that is only partly used, or, with `PIECES`, shorter whole vectors as far as possible. Vectors
// have at most VECTOR bytes.
template <int64_t N, int SIZE, bool PIECES = false, int VECTOR = gw_bytes_of_vector, int64_t FIRST = 0, class F>
GW_INLINE void gw_over(F body) {
  constexpr int W = gw_lanes(N - FIRST, SIZE, VECTOR), LEFT = (N - FIRST) % W;
  if constexpr (PIECES && N - FIRST < W && W * SIZE > 16) {
    body(gw_some_lanes<W / 2, W / 2>{}, FIRST);
    gw_over<N, SIZE, PIECES, VECTOR, FIRST + W / 2>(body);
  } else {
    for (int64_t c = FIRST; c + W <= N; c += W) body(gw_some_lanes<W, W>{}, c);
    if constexpr (LEFT > 0 && N - FIRST > W)
      gw_over<N, SIZE, PIECES, VECTOR, N - LEFT>(body);
    else if constexpr (LEFT > 0)
      body(gw_some_lanes<W, LEFT>{}, N - LEFT);
  }
}

// ---------------------------------------------------------------- memory

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#define GW_MASKED_MEMORY
// Loads the first K of W elements at p, followed by zeros. Each element has BYTES bytes.
template <int BYTES, int W, int K>
GW_INLINE auto gw_first_of(const void* p) {
  constexpr unsigned long long mask = K >= 64 ? ~0ull : (1ull << K) - 1;
  constexpr int SIZE = BYTES * W;
  if constexpr (SIZE == 64 && BYTES == 8)
    return _mm512_maskz_loadu_epi64((__mmask8)mask, p);
  else if constexpr (SIZE == 64 && BYTES == 4)
    return _mm512_maskz_loadu_epi32((__mmask16)mask, p);
  else if constexpr (SIZE == 64 && BYTES == 2)
    return _mm512_maskz_loadu_epi16((__mmask32)mask, p);
  else if constexpr (SIZE == 64)
    return _mm512_maskz_loadu_epi8((__mmask64)mask, p);
  else if constexpr (SIZE == 32 && BYTES == 8)
    return _mm256_maskz_loadu_epi64((__mmask8)mask, p);
  else if constexpr (SIZE == 32 && BYTES == 4)
    return _mm256_maskz_loadu_epi32((__mmask8)mask, p);
  else if constexpr (SIZE == 32 && BYTES == 2)
    return _mm256_maskz_loadu_epi16((__mmask16)mask, p);
  else if constexpr (SIZE == 32)
    return _mm256_maskz_loadu_epi8((__mmask32)mask, p);
  else if constexpr (BYTES == 8)
    return _mm_maskz_loadu_epi64((__mmask8)mask, p);
  else if constexpr (BYTES == 4)
    return _mm_maskz_loadu_epi32((__mmask8)mask, p);
  else if constexpr (BYTES == 2)
    return _mm_maskz_loadu_epi16((__mmask8)mask, p);
  else
    return _mm_maskz_loadu_epi8((__mmask16)mask, p);
}
template <int BYTES, int K, class R>
GW_INLINE void gw_put_first(void* p, R v) {
  constexpr unsigned long long mask = K >= 64 ? ~0ull : (1ull << K) - 1;
  constexpr int SIZE = sizeof(R);
  if constexpr (SIZE == 64 && BYTES == 8)
    _mm512_mask_storeu_epi64(p, (__mmask8)mask, (__m512i)v);
  else if constexpr (SIZE == 64 && BYTES == 4)
    _mm512_mask_storeu_epi32(p, (__mmask16)mask, (__m512i)v);
  else if constexpr (SIZE == 64 && BYTES == 2)
    _mm512_mask_storeu_epi16(p, (__mmask32)mask, (__m512i)v);
  else if constexpr (SIZE == 64)
    _mm512_mask_storeu_epi8(p, (__mmask64)mask, (__m512i)v);
  else if constexpr (SIZE == 32 && BYTES == 8)
    _mm256_mask_storeu_epi64(p, (__mmask8)mask, (__m256i)v);
  else if constexpr (SIZE == 32 && BYTES == 4)
    _mm256_mask_storeu_epi32(p, (__mmask8)mask, (__m256i)v);
  else if constexpr (SIZE == 32 && BYTES == 2)
    _mm256_mask_storeu_epi16(p, (__mmask16)mask, (__m256i)v);
  else if constexpr (SIZE == 32)
    _mm256_mask_storeu_epi8(p, (__mmask32)mask, (__m256i)v);
  else if constexpr (BYTES == 8)
    _mm_mask_storeu_epi64(p, (__mmask8)mask, (__m128i)v);
  else if constexpr (BYTES == 4)
    _mm_mask_storeu_epi32(p, (__mmask8)mask, (__m128i)v);
  else if constexpr (BYTES == 2)
    _mm_mask_storeu_epi16(p, (__mmask8)mask, (__m128i)v);
  else
    _mm_mask_storeu_epi8(p, (__mmask16)mask, (__m128i)v);
}
#endif

// Loads the numbers p[0] .. p[K - 1], followed by zeros.
template <int W, int K, class T>
GW_INLINE gw_vec<T, W> gw_load_numbers(const T* p) {
  if constexpr (K <= 0) {
    return gw_vec<T, W>{};
  } else if constexpr (K >= W) {
    gw_vec<T, W> v;
    memcpy(&v, p, sizeof v);
    return v;
  } else if constexpr (K * sizeof(T) < 16 && K < 4) {  // so that an array this small can stay in registers
    gw_vec<T, W> v{};
#pragma GCC unroll 4
    for (int i = 0; i < K; ++i) v[i] = p[i];
    return v;
  } else if constexpr (K * sizeof(T) % 16 == 0 && (K == W / 2 || K == W / 4)) {
    return gw_joined(gw_load_numbers<W / 2, K>(p), gw_vec<T, W / 2>{});
#if defined(GW_MASKED_MEMORY)
  } else if constexpr (sizeof(T) * W >= 16 && sizeof(T) * W <= 64) {
    return (gw_vec<T, W>)gw_first_of<sizeof(T), W, K>(p);
#endif
  } else if constexpr (W <= 2) {
    return gw_vec<T, W>{p[0]};
  } else {
    return gw_joined(gw_load_numbers<W / 2, K>(p), gw_load_numbers<W / 2, K - W / 2>(p + W / 2));
  }
}
template <int K, class V, class T>
GW_INLINE void gw_store_numbers(T* p, V v) {
  constexpr int W = gw_count<V>;
  if constexpr (K <= 0) {
    return;
  } else if constexpr (K >= W) {
    memcpy(p, &v, sizeof v);
  } else if constexpr (K * sizeof(T) < 16 && K < 4) {
#pragma GCC unroll 4
    for (int i = 0; i < K; ++i) p[i] = v[i];
#if defined(GW_MASKED_MEMORY)
  } else if constexpr (sizeof v >= 16 && sizeof v <= 64) {
    gw_put_first<sizeof(T), K>(p, v);
#endif
  } else if constexpr (W <= 2) {
    p[0] = v[0];
  } else {
    gw_store_numbers<K>(p, gw_low(v));
    gw_store_numbers<K - W / 2>(p + W / 2, gw_high(v));
  }
}

// How numbers of type T lie in memory, and how their lanes lie in registers. Types that are only stored specialise it.
template <class T>
struct gw_memory {
  typedef T stored;
  template <class V>
  GW_INLINE_MEMBER static V read(V v) {
    return v;
  }
  template <class V>
  GW_INLINE_MEMBER static V written(V v) {
    return v;
  }
};
template <>
struct gw_memory<bool> {
  typedef uint8_t stored;
  template <class V>
  GW_INLINE_MEMBER static auto read(V v) {
    return gw_converted<int32_t>(v) != 0;
  }
  template <class M>
  GW_INLINE_MEMBER static auto written(M m) {
    return gw_converted<uint8_t>(gw_mask<4>(m)) & 1;
  }
};

template <int W, int K = W, class T>
GW_INLINE auto gw_load(const T* p) {
  return gw_memory<T>::read(gw_load_numbers<W, K>((const typename gw_memory<T>::stored*)p));
}
template <int W, int K = W, class T, class V>
GW_INLINE void gw_store(T* p, V v) {
  gw_store_numbers<K>((typename gw_memory<T>::stored*)p, gw_memory<T>::written(v));
}
// Loads elements that are not contiguous: the element of lane i is p[at(c + i)].
template <int W, int K = W, class T, class At>
GW_INLINE auto gw_gather(const T* p, int64_t c, At at) {
  const auto* const numbers = (const typename gw_memory<T>::stored*)p;
  gw_vec<typename gw_memory<T>::stored, W> v{};
#pragma GCC unroll 64
  for (int i = 0; i < K; ++i) v[i] = numbers[at(c + i)];
  return gw_memory<T>::read(v);
}
template <int W, int K = W, class T, class At, class V>
GW_INLINE void gw_scatter(T* p, int64_t c, At at, V lanes) {
  auto* const numbers = (typename gw_memory<T>::stored*)p;
  const auto v = gw_memory<T>::written(lanes);
#pragma GCC unroll 64
  for (int i = 0; i < K; ++i) numbers[at(c + i)] = v[i];
}
#if defined(GW_SHUFFLES)
// Takes elements PHASE + i STEP of an array in those lanes i whose element lies in vector Q of the array, which is
// `next`. Other lanes keep the elements of v.
template <int STEP, int PHASE, int Q, class V, int... I>
GW_INLINE V gw_taken(V v, V next, std::integer_sequence<int, I...>) {
  constexpr int W = gw_count<V>;
  return __builtin_shufflevector(v, next, ((PHASE + I * STEP) / W == Q ? W + (PHASE + I * STEP) % W : I)...);
}
template <int STEP, int PHASE, int K, int Q, class V, class T>
GW_INLINE V gw_take(const T* p, V v) {
  constexpr int W = gw_count<V>, there = PHASE + (K - 1) * STEP + 1 - Q * W;
  if constexpr (there <= 0) {
    return v;
  } else {
    const V next = gw_load_numbers<W, there>(p + Q * W);
    return gw_take<STEP, PHASE, K, Q + 1>(p, gw_taken<STEP, PHASE, Q>(v, next, std::make_integer_sequence<int, W>()));
  }
}
#endif
// As gw_gather, for elements p[PHASE], p[PHASE + STEP], ... If the step is short, few vectors are loaded instead.
template <int STEP, int PHASE, int W, int K = W, class T>
GW_INLINE auto gw_load_steps(const T* p) {
#if defined(GW_SHUFFLES)
  if constexpr (STEP > 0 && STEP <= 8) {
    const auto* const numbers = (const typename gw_memory<T>::stored*)p;
    return gw_memory<T>::read(gw_take<STEP, PHASE, K, 0>(numbers, gw_vec<typename gw_memory<T>::stored, W>{}));
  }
#endif
  return gw_gather<W, K>(p, 0, [](int64_t i) { return PHASE + i * STEP; });
}
template <int STEP, int W, int K = W, class T, class V>
GW_INLINE void gw_store_steps(T* p, V v) {
  gw_scatter<W, K>(p, 0, [](int64_t i) { return i * STEP; }, v);
}
// As gw_gather, for places that are given by lanes.
template <int W, int K = W, class T, class V>
GW_INLINE auto gw_gather_at(const T* p, V places) {
  return gw_gather<W, K>(p, 0, [&](int64_t i) { return (int64_t)places[i]; });
}
template <int W, int K = W, class T, class P, class V>
GW_INLINE void gw_scatter_at(T* p, P places, V lanes) {
  gw_scatter<W, K>(p, 0, [&](int64_t i) { return (int64_t)places[i]; }, lanes);
}

// Rounds x as if it were stored as T and loaded again.
template <class T, class V>
GW_INLINE V gw_rounded(V x) {
  return gw_memory<T>::read(gw_memory<T>::written(x));
}
