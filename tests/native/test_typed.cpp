// Products of rows where they lie, and grams of them, against plain loops, with indices and without.
#include <graphweave/row_products.h>

#include "check.h"

template <class T>
static void close(T got, T want, const char* what, int k, int j) {
  const T error = std::fabs(got - want), bound = std::numeric_limits<T>::epsilon() * (std::fabs(want) + 16) * 16;
  CHECK(error <= bound, "%s of %d x %d: %.17g, expected %.17g", what, k, j, (double)got, (double)want);
}

template <class T, bool INDEXED>
static auto rows_of(T* rows, const int32_t* index) {
  if constexpr (INDEXED)
    return gw_rows_of_tile<T, int32_t>{rows, index};
  else
    return gw_rows_of_tile<T, void>{rows};
}

// A tile of kRows rows, behind which the index names others that must not be read; `streams`: aligned, past the cache
template <class T, int B, int K, int J, bool TRANSPOSED, bool INDEXED>
static void check_rows(bool streams) {
  enum { kRows = 13, kAll = 40, kMost = 16 };
  Numbers<T> x(kAll * B * K, 1), w(B * K * J, 2), y(kAll * B * J, 3), gram(B * K * J, 5), turned(B * K * J);
  T* const out = (T*)aligned_alloc(64, (kAll * B * J * sizeof(T) + 63) / 64 * 64);
  int32_t x_row[kRows], out_row[kRows];
  for (int p = 0; p < kRows; ++p) x_row[p] = INDEXED ? p * 7 % kAll : p, out_row[p] = INDEXED ? kAll - 1 - 2 * p : p;
  const auto from = rows_of<const T, INDEXED>(x.get(), x_row), other = rows_of<const T, INDEXED>(y.get(), out_row);
  const auto into = rows_of<T, INDEXED>(out, out_row);
  const T* matrix = w.get();
  if (TRANSPOSED != gw_is_narrow<T, J>()) {
    gw_turn<B, TRANSPOSED ? J : K, TRANSPOSED ? K : J>(turned.get(), w.get());
    matrix = turned.get();
  }
  gw_row_matmul<B, K, J, kMost, false>(into, from, matrix, kRows, kRows, streams);
  gw_streamed();
  gw_row_gram<B, K, J, kMost>(gram.get(), from, other, kRows, kRows, false);
  gw_row_gram<B, K, J, kMost>(gram.get(), from, other, 2, kRows, true);
  Numbers<T> sums(B * K * J);
  for (int i = 0; i < sums.count; ++i) sums[i] = 0;
  for (int p = 0; p < kRows; ++p)
    for (int b = 0; b < B; ++b)
      for (int j = 0; j < J; ++j) {
        T sum = 0;
        for (int k = 0; k < K; ++k) {
          const T element = x[(x_row[p] * B + b) * K + k];
          sum += element * w[b * K * J + (TRANSPOSED ? j * K + k : k * J + j)];
          sums[(b * K + k) * J + j] += (p < 2 ? 2 : 1) * element * y[(out_row[p] * B + b) * J + j];
        }
        close(out[(out_row[p] * B + b) * J + j], sum, "matmul", K, J);
      }
  for (int i = 0; i < sums.count; ++i) close(gram[i], sums[i], "gram", K, J);
  // added to what is there: of narrow rows the matrix lies as others' does
  gw_turn<B, J, K>(turned.get(), w.get());
  for (int p = 0; p < kRows; ++p)
    for (int i = 0; i < B * J; ++i) out[out_row[p] * B * J + i] = T(p - i);
  gw_row_matmul<B, K, J, kMost, true>(into, from, TRANSPOSED ? turned.get() : w.get(), kRows, kRows, false);
  for (int p = 0; p < kRows; ++p)
    for (int b = 0; b < B; ++b)
      for (int j = 0; j < J; ++j) {
        T sum = T(p - b * J - j);
        for (int k = 0; k < K; ++k)
          sum += x[(x_row[p] * B + b) * K + k] * w[b * K * J + (TRANSPOSED ? j * K + k : k * J + j)];
        close(out[(out_row[p] * B + b) * J + j], sum, "added", K, J);
      }
  free(out);
}

template <bool INDEXED>
static void check_all() {
  check_rows<double, 1, 5, 4, false, INDEXED>(false);
  check_rows<float, 2, 3, 17, true, INDEXED>(false);
  check_rows<float, 2, 19, 2, false, INDEXED>(false);  // narrow
  check_rows<float, 1, 19, 1, true, INDEXED>(false);
  check_rows<float, 1, 5, 32, false, INDEXED>(true);  // rows of lines
  check_rows<float, 4, 5, 4, true, INDEXED>(true);    // of several blocks
}

int main() {
  check_all<false>();
  check_all<true>();
}
