// Micro-products against plain loops: the same bits where the machine has multiply-adds.
#include <graphweave/products.h>

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
  Numbers<T> added(n * J, 6), begun(n * J, 6);
  gw_addmatmul<K, J>(out.get(), added.get(), x.get(), w.get(), n);
  gw_addmatmul<K, J>(added.get(), added.get(), x.get(), w.get(), n);
  for (int t = 0; t < n; ++t)
    for (int j = 0; j < J; ++j) {
      T sum = begun[t * J + j];
      for (int k = 0; k < K; ++k) sum = gw_madd(x[t * K + k], w[k * J + j], sum);
      same(out[t * J + j], sum, "addmatmul", n, K, J);
      same(added[t * J + j], sum, "addmatmul in place", n, K, J);
    }
  gw_gram<K, J>(gram.get(), x.get(), y.get(), n);
  for (int i = 0; i < K; ++i)
    for (int j = 0; j < J; ++j) {
      T sum = before[i * J + j];
      for (int t = 0; t < n; ++t) sum = gw_madd(x[t * K + i], y[t * J + j], sum);
      same(gram[i * J + j], sum, "gram", n, K, J);
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
}
