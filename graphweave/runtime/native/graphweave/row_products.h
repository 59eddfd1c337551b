// Products of the rows of a tile, which lie one after the other or where an index says, by blocks of matrices.
//
// Rows are read where they lie, and results stored where they belong: a copy of either would cost what one column of the
// product does. While one tile is multiplied, the rows of the next are asked for.
#pragma once

#include <graphweave/narrow_products.h>
#include <graphweave/prefetch.h>
#include <graphweave/products.h>
#include <graphweave/transpose.h>

// Bytes of a row of several blocks up to which it is put together before it is written past the cache.
constexpr int64_t gw_staged_up_to = 1024;

// A row for each position of a tile: row index[k] of `rows`.
template <class T, class I>
struct gw_rows_of_tile {
  T* rows;
  const I* index;
  static constexpr bool listed = true;
  GW_INLINE_MEMBER T* row(int64_t k, int64_t width) const { return rows + (int64_t)index[k] * width; }
};
// Or without an index row k.
template <class T>
struct gw_rows_of_tile<T, void> {
  T* rows;
  static constexpr bool listed = false;
  GW_INLINE_MEMBER T* row(int64_t k, int64_t width) const { return rows + k * width; }
};

// Whether a matrix of J columns has too few for a vector: it is read as [J, K], a gram is summed as [J, K].
template <class T, int J>
constexpr bool gw_is_narrow() {
  return J * sizeof(T) < 16;
}
// B matrices [R, C] turned over
template <int B, int R, int C, class T>
GW_INLINE void gw_turn(T* to, const T* from) {
  for (int64_t b = 0; b < B; ++b) gw_transpose<R, C>(to + b * R * C, from + b * R * C);
}

// Rows of one block of columns: the operand of a product.
template <class T, class X, class Out, int B, int K, int J, int MOST>
struct gw_times {
  const T* const* x;
  T* const* out;
  int64_t from, into;
  const T* w;
  bool streams, fetches_no_result;
  X rows;
  Out results;
  int64_t known;  // positions from the tile's first on
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
  // prefetches rows that a tile of MOST would leave to the next, to read and to write
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

// out[k][b][j] = (ADD ? out[k][b][j] : 0) + sum over i of x[k][b][i] * w[b][i][j], n rows k of at most MOST; of narrow
// rows `w` is [j][i], but where they are added to. `known` positions have an index, from the first on. With `streams`
// the results go past the cache; those that are added to are in it.
template <int B, int K, int J, int MOST, bool ADD, class T, class X, class Out>
GW_INLINE void gw_row_matmul(Out out, X x, const T* w, int64_t n, int64_t known, bool streams) {
  constexpr bool lines = J * sizeof(T) % 64 == 0;  // of the cache
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

// An element of a gram is a sum over rows: the operand of a product. i counts elements of x's rows, or of y's if NARROW,
// where the result is computed as [J, K].
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
  // prefetches some of the rows that a tile of MOST would leave to the next: those as far in it as i in all elements
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

// out[b][i][j] = (add ? out[b][i][j] : 0) + sum over k of x[k][b][i] * y[k][b][j], n rows k of at most MOST; `known` as
// of gw_row_matmul
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
