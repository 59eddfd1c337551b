// Kernels for grams of rows by type: the gradients of matrices that depend on the type of the row.
#pragma once

#include <graphweave/prefetch.h>
#include <graphweave/products.h>
#include <graphweave/rows_by_type.h>
#include <graphweave/transpose.h>

// Rows that a gram adds before it goes on to the next elements of its result.
constexpr int64_t gw_gram_terms = 64;

// An element of the result is a sum over rows of one type: the operand of a product. i counts elements of x's rows, or
// of y's if NARROW, where the result is computed as [J, K].
template <class T, class I, int B, int K, int J, bool NARROW>
struct gw_outer {
  static constexpr int64_t height = NARROW ? J : K, columns = NARROW ? K : J;
  const T* const* x;
  const T* const* y;
  int64_t from, into;
  int64_t count;
  T* part;
  const T *x_rows, *y_rows;
  const I *x_row, *y_row;
  int64_t position, end;  // of row 0 of the tile; of the chunk
  static constexpr bool streams = false;
  GW_INLINE_MEMBER T left(int64_t i, int64_t k) const { return NARROW ? y[k][into + i] : x[k][from + i]; }
  GW_INLINE_MEMBER const T* right(int64_t k) const { return NARROW ? x[k] + from : y[k] + into; }
  GW_INLINE_MEMBER T* to(int64_t i) const { return part + i * columns; }
  GW_INLINE_MEMBER gw_outer below(int64_t i) const {
    gw_outer op = *this;
    (NARROW ? op.into : op.from) += i;
    op.part += i * columns;
    return op;
  }
  // prefetches some of the rows that the next tile reads: those that are as far in it as i in all elements
  GW_INLINE_MEMBER void ahead(int64_t begin, int64_t stop) const {
    if (from + into != 0) return;
    for (int64_t k = begin * count / height; k < stop * count / height; ++k) {
      const int64_t p = position + gw_gram_terms + k;
      if (p >= end) return;
      gw_fetch<false, 2>(gw_row(x_rows, x_row, p, B * K), B * K * sizeof(T));
      gw_fetch<false, 2>(gw_row(y_rows, y_row, p, B * J), B * J * sizeof(T));
    }
  }
};

template <class T, class Op>
GW_APART void gw_typed_outer(const Op& op, bool add) {
  gw_product<Op::columns, T>(op, Op::height, add);
}

// out[t][b][i][j] = sum over rows r of type t of x[g(r)][b][i] * y[h(r)][b][j]
// ptrs: x, y, out, and indptr and two indices as those of gw_typed_matmul, of the rows of x and of y. What a chunk adds
// to a type that began in an earlier one is a part of its own, folded in the order of chunks. 1 if there is no memory.
template <class T, class I, int B, int K, int J>
GW_INLINE int32_t gw_typed_gram(void* const* ptrs, int64_t num_types, const int64_t* chunks, int64_t num_chunks,
                                int32_t num_threads) {
  constexpr bool narrow = J * sizeof(T) < 16;  // too few columns for a vector: rows of [J, K] make them
  constexpr bool packs = narrow && K > 1 && J > 1;
  constexpr int64_t size = B * K * J, stride = (size * sizeof(T) + 63) / 64 * 64 / sizeof(T);
  const T* const x = static_cast<const T*>(ptrs[0]);
  const T* const y = static_cast<const T*>(ptrs[1]);
  T* const out = static_cast<T*>(ptrs[2]);
  const I* const indptr = static_cast<const I*>(ptrs[3]);
  const I* const x_row = static_cast<const I*>(ptrs[4]);
  const I* const y_row = static_cast<const I*>(ptrs[5]);
  int32_t failed = 0;
  T* const parts = static_cast<T*>(aligned_alloc(64, num_chunks * stride * sizeof(T)));
  if (parts == nullptr) return 1;
#pragma omp parallel num_threads(num_threads) if (num_chunks > 1 && num_threads > 1)
  {
#pragma omp for schedule(static)
    for (int64_t type = 0; type < num_types; ++type)
      if (indptr[type] == indptr[type + 1]) memset(out + type * size, 0, size * sizeof(T));
    T* const packed = gw_scratch<T>(size, packs);
    if (packs && packed == nullptr) gw_fail(failed);
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      if (packs && packed == nullptr) continue;
      gw_types(indptr, num_types, chunks[chunk], chunks[chunk + 1], [&](int64_t type, int64_t begin, int64_t stop) {
        T* const target = begin > (int64_t)indptr[type] ? parts + chunk * stride : out + type * size;
        T* const part = packs ? packed : target;
        for (int64_t p = begin; p < stop; p += gw_gram_terms) {
          const int64_t n = std::min<int64_t>(gw_gram_terms, stop - p);
          const T *first[gw_gram_terms], *other[gw_gram_terms];
          for (int64_t i = 0; i < n; ++i) {
            first[i] = gw_row(x, x_row, p + i, B * K);
            other[i] = gw_row(y, y_row, p + i, B * J);
          }
          for (int64_t b = 0; b < B; ++b) {
            const gw_outer<T, I, B, K, J, narrow> op{first, other, b * K, b * J, n, part + b * K * J,
                                                     x,     y,     x_row, y_row, p, chunks[chunk + 1]};
            gw_typed_outer<T>(op, p > begin);
          }
        }
        if constexpr (packs)
          for (int64_t b = 0; b < B; ++b) gw_transpose<J, K>(target + b * K * J, packed + b * K * J);
      });
    }
    free(packed);
  }
  for (int64_t chunk = 1; chunk < num_chunks && !failed; ++chunk) {
    const int64_t begin = chunks[chunk];
    if (begin >= chunks[chunk + 1]) continue;
    const int64_t type = std::upper_bound(indptr, indptr + num_types + 1, (I)begin) - indptr - 1;
    if ((int64_t)indptr[type] == begin) continue;
    T* const sum = out + type * size;
    for (int64_t i = 0; i < size; ++i) sum[i] += parts[chunk * stride + i];
  }
  free(parts);
  return failed;
}
