// Micro-products, and products of tall matrices, against plain loops: the same bits where the machine has multiply-adds.
#include <graphweave/products.h>
#include <graphweave/tall_products.h>

#include "check.h"

template <class T>
static void same(T got, T want, const char* what, int rows, int k, int j) {
  CHECK(got == want, "%s of %d rows, %d x %d: %.17g, expected %.17g", what, rows, k, j, (double)got, (double)want);
}

template <int K, int J, class T>
static void check_tile(int n) {
  Numbers<T> x(n * K, 1), y(n * J, 2), w(K * J, 3), out(n * J, 4), gram(K * J, 5), before(K * J, 5);
  gw_matmul<K, J>(out.get(), x.get(), w.get(), n);
  for (int t = 0; t < n; ++t)
    for (int j = 0; j < J; ++j) {
      T sum = 0;
      for (int k = 0; k < K; ++k) sum = gw_madd(x[t * K + k], w[k * J + j], sum);
      same(out[t * J + j], sum, "matmul", n, K, J);
    }
  gw_gram<K, J>(gram.get(), x.get(), y.get(), n);
  for (int i = 0; i < K; ++i)
    for (int j = 0; j < J; ++j) {
      T sum = before[i * J + j];
      for (int t = 0; t < n; ++t) sum = gw_madd(x[t * K + i], y[t * J + j], sum);
      same(gram[i * J + j], sum, "gram", n, K, J);
    }
}

template <int K, int J, bool ADD, class T>
static void check_tall(int64_t rows, int threads) {
  const int64_t chunks[] = {0, rows / 3, rows / 3, rows};
  Numbers<T> x(rows * K, 1), w(K * J, 2), y(rows * J, 3), out(rows * J, 4), before(rows * J, 4), gram(K * J, 5);
  void* ptrs[] = {x.get(), w.get(), out.get()};
  CHECK((gw_tall_matmul<T, K, J, ADD>(ptrs, chunks, 3, threads)) == 0, "memory");
  for (int64_t r = 0; r < rows; ++r)
    for (int j = 0; j < J; ++j) {
      T sum = ADD ? before[r * J + j] : T(0);
      for (int k = 0; k < K; ++k) sum = gw_madd(x[r * K + k], w[k * J + j], sum);
      same(out[r * J + j], sum, "tall", (int)rows, K, J);
    }
  void* of_gram[] = {x.get(), y.get(), gram.get()};
  CHECK((gw_tall_gram<T, K, J>(of_gram, chunks, 3, threads)) == 0, "memory");
  for (int i = 0; i < K; ++i)
    for (int j = 0; j < J; ++j) {
      T total = 0;
      for (int chunk = 0; chunk < 3; ++chunk) {
        T sum = 0;
        for (int64_t r = chunks[chunk]; r < chunks[chunk + 1]; ++r) sum = gw_madd(x[r * K + i], y[r * J + j], sum);
        total += sum;
      }
      same(gram[i * J + j], total, "tall gram", (int)rows, K, J);
    }
}

// Columns of groups that differ in width, of whose vectors the last overlaps its neighbour.
constexpr int kWide = gw_bytes_of_vector == 64 ? 67 : gw_bytes_of_vector == 32 ? 35 : 19;

int main() {
  for (int n : {0, 1, 2, 7, 8, 9, 19}) {
    check_tile<1, 1, float>(n);
    check_tile<3, kWide, float>(n);
    check_tile<2, 3, double>(n);
  }
  for (int threads : {1, 2}) {
    check_tall<3, 5, true, float>(203, threads);
  }
}
