// Products of half-precision numbers, summed in float32.
//
// Two bfloat16 numbers that are summed one after the other lie in 32 bits, as the instructions of AVX512-BF16 expect.
// Without these instructions, `gw_fma` widens both. float16 is widened when it is packed. A tile is packed before it is
// multiplied, unless it is packed already. Packing moves K numbers a row, of which the product reads each J times.
#pragma once

#include <graphweave/lanes.h>
#include <graphweave/row_products.h>

// How numbers of type H are multiplied: an element of type `type` holds `per` of them.
template <class H>
struct gw_packing {
  typedef float type;
  static constexpr int per = 1;
  template <class V>
  GW_INLINE_MEMBER static auto of(V x, V) {
    return gw_rounded<H>(x);
  }
};
#if defined(GW_HAS_BFLOAT16)
template <>
struct gw_packing<gw_bf16> {
  typedef int32_t type;
  static constexpr int per = 2;
  // Puts the numbers of two vectors of floats side by side.
  template <class V>
  GW_INLINE_MEMBER static auto of(V first, V second) {
    const auto low = gw_converted<int32_t>(gw_memory<gw_bf16>::written(first));
    return low | gw_converted<int32_t>(gw_memory<gw_bf16>::written(second)) << 16;
  }
};
#endif
template <class H>
using gw_packed = typename gw_packing<H>::type;

// The number of elements that hold n numbers.
template <class H>
constexpr int64_t gw_elements(int64_t n) {
  return (n + gw_packing<H>::per - 1) / gw_packing<H>::per;
}
// The number of columns of a packed matrix. If J is less than 4, the other columns are zeros, so that there is a
// vector.
constexpr int gw_columns(int J) { return J < 4 ? 4 : J; }

// Whether rows of K numbers of type X are already packed in memory.
template <class H, class X, int K>
constexpr bool gw_lies_packed() {
  return std::is_same_v<H, std::remove_const_t<X>> && gw_packing<H>::per > 1 && K % gw_packing<H>::per == 0;
}
// Packs K numbers of a row, rounded to H. Numbers that are summed one after the other are put side by side.
template <class H, int K, class X>
GW_INLINE void gw_pack_row(void* to, const X* from) {
  if constexpr (gw_packing<H>::per == 1) {
    gw_over<K, 4>([&](auto some, int64_t k) GW_BODY {
      constexpr int W = decltype(some)::lanes, THERE = decltype(some)::there;
      gw_store<W, THERE>((float*)to + k, gw_rounded<H>(gw_load<W, THERE>(from + k)));
    });
  } else {
    gw_over<K, 4>([&](auto some, int64_t k) GW_BODY {
      constexpr int W = decltype(some)::lanes, THERE = decltype(some)::there;
      gw_store<W, THERE>((H*)to + k, gw_load<W, THERE>(from + k));
    });
    if constexpr (K % gw_packing<H>::per != 0) memset((H*)to + K, 0, sizeof(H));
  }
}
// Packs n rows of K numbers. The numbers of one column in rows that are summed one after the other are put side by
// side. A row of the result has P elements; those after K columns are zeros.
template <class H, int K, int P, class X, class Row>
GW_INLINE void gw_pack_rows(gw_packed<H>* to, int64_t n, Row row) {
  constexpr int per = gw_packing<H>::per;
  for (int64_t t = 0; t < n; t += per, to += P) {
    const bool alone = t + per > n;
    const X *const first = row(t), *const second = row(alone ? t : t + per - 1);
    gw_over<P, 4>([&](auto some, int64_t k) GW_BODY {
      constexpr int W = decltype(some)::lanes, THERE = K < P ? K : decltype(some)::there;
      if constexpr (gw_lies_packed<H, X, per>()) {
        const auto low = gw_converted<uint32_t>(gw_load_numbers<W, THERE>((const uint16_t*)(first + k)));
        const auto high = gw_converted<uint32_t>(gw_load_numbers<W, THERE>((const uint16_t*)(second + k)));
        gw_store<W, decltype(some)::there>(to + k, (gw_vec<int32_t, W>)(alone ? low : low | high << 16));
      } else {
        const auto x = gw_load<W, THERE>(first + k), y = gw_load<W, THERE>(second + k);
        gw_store<W, decltype(some)::there>(to + k, gw_packing<H>::of(x, alone ? decltype(x){} : y));
      }
    });
  }
}
// Packs B matrices [K, J], or [J, K] if TRANSPOSED.
template <class H, int B, int K, int J, bool TRANSPOSED, class W>
GW_APART void gw_pack_matrices(gw_packed<H>* to, const W* w) {
  constexpr int P = gw_columns(J);
  constexpr int64_t E = gw_elements<H>(K);
  for (int b = 0; b < B; ++b, w += K * J, to += E * P) {
    if constexpr (!TRANSPOSED) {
      gw_pack_rows<H, J, P, W>(to, K, [&](int64_t k) { return w + k * J; });
    } else {
      gw_packed<H> row[E];
      for (int j = 0; j < P; ++j) {
        if (j < J)
          gw_pack_row<H, K>(row, w + j * K);
        else
          memset(row, 0, sizeof row);
        for (int64_t e = 0; e < E; ++e) to[e * P + j] = row[e];
      }
    }
  }
}

