// Vectors of lanes in registers: their element types, conversions, choices, arithmetic.
//
// Truth values are masks: vectors of integers that are 0 or -1, of the size that the comparison gave.
#pragma once

#include <graphweave/vectors.h>

#include <type_traits>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#pragma GCC diagnostic ignored "-Wpsabi"  // everything here is inlined, so no vector is passed by any ABI

template <class T, int W>
using gw_vec = typename gw_vector<T, W>::type;

// The type of a vector's elements. The element of a number is the number itself.
template <class V, bool = std::is_arithmetic_v<V>>
struct gw_made_of {
  typedef V type;
};
template <class V>
struct gw_made_of<V, false> {
  typedef std::remove_reference_t<decltype(std::declval<V&>()[0])> type;
};
template <class V>
using gw_element = typename gw_made_of<V>::type;
template <class V>
constexpr int gw_count = sizeof(V) / sizeof(gw_element<V>);

template <int BYTES>
using gw_signed =
    std::conditional_t<BYTES == 8, int64_t,
                       std::conditional_t<BYTES == 4, int32_t, std::conditional_t<BYTES == 2, int16_t, int8_t>>>;
template <int BYTES>
using gw_unsigned = std::make_unsigned_t<gw_signed<BYTES>>;
// A vector of integers with as many elements as V, of the same size.
template <class V>
using gw_ints = gw_vec<gw_signed<sizeof(gw_element<V>)>, gw_count<V>>;
template <class V>
using gw_naturals = gw_vec<gw_unsigned<sizeof(gw_element<V>)>, gw_count<V>>;

// The number of lanes of a vector in a loop over `extent` lanes whose widest values have `bytes` bytes. It is as many
// as fit into a register of the machine and into `vector` bytes, but less than twice the extent, unless a vector would
// then be shorter than 16 bytes.
constexpr int gw_lanes(int64_t extent, int bytes, int vector = gw_bytes_of_vector) {
  int width = (vector < gw_bytes_of_vector ? vector : gw_bytes_of_vector) / bytes;
  while (width / 2 >= extent && width * bytes > 16) width /= 2;
  return width;
}

// ---------------------------------------------------------------- from numbers

template <int W, class T>
GW_INLINE auto gw_all(T x) {
  if constexpr (std::is_same_v<T, bool>)
    return gw_vec<int32_t, W>{} - (int32_t)x;
  else
    return x - gw_vec<T, W>{};  // minus, not plus, so that -0 stays
}
// A vector with the number in every lane.
template <class V>
GW_INLINE V gw_const(gw_element<V> x) {
  return x - V{};
}
// The numbers first, first + STEP, ...
template <int W, int64_t STEP = 1>
GW_INLINE gw_vec<int64_t, W> gw_from(int64_t first) {
  gw_vec<int64_t, W> steps;
#pragma GCC unroll 64
  for (int i = 0; i < W; ++i) steps[i] = i * STEP;
  return first + steps;
}

// ---------------------------------------------------------------- bits

template <class V>
GW_INLINE gw_ints<V> gw_bits_of(V x) {
  if constexpr (std::is_arithmetic_v<V>)
    return gw_bits(x);
  else
    return (gw_ints<V>)x;
}
template <class V>
GW_INLINE V gw_of_bits(gw_ints<V> bits) {
  if constexpr (std::is_same_v<V, float>)
    return gw_float(bits);
  else if constexpr (std::is_same_v<V, double>)
    return gw_double(bits);
  else
    return (V)bits;
}
// |x| with the sign of `sign`.
template <class V>
GW_INLINE V gw_with_sign(V x, V sign) {
  const gw_ints<V> top = gw_bits_of(gw_const<V>(gw_element<V>(-0.0)));
  return gw_of_bits<V>((gw_bits_of(x) & ~top) | (gw_bits_of(sign) & top));
}

