// Products of the rows of a tile, which are contiguous or selected by an index, and blocks of matrices.
//
// Rows are read in place, and results are stored at their final place, since copying either would cost as much as one
// column of the product. While one tile is multiplied, the rows of the next are prefetched.
#pragma once

#include <graphweave/narrow_products.h>
#include <graphweave/prefetch.h>
#include <graphweave/products.h>
#include <graphweave/transpose.h>

// A row of several blocks with at most this many bytes is assembled before it is written past the cache.
constexpr int64_t gw_staged_up_to = 1024;

// The rows of a tile, selected by an index: position k has row index[k] of `rows`.
template <class T, class I>
struct gw_rows_of_tile {
  T* rows;
  const I* index;
  static constexpr bool listed = true;
  GW_INLINE_MEMBER T* row(int64_t k, int64_t width) const { return rows + (int64_t)index[k] * width; }
};
// The rows of a tile without an index: position k has row k.
template <class T>
struct gw_rows_of_tile<T, void> {
  T* rows;
  static constexpr bool listed = false;
  GW_INLINE_MEMBER T* row(int64_t k, int64_t width) const { return rows + k * width; }
};

// Whether J columns are too few for a vector. Such a matrix is read as [J, K], and its gram is summed as [J, K].
template <class T, int J>
constexpr bool gw_is_narrow() {
  return J * sizeof(T) < 16;
}
// Transposes B matrices [R, C].
template <int B, int R, int C, class T>
GW_INLINE void gw_turn(T* to, const T* from) {
  for (int64_t b = 0; b < B; ++b) gw_transpose<R, C>(to + b * R * C, from + b * R * C);
}

// The operand of a product of rows and one block of columns.
template <class T, class X, class Out, int B, int K, int J, int MOST>
struct gw_times {
  const T* const* x;
  T* const* out;
  int64_t from, into;
  const T* w;
  bool streams, fetches_no_result;
  X rows;
  Out results;
  int64_t known;  // number of positions that are known, counted from the tile's first position
  static constexpr int64_t count = K;
  GW_INLINE_MEMBER const T* row(int64_t i) const { return x[i] + from; }
  GW_INLINE_MEMBER T left(int64_t i, int64_t k) const { return x[i][from + k]; }
  GW_INLINE_MEMBER const T* right(int64_t k) const { return w + k * J; }
  GW_INLINE_MEMBER T* to(int64_t i) const { return out[i] + into; }
  GW_INLINE_MEMBER const T* begun(int64_t i) const { return to(i); }
  GW_INLINE_MEMBER gw_times below(int64_t i) const {
    gw_times op = *this;
    op.x += i;
    op.out += i;
    return op;
  }
  // Prefetches rows that a tile of MOST rows would leave to the next tile, to read and to write.
  GW_INLINE_MEMBER void ahead(int64_t begin, int64_t stop) const {
    if (from != 0 || (!X::listed && fetches_no_result)) return;
    for (int64_t k = MOST + begin; k < MOST + stop && k < known; ++k) {
      if (X::listed) gw_fetch<false, 3>(rows.row(k, B * K), B * K * sizeof(T));
      if (Out::listed && !fetches_no_result) gw_fetch<true, 3>(results.row(k, B * J), B * J * sizeof(T));
    }
  }
};

template <bool NARROW, bool ADD, int K, int J, class T, class Op>
GW_APART void gw_rows_times(const Op& op, int64_t rows) {
  if constexpr (NARROW)
    gw_narrow_product<K, J, T>(op, rows);
  else
    gw_product<J, T>(op, rows, ADD);
}

