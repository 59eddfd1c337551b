// Products by type, grams by type and typed scatters against plain loops, with indices and without.
#include <graphweave/typed_gram.h>
#include <graphweave/typed_matmul.h>
#include <graphweave/typed_scatter.h>

#include "check.h"

static const int32_t kIndptr[] = {0, 60, 60, 61, 64};  // of the rows: one type has none, one is longer than a tile
static const int kTypes = 4, kRows = 64;
static const int64_t kChunks[] = {0, 5, 5, 50, 64};

static int type_of(int position) {
  int type = 0;
  while (kIndptr[type + 1] <= position) ++type;
  return type;
}

template <class T>
static void close(T got, T want, const char* what, int k, int j) {
  const T error = std::fabs(got - want), bound = std::numeric_limits<T>::epsilon() * (std::fabs(want) + 16) * 16;
  CHECK(error <= bound, "%s of %d x %d: %.17g, expected %.17g", what, k, j, (double)got, (double)want);
}

template <class T, int B, int K, int J, bool TRANSPOSED>
static void check_matmul(bool indexed, int threads) {
  Numbers<T> x(kRows * B * K, 1), w(kTypes * B * K * J, 2), y(kRows * B * J, 3), out(kRows * B * J, 4);
  Numbers<T> gram(kTypes * B * K * J, 5);
  int32_t x_row[kRows], out_row[kRows];
  for (int p = 0; p < kRows; ++p) x_row[p] = indexed ? p * 5 % kRows : p, out_row[p] = indexed ? kRows - 1 - p : p;
  void* const rows[] = {indexed ? x_row : nullptr, indexed ? out_row : nullptr};
  void* ptrs[] = {x.get(), w.get(), out.get(), (void*)kIndptr, rows[0], rows[1]};
  CHECK((gw_typed_matmul<T, int32_t, B, K, J, TRANSPOSED>(ptrs, kTypes, kChunks, 4, threads)) == 0, "memory");
  void* of_gram[] = {x.get(), y.get(), gram.get(), (void*)kIndptr, rows[0], rows[1]};
  CHECK((gw_typed_gram<T, int32_t, B, K, J>(of_gram, kTypes, kChunks, 4, threads)) == 0, "memory");
  Numbers<T> sums(kTypes * B * K * J);
  for (int i = 0; i < sums.count; ++i) sums[i] = 0;
  for (int p = 0; p < kRows; ++p)
    for (int b = 0; b < B; ++b)
      for (int j = 0; j < J; ++j) {
        const int matrix = (type_of(p) * B + b) * K * J;
        T sum = 0;
        for (int k = 0; k < K; ++k) {
          const T element = x[(x_row[p] * B + b) * K + k];
          sum += element * w[matrix + (TRANSPOSED ? j * K + k : k * J + j)];
          sums[matrix + k * J + j] += element * y[(out_row[p] * B + b) * J + j];
        }
        close(out[(out_row[p] * B + b) * J + j], sum, "matmul", K, J);
      }
  for (int i = 0; i < sums.count; ++i) close(gram[i], sums[i], "gram", K, J);
}

// Two blocks, of more rows than a tile and of two, that edges of three types reach; one type has no edges.
template <class T, int B, int K, int J>
static void check_scatter(bool scaled, int64_t scales, int threads) {
  const int64_t nodes = 62, num_types = 3, bounds[] = {0, 60, 62};
  enum { kEdges = 280 };
  int32_t indptr[2 * 3 + 1] = {0}, src[kEdges], dst[kEdges], edge[kEdges], type[kEdges];
  int at = 0;
  for (int block = 0; block < 2; ++block)
    for (int t = 0; t < 3; ++t) {
      const int count = t == 1 ? 0 : 70;
      for (int i = 0; i < count; ++i, ++at) {
        src[at] = (at * 3 + t) % nodes, type[at] = t, edge[at] = kEdges - 1 - at;
        dst[at] = (int32_t)(block == 0 ? i * 60 / count : 60 + i * 2 / count);
      }
      indptr[block * 3 + t + 1] = at;
    }
  Numbers<T> x(nodes * B * K, 1), w(num_types * B * K * J, 2), scale(kEdges * scales, 3), out(nodes * B * J, 4);
  void* ptrs[] = {x.get(), w.get(), scaled ? scale.get() : nullptr, out.get(), indptr, src, dst, edge};
  CHECK((gw_typed_scatter<T, int32_t, B, K, J>(ptrs, num_types, scales, bounds, 2, threads)) == 0, "memory");
  Numbers<T> want(nodes * B * J);
  for (int i = 0; i < want.count; ++i) want[i] = 0;
  for (int e = 0; e < kEdges; ++e)
    for (int b = 0; b < B; ++b)
      for (int j = 0; j < J; ++j)
        for (int k = 0; k < K; ++k)
          want[(dst[e] * B + b) * J + j] += (scaled ? scale[edge[e] * scales + (scales > 1 ? b : 0)] : T(1)) *
                                            x[(src[e] * B + b) * K + k] * w[((type[e] * B + b) * K + k) * J + j];
  for (int i = 0; i < want.count; ++i) close(out[i], want[i], "scatter", K, J);
}

int main() {
  for (int threads : {1, 2})
    for (bool indexed : {false, true}) {
      check_matmul<double, 1, 5, 4, false>(indexed, threads);
      check_matmul<float, 2, 3, 17, true>(indexed, threads);
      check_matmul<float, 2, 19, 2, false>(indexed, threads);  // narrow
    }
  for (int threads : {1, 2}) {
    check_scatter<float, 2, 3, 17>(false, 1, threads);
    check_scatter<float, 2, 3, 17>(true, 2, threads);
    check_scatter<float, 2, 3, 17>(true, 1, threads);
  }
}