// ---------------------------------------------------------------- halves of vectors

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define GW_SHUFFLES
#endif
#endif
#if defined(GW_SHUFFLES)
template <int FIRST, class V, int... I>
GW_INLINE auto gw_part(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (FIRST + I)...);
}
template <class V>
GW_INLINE auto gw_low(V v) {
  return gw_part<0>(v, std::make_integer_sequence<int, gw_count<V> / 2>());
}
template <class V>
GW_INLINE auto gw_high(V v) {
  return gw_part<gw_count<V> / 2>(v, std::make_integer_sequence<int, gw_count<V> / 2>());
}
template <class V, int... I>
GW_INLINE auto gw_side_by_side(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, I...);
}
template <class V>
GW_INLINE auto gw_joined(V low, V high) {
  return gw_side_by_side(low, high, std::make_integer_sequence<int, 2 * gw_count<V>>());
}
#else
template <class V>
GW_INLINE auto gw_low(V v) {
  gw_vec<gw_element<V>, gw_count<V> / 2> half;
  memcpy(&half, &v, sizeof half);
  return half;
}
template <class V>
GW_INLINE auto gw_high(V v) {
  gw_vec<gw_element<V>, gw_count<V> / 2> half;
  memcpy(&half, (const char*)&v + sizeof half, sizeof half);
  return half;
}
template <class V>
GW_INLINE auto gw_joined(V low, V high) {
  gw_vec<gw_element<V>, 2 * gw_count<V>> both;
  memcpy(&both, &low, sizeof low);
  memcpy((char*)&both + sizeof low, &high, sizeof high);
  return both;
}
#endif

// ---------------------------------------------------------------- conversions