// out[k][b][j] = (ADD ? out[k][b][j] : 0) + sum over i of x[k][b][i] * w[b][i][j], for n rows k, at most MOST. For
// narrow rows `w` is [j][i], unless the product is added to them. The first `known` positions have an index. With
// `streams`, results bypass the cache; results that are added to are in the cache.
template <int B, int K, int J, int MOST, bool ADD, class T, class X, class Out>
GW_INLINE void gw_row_matmul(Out out, X x, const T* w, int64_t n, int64_t known, bool streams) {
  constexpr bool lines = J * sizeof(T) % 64 == 0;  // whether rows are whole cache lines
  constexpr bool stages = !lines && B * J * sizeof(T) % 64 == 0 && B * J * sizeof(T) <= gw_staged_up_to;
  const T* from[MOST];
  T* into[MOST];
  alignas(64) T stage[stages ? MOST * B * J : 1];
  for (int64_t i = 0; i < n; ++i) {
    from[i] = x.row(i, B * K);
    into[i] = stages && streams ? stage + i * B * J : out.row(i, B * J);
  }
  for (int64_t b = 0; b < B; ++b)
    gw_rows_times<!ADD && gw_is_narrow<T, J>(), ADD, K, J, T>(
        gw_times<T, X, Out, B, K, J, MOST>{from, into, b * K, b * J, w + b * K * J, lines && streams,
                                           ADD || ((lines || stages) && streams), x, out, known},
        n);
  if (stages && streams)
    for (int64_t i = 0; i < n; ++i) gw_stream(out.row(i, B * J), into[i], B * J * sizeof(T));
}

// The operand of a gram, whose elements are sums over rows. i counts the elements of rows of x, or if NARROW those of
// rows of y, since the result is then computed as [J, K].
template <class T, class X, class Y, int B, int K, int J, int MOST, bool NARROW>
struct gw_outer {
  static constexpr int64_t height = NARROW ? J : K, columns = NARROW ? K : J;
  const T* const* x;
  const T* const* y;
  int64_t from, into;
  int64_t count;
  T* part;
  X x_rows;
  Y y_rows;
  int64_t known;
  static constexpr bool streams = false;
  GW_INLINE_MEMBER T left(int64_t i, int64_t k) const { return NARROW ? y[k][into + i] : x[k][from + i]; }
  GW_INLINE_MEMBER const T* right(int64_t k) const { return NARROW ? x[k] + from : y[k] + into; }
  GW_INLINE_MEMBER T* to(int64_t i) const { return part + i * columns; }
  GW_INLINE_MEMBER const T* begun(int64_t i) const { return to(i); }
  GW_INLINE_MEMBER gw_outer below(int64_t i) const {
    gw_outer op = *this;
    (NARROW ? op.into : op.from) += i;
    op.part += i * columns;
    return op;
  }
  // Prefetches some of the rows that a tile of MOST rows would leave to the next tile: the share of them that
  // corresponds to elements begin .. stop - 1 among all elements.
  GW_INLINE_MEMBER void ahead(int64_t begin, int64_t stop) const {
    if (from + into != 0) return;
    for (int64_t k = begin * count / height; k < stop * count / height && MOST + k < known; ++k) {
      if (X::listed) gw_fetch<false, 2>(x_rows.row(MOST + k, B * K), B * K * sizeof(T));
      if (Y::listed) gw_fetch<false, 2>(y_rows.row(MOST + k, B * J), B * J * sizeof(T));
    }
  }
};

template <class T, class Op>
GW_APART void gw_rows_outer(const Op& op, bool add) {
  gw_product<Op::columns, T>(op, Op::height, add);
}

// out[b][i][j] = (add ? out[b][i][j] : 0) + sum over k of x[k][b][i] * y[k][b][j], for n rows k, at most MOST. `known`
// has the same meaning as in gw_row_matmul.
template <int B, int K, int J, int MOST, class T, class X, class Y>
GW_INLINE void gw_row_gram(T* out, X x, Y y, int64_t n, int64_t known, bool add) {
  constexpr bool narrow = gw_is_narrow<T, J>(), packs = narrow && K > 1 && J > 1;
  const T *first[MOST], *other[MOST];
  for (int64_t i = 0; i < n; ++i) {
    first[i] = x.row(i, B * K);
    other[i] = y.row(i, B * J);
  }
  for (int64_t b = 0; b < B; ++b) {
    alignas(64) T packed[packs ? K * J : 1];
    T* const sum = out + b * K * J;
    const gw_outer<T, X, Y, B, K, J, MOST, narrow> op{first, other, b * K, b * J, n, packs ? packed : sum, x, y, known};
    gw_rows_outer<T>(op, add && !packs);
    if constexpr (packs)
      for (int64_t i = 0; i < K; ++i)
        for (int64_t j = 0; j < J; ++j) sum[i * J + j] = (add ? sum[i * J + j] : T(0)) + packed[j * K + i];
  }
}