// The operand of a product of rows of packed elements and a packed matrix of P columns.
template <int P, class E>
struct gw_packed_rows {
  float* out;
  const void* a;
  int64_t width;  // of a row, in elements
  const E* b;
  int64_t count;
  const float* added;
  static constexpr bool streams = false;
  GW_INLINE_MEMBER E left(int64_t i, int64_t k) const {
    E element;  // stored at the address of a number
    memcpy(&element, (const char*)a + (i * width + k) * (int64_t)sizeof(E), sizeof element);
    return element;
  }
  GW_INLINE_MEMBER const E* right(int64_t k) const { return b + k * P; }
  GW_INLINE_MEMBER float* to(int64_t i) const { return out + i * P; }
  GW_INLINE_MEMBER const float* begun(int64_t i) const { return added + i * P; }
  GW_INLINE_MEMBER gw_packed_rows below(int64_t i) const {
    return {out + i * P, (const char*)a + i * width * (int64_t)sizeof(E), width, b, count, added + i * P};
  }
  GW_INLINE_MEMBER void ahead(int64_t, int64_t) const {}
};

// One function for all products of a kernel that have the same form.
template <int P, class E>
GW_APART void gw_packed_product(const gw_packed_rows<P, E>& op, int64_t rows, bool add) {
  gw_product<P, float>(op, rows, add);
}

// out[k][b][j] = (add ? add[k][b][j] : 0) + sum over i of x[k][b][i] * w[b][i][j], for n rows k, at most MOST. `w` is
// packed.
template <class H, int B, int K, int J, int MOST, class Out, class X, class Add>
GW_APART void gw_half_matmul(Out out, X x, const gw_packed<H>* w, Add add, int64_t n) {
  typedef gw_packed<H> T;
  typedef std::remove_reference_t<decltype(*x.rows)> Number;
  typedef std::remove_reference_t<decltype(*out.rows)> Result;
  constexpr int P = gw_columns(J);
  constexpr int64_t E = gw_elements<H>(K);
  constexpr bool lies = B == 1 && !X::listed && gw_lies_packed<H, Number, K>();
  constexpr bool in_place = B == 1 && !Out::listed && P == J && std::is_same_v<Result, float>;
  alignas(64) T packed[lies ? 1 : MOST * E];
  alignas(64) float staged[in_place ? 1 : MOST * P];
  float* const sums = in_place ? (float*)out.row(0, J) : staged;
  for (int64_t b = 0; b < B; ++b) {
    const void* rows = packed;
    if constexpr (lies)
      rows = x.row(0, K);
    else
      for (int64_t i = 0; i < n; ++i) gw_pack_row<H, K>(packed + i * E, x.row(i, B * K) + b * K);
    if (add.rows != nullptr)
      for (int64_t i = 0; i < n; ++i) {
        const auto* const row = add.row(i, B * J) + b * J;
        gw_over<P, 4>([&](auto some, int64_t j) GW_BODY {
          constexpr int W = decltype(some)::lanes, THERE = decltype(some)::there;
          gw_store<W, THERE>(sums + i * P + j, gw_load<W, (J < 4 ? J : THERE)>(row + j));
        });
      }
    gw_packed_product<P, T>({sums, rows, E, w + b * E * P, E, sums}, n, add.rows != nullptr);
    if constexpr (!in_place)
      for (int64_t i = 0; i < n; ++i) {
        auto* const row = out.row(i, B * J) + b * J;
        gw_over<J, 4>([&](auto some, int64_t j) GW_BODY {
          constexpr int W = decltype(some)::lanes, THERE = decltype(some)::there;
          gw_store<W, THERE>(row + j, gw_load<W, THERE>(sums + i * P + j));
        });
      }
  }
}

// out[b][i][j] = (add ? out[b][i][j] : 0) + sum over k of x[k][b][i] * y[k][b][j], for n rows k, at most MOST.
template <class H, int B, int K, int J, int MOST, class X, class Y>
GW_APART void gw_half_gram(float* out, X x, Y y, int64_t n, bool add) {
  typedef gw_packed<H> T;
  constexpr bool narrow = J < 4 && K > J;  // the sum is then computed as [J, K]
  constexpr int64_t most = gw_elements<H>(MOST);
  const int64_t count = gw_elements<H>(n);
  alignas(64) T first[most * K], other[most * J];
  typedef std::remove_const_t<std::remove_reference_t<decltype(*x.rows)>> First;
  typedef std::remove_const_t<std::remove_reference_t<decltype(*y.rows)>> Other;
  for (int64_t b = 0; b < B; ++b) {
    float* const sum = out + b * K * J;
    gw_pack_rows<H, K, K, First>(first, n, [&](int64_t i) { return x.row(i, B * K) + b * K; });
    gw_pack_rows<H, J, J, Other>(other, n, [&](int64_t i) { return y.row(i, B * J) + b * J; });
    if constexpr (narrow) {
      alignas(64) float transposed[J * K];
      gw_product<K, float>(gw_plain<K, float, T>{transposed, other, 1, J, first, count, transposed, false}, J, false);
      for (int i = 0; i < K; ++i)
        for (int j = 0; j < J; ++j) sum[i * J + j] = (add ? sum[i * J + j] : 0.0f) + transposed[j * K + i];
    } else {
      gw_product<J, float>(gw_plain<J, float, T>{sum, first, 1, K, other, count, sum, false}, K, add);
    }
  }
}