template <class T, class V>
GW_INLINE auto gw_converted(V v) {
  constexpr int W = gw_count<V>;
  typedef gw_element<V> From;
  if constexpr (std::is_same_v<T, From>) {
    return v;
#if defined(__AVX2__)
  } else if constexpr (sizeof(From) == 1 && sizeof(T) == 4 && std::is_integral_v<T> && W == 8) {
    __m128i bytes = _mm_cvtsi64_si128((long long)v);
#if !defined(__clang__)
    asm("" : "+x"(bytes));  // GCC 12 fails without this, from memory and under a mask: "could not split insn"
#endif
    return (gw_vec<T, W>)(std::is_signed_v<From> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#endif
#if defined(__AVX512F__)
  } else if constexpr (sizeof(From) == 1 && sizeof(T) == 4 && std::is_integral_v<T> && W == 16) {
    return (gw_vec<T, W>)(std::is_signed_v<From> ? _mm512_cvtepi8_epi32((__m128i)v) : _mm512_cvtepu8_epi32((__m128i)v));
#endif
#if defined(__AVX512F__)  // as one instruction each, which GCC 12 does not choose
  } else if constexpr (sizeof(From) == 2 && sizeof(T) == 4 && std::is_integral_v<T> && W == 16) {
    return (gw_vec<T, W>)(std::is_signed_v<From> ? _mm512_cvtepi16_epi32((__m256i)v)
                                                 : _mm512_cvtepu16_epi32((__m256i)v));
  } else if constexpr (std::is_integral_v<From> && sizeof(From) == 4 && sizeof(T) == 2 && W == 16) {
    return (gw_vec<T, W>)_mm512_cvtepi32_epi16((__m512i)v);
#endif
#if defined(__SSE2__)
  } else if constexpr (sizeof(From) == 1 && sizeof(T) == 4 && std::is_integral_v<T> && W == 4) {
    int32_t word;
    memcpy(&word, &v, sizeof word);
    const __m128i bytes = _mm_cvtsi32_si128(word), twice = _mm_unpacklo_epi8(bytes, bytes);
    const __m128i top = _mm_unpacklo_epi16(twice, twice);
    return (gw_vec<T, W>)(std::is_signed_v<From> ? _mm_srai_epi32(top, 24) : _mm_srli_epi32(top, 24));
  } else if constexpr (std::is_same_v<From, int32_t> && sizeof(T) == 1 && W == 4) {
    const __m128i low = _mm_and_si128((__m128i)v, _mm_set1_epi32(255));
    const __m128i pairs = _mm_packs_epi32(low, low);
    const int32_t word = _mm_cvtsi128_si32(_mm_packus_epi16(pairs, pairs));
    gw_vec<T, W> out;
    memcpy(&out, &word, sizeof out);
    return out;
#endif
#if defined(__AVX2__)
  } else if constexpr (std::is_same_v<From, int32_t> && sizeof(T) == 1 && W == 8) {
    const __m256i low = _mm256_and_si256((__m256i)v, _mm256_set1_epi32(255));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    return (gw_vec<T, W>)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
#endif
  } else {
    return __builtin_convertvector(v, gw_vec<T, W>);
  }
}
// Converts integers to floating-point numbers of the same size.
template <class V>
GW_INLINE V gw_to_float(gw_ints<V> n) {
  if constexpr (std::is_arithmetic_v<V>)
    return (V)n;
  else
    return gw_converted<gw_element<V>>(n);
}
// The mask for elements of `BYTES` bytes.
template <int BYTES, class M>
GW_INLINE auto gw_mask(M m) {
  return gw_converted<gw_signed<BYTES>>(m);
}

// ---------------------------------------------------------------- choices, truths

GW_INLINE bool gw_and(bool a, bool b) { return a & b; }
GW_INLINE bool gw_or(bool a, bool b) { return a | b; }
GW_INLINE bool gw_not(bool a) { return !a; }
template <class M, class N>
GW_INLINE auto gw_and(M a, N b) {
  return a & gw_mask<sizeof(gw_element<M>)>(b);
}
template <class M, class N>
GW_INLINE auto gw_or(M a, N b) {
  return a | gw_mask<sizeof(gw_element<M>)>(b);
}
template <class M>
GW_INLINE M gw_not(M a) {
  return ~a;
}
template <class M, class N>
GW_INLINE auto gw_differ(M a, N b) {
  return a ^ gw_mask<sizeof(gw_element<M>)>(b);
}

template <class V>
GW_INLINE V gw_select(bool c, V a, V b) {
  if constexpr (std::is_arithmetic_v<V>)
    return c ? a : b;
  else  // no branch
    return (gw_ints<V>{} - (gw_element<gw_ints<V>>)c) ? a : b;
}
template <class M, class V>
GW_INLINE V gw_select(M m, V a, V b) {
  return gw_mask<sizeof(gw_element<V>)>(m) ? a : b;
}
// gw_select for masks.
template <class M, class A, class B>
GW_INLINE auto gw_select_truth(M m, A a, B b) {
  return gw_or(gw_and(m, a), gw_and(gw_not(m), b));
}
template <class A, class B>
GW_INLINE A gw_select_truth(bool c, A a, B b) {
  return gw_select(c, a, gw_mask<sizeof(gw_element<A>)>(b));
}
// 1 where the mask is true, else 0.
template <class T, class M>
GW_INLINE auto gw_ones(M m) {
  typedef gw_vec<T, gw_count<M>> V;
  return gw_select(m, gw_const<V>(1), V{});
}
// Whether any lane is true.
GW_INLINE bool gw_any(bool truth) { return truth; }
template <class M>
GW_INLINE bool gw_any(M m) {
  if constexpr (gw_count<M> == 1 || sizeof(M) <= 8) {
    bool any = false;
    for (int i = 0; i < gw_count<M>; ++i) any |= m[i] != 0;
    return any;
  } else if constexpr (sizeof(M) > 16) {
    return gw_any(gw_low(m) | gw_high(m));
  } else {
    uint64_t words[2];
    memcpy(words, &m, sizeof words);
    return (words[0] | words[1]) != 0;
  }
}
// The first K lanes of v. The other lanes, which are unused, become `other`, which a fold ignores.
template <int K, class V>
GW_INLINE V gw_kept(V v, gw_element<V> other) {
  if constexpr (K >= gw_count<V>) {
    return v;
  } else {
    gw_ints<V> there{};
#pragma GCC unroll 64
    for (int i = 0; i < K; ++i) there[i] = -1;
    return there ? v : gw_const<V>(other);
  }
}

// ---------------------------------------------------------------- arithmetic

// Sum, difference and product of integers, which wrap.
template <class V>
GW_INLINE V gw_sum(V a, V b) {
  return (V)((gw_naturals<V>)a + (gw_naturals<V>)b);
}
template <class V>
GW_INLINE V gw_difference(V a, V b) {
  return (V)((gw_naturals<V>)a - (gw_naturals<V>)b);
}
template <class V>
GW_INLINE V gw_product_of(V a, V b) {
  return (V)((gw_naturals<V>)a * (gw_naturals<V>)b);
}

// a > b ? a : b and a < b ? a : b. If the numbers are unordered, the result is b.
template <class V>
GW_INLINE V gw_larger(V a, V b) {
  return a > b ? a : b;
}
template <class V>
GW_INLINE V gw_smaller(V a, V b) {
  return a < b ? a : b;
}

// Applies `function` to numbers, lane by lane.
template <class V, class F, class... Args>
GW_INLINE V gw_each(F function, V x, Args... more) {
  if constexpr (std::is_arithmetic_v<V>) {
    return function(x, more...);
  } else {
    for (int i = 0; i < gw_count<V>; ++i) x[i] = function(x[i], more[i]...);
    return x;
  }
}
template <class V>
GW_INLINE V gw_sqrt(V x) {
  return gw_each([](auto a) { return gw_library::sqrt(a); }, x);
}
template <class V>
GW_INLINE V gw_floor(V x) {
  return gw_each([](auto a) { return gw_library::floor(a); }, x);
}
template <class V>
GW_INLINE V gw_ceil(V x) {
  return gw_each([](auto a) { return gw_library::ceil(a); }, x);
}

#define GW_LARGER(number, width, raw, larger, smaller, root)                                     \
  GW_INLINE gw_vec<number, width> gw_larger(gw_vec<number, width> a, gw_vec<number, width> b) {  \
    return (gw_vec<number, width>)larger((raw)a, (raw)b);                                        \
  }                                                                                              \
  GW_INLINE gw_vec<number, width> gw_smaller(gw_vec<number, width> a, gw_vec<number, width> b) { \
    return (gw_vec<number, width>)smaller((raw)a, (raw)b);                                       \
  }                                                                                              \
  GW_INLINE gw_vec<number, width> gw_sqrt(gw_vec<number, width> a) { return (gw_vec<number, width>)root((raw)a); }
#define GW_ROUNDED(number, width, raw, call)                                               \
  GW_INLINE gw_vec<number, width> gw_floor(gw_vec<number, width> a) {                      \
    return (gw_vec<number, width>)call((raw)a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); \
  }                                                                                        \
  GW_INLINE gw_vec<number, width> gw_ceil(gw_vec<number, width> a) {                       \
    return (gw_vec<number, width>)call((raw)a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); \
  }
#if defined(__SSE2__)
GW_LARGER(float, 4, __m128, _mm_max_ps, _mm_min_ps, _mm_sqrt_ps)
GW_LARGER(double, 2, __m128d, _mm_max_pd, _mm_min_pd, _mm_sqrt_pd)
#endif
#if defined(__SSE4_1__)
GW_ROUNDED(float, 4, __m128, _mm_round_ps)
GW_ROUNDED(double, 2, __m128d, _mm_round_pd)
#endif
#if defined(__AVX__)
GW_LARGER(float, 8, __m256, _mm256_max_ps, _mm256_min_ps, _mm256_sqrt_ps)
GW_LARGER(double, 4, __m256d, _mm256_max_pd, _mm256_min_pd, _mm256_sqrt_pd)
GW_ROUNDED(float, 8, __m256, _mm256_round_ps)
GW_ROUNDED(double, 4, __m256d, _mm256_round_pd)
#endif
#if defined(__AVX512F__)
GW_LARGER(float, 16, __m512, _mm512_max_ps, _mm512_min_ps, _mm512_sqrt_ps)
GW_LARGER(double, 8, __m512d, _mm512_max_pd, _mm512_min_pd, _mm512_sqrt_pd)
GW_ROUNDED(float, 16, __m512, _mm512_roundscale_ps)
GW_ROUNDED(double, 8, __m512d, _mm512_roundscale_pd)
#endif
#undef GW_LARGER
#undef GW_ROUNDED
