// Kernels for products whose matrix depends on the type of the row.
//
// Rows are visited in the order of their types. A chunk is a range of that order, whatever types lie in it, so that a
// type that has nearly all rows is still split over threads, and types without rows cost a comparison. Blocks of rows x
// vectors of columns read rows of x where they lie, and store into rows of the result. Matrices are read in place,
// except those whose layout does not suit, which are transposed once for each run of rows of one type.
#pragma once

#include <graphweave/narrow_products.h>
#include <graphweave/prefetch.h>
#include <graphweave/products.h>
#include <graphweave/rows_by_type.h>
#include <graphweave/transpose.h>

// Bytes of a row of several blocks up to which it is put together before it is written past the cache.
constexpr int64_t gw_staged_up_to = 1024;

// Rows of one type and one block of columns: the operand of a product.
template <class T, class I, int B, int K, int J>
struct gw_times {
  const T* const* x;
  T* const* out;
  int64_t from, into;
  const T* w;
  bool streams, fetches_no_result;
  const T* rows;  // of x
  T* results;
  const I *x_row, *out_row;
  int64_t position, end;  // of row 0 of the tile; of the chunk
  static constexpr int64_t count = K;
  GW_INLINE_MEMBER const T* row(int64_t i) const { return x[i] + from; }
  GW_INLINE_MEMBER T left(int64_t i, int64_t k) const { return x[i][from + k]; }
  GW_INLINE_MEMBER const T* right(int64_t k) const { return w + k * J; }
  GW_INLINE_MEMBER T* to(int64_t i) const { return out[i] + into; }
  GW_INLINE_MEMBER gw_times below(int64_t i) const {
    gw_times op = *this;
    op.x += i;
    op.out += i;
    return op;
  }
  // prefetches the rows that the next tile reads, and writes
  GW_INLINE_MEMBER void ahead(int64_t begin, int64_t stop) const {
    if (from != 0) return;
    for (int64_t i = begin; i < stop; ++i) {
      const int64_t p = position + gw_typed_tile + i;
      if (p >= end) return;
      gw_fetch<false, 3>(gw_row(rows, x_row, p, B * K), B * K * sizeof(T));
      if (fetches_no_result || !out_row) continue;
      gw_fetch<true, 3>(gw_row(results, out_row, p, B * J), B * J * sizeof(T));
    }
  }
};

template <bool NARROW, int K, int J, class T, class Op>
GW_APART void gw_typed_product(const Op& op, int64_t rows) {
  if constexpr (NARROW)
    gw_narrow_product<K, J, T>(op, rows);
  else
    gw_product<J, T>(op, rows, false);
}

// out[r][b][j] = sum over k of x[g(r)][b][k] * w[t(r)][b][k][j]
// ptrs: x, w [types, B, K, J], or [types, B, J, K] if TRANSPOSED, out, indptr [types + 1] of the rows in the order of
// their types, and two indices that say which row of x and which row of out stand at each position of that order: null
// where row p is at position p. chunks: ranges of positions. 1 if there is no memory.
template <class T, class I, int B, int K, int J, bool TRANSPOSED>
GW_INLINE int32_t gw_typed_matmul(void* const* ptrs, int64_t num_types, const int64_t* chunks, int64_t num_chunks,
                                  int32_t num_threads) {
  constexpr bool narrow = J * sizeof(T) < 16;  // too few columns for a vector: the matrix is read as [J, K]
  constexpr bool packs = TRANSPOSED != narrow && K > 1 && J > 1;  // a matrix of one row or column is both
  constexpr int down = TRANSPOSED ? J : K, across = TRANSPOSED ? K : J;
  constexpr bool lines = J * sizeof(T) % 64 == 0;  // of the cache
  constexpr bool stages = !lines && B * J * sizeof(T) % 64 == 0 && B * J * sizeof(T) <= gw_staged_up_to;
  const T* const x = static_cast<const T*>(ptrs[0]);
  const T* const w = static_cast<const T*>(ptrs[1]);
  T* const out = static_cast<T*>(ptrs[2]);
  const I* const indptr = static_cast<const I*>(ptrs[3]);
  const I* const x_row = static_cast<const I*>(ptrs[4]);
  const I* const out_row = static_cast<const I*>(ptrs[5]);
  const bool streams = (lines || stages) && gw_streams(out, (int64_t)indptr[num_types] * B * J * sizeof(T));
  int32_t failed = 0;
#pragma omp parallel num_threads(num_threads) if (num_chunks > 1 && num_threads > 1)
  {
    T* const packed = gw_scratch<T>(B * K * J, packs);
    if (packs && packed == nullptr) gw_fail(failed);
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      if (packs && packed == nullptr) continue;
      gw_types(indptr, num_types, chunks[chunk], chunks[chunk + 1], [&](int64_t type, int64_t begin, int64_t stop) {
        const T* matrix = w + type * B * K * J;
        if constexpr (packs) {
          for (int64_t b = 0; b < B; ++b) gw_transpose<down, across>(packed + b * K * J, matrix + b * K * J);
          matrix = packed;
        }
        for (int64_t p = begin; p < stop; p += gw_typed_tile) {
          const int64_t n = std::min<int64_t>(gw_typed_tile, stop - p);
          const T* from[gw_typed_tile];
          T* into[gw_typed_tile];
          alignas(64) T stage[stages ? gw_typed_tile * B * J : 1];
          for (int64_t i = 0; i < n; ++i) {
            from[i] = gw_row(x, x_row, p + i, B * K);
            into[i] = stages && streams ? stage + i * B * J : gw_row(out, out_row, p + i, B * J);
          }
          for (int64_t b = 0; b < B; ++b) {
            const gw_times<T, I, B, K, J> op{
                from, into,  b * K,   b * J, matrix + b * K * J, lines && streams, streams, x,
                out,  x_row, out_row, p,     chunks[chunk + 1]};
            gw_typed_product<narrow, K, J, T>(op, n);
          }
          if (stages && streams)
            for (int64_t i = 0; i < n; ++i) gw_stream(gw_row(out, out_row, p + i, B * J), into[i], B * J * sizeof(T));
        }
      });
    }
    if (streams) gw_streamed();
    free(packed);
  }
  return failed;
}
