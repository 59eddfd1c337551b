// Products of half precision against plain loops over widened numbers.
#include <graphweave/bfloat16.h>
#if defined(__FLT16_MANT_DIG__)
#include <graphweave/float16.h>
#endif
#include <graphweave/half_products.h>

#include <cmath>
#include <vector>

#include "check.h"

template <class H, class X>
static float rounded(X x) {
  return (float)(H)(float)x;
}

static void near(float got, double want, double size, const char* what, int rows, int k, int j) {
  CHECK(std::abs(got - want) <= 4e-6 * size + 1e-30, "%s of %d rows, %d x %d: %.9g, expected %.9g", what, rows, k, j,
        got, want);
}

template <class H, int B, int K, int J, bool TRANSPOSED, class X, class W, class Out>
static void check_tile(int n) {
  Numbers<float> xs(n * B * K, 1), ys(n * B * J, 2), ws(B * K * J, 3), adds(n * B * J, 4), gram(B * K * J, 5),
      before(B * K * J, 5);
  std::vector<X> x(n * B * K), y(n * B * J);
  std::vector<W> w(B * K * J);
  std::vector<Out> out(n * B * J), plain(n * B * J), add(n * B * J);
  for (int i = 0; i < n * B * K; ++i) x[i] = X(xs[i]);
  for (int i = 0; i < n * B * J; ++i) y[i] = X(ys[i]), add[i] = Out(adds[i]);
  for (int i = 0; i < B * K * J; ++i) w[i] = W(ws[i]);
  std::vector<int32_t> order(n);  // rows in another order
  for (int i = 0; i < n; ++i) order[i] = n - 1 - i;
  std::vector<gw_packed<H>> packed(B * gw_elements<H>(K) * gw_columns(J));
  gw_pack_matrices<H, B, K, J, TRANSPOSED>(packed.data(), w.data());
  const gw_rows_of_tile<const X, int32_t> rows{x.data(), order.data()};
  const gw_rows_of_tile<const X, void> others{y.data()};
  const gw_rows_of_tile<Out, int32_t> to{out.data(), order.data()};
  const gw_rows_of_tile<Out, void> there{plain.data()};
  gw_half_matmul<H, B, K, J, 19>(to, rows, packed.data(), gw_rows_of_tile<const Out, void>{add.data()}, n);
  gw_half_matmul<H, B, K, J, 19>(there, rows, packed.data(), gw_rows_of_tile<const Out, void>{nullptr}, n);
  gw_half_gram<H, B, K, J, 19>(gram.get(), rows, others, n, true);
  for (int t = 0; t < n; ++t)
    for (int b = 0; b < B; ++b)
      for (int j = 0; j < J; ++j) {
        double sum = 0, size = 0;
        for (int k = 0; k < K; ++k) {
          const W element = w[b * K * J + (TRANSPOSED ? j * K + k : k * J + j)];
          const double term = (double)rounded<H>(x[(order[t] * B + b) * K + k]) * rounded<H>(element);
          sum += term, size += std::abs(term);
        }
        const double of_store = sizeof(Out) == 2 ? 2e3 : 1;  // 8 or 11 bits
        const float begun = (float)add[(t * B + b) * J + j];
        near((float)plain[(t * B + b) * J + j], sum, of_store * size, "product", n, K, J);
        near((float)out[(order[t] * B + b) * J + j], sum + begun, of_store * (size + std::abs(begun)), "sum", n, K, J);
      }
  for (int b = 0; b < B; ++b)
    for (int i = 0; i < K; ++i)
      for (int j = 0; j < J; ++j) {
        double sum = before[(b * K + i) * J + j], size = std::abs(sum);
        for (int t = 0; t < n; ++t) {
          const double term = (double)rounded<H>(x[(order[t] * B + b) * K + i]) * rounded<H>(y[(t * B + b) * J + j]);
          sum += term, size += std::abs(term);
        }
        near(gram[(b * K + i) * J + j], sum, size, "gram", n, K, J);
      }
}

template <class H>
static void check_type() {
  for (int n : {0, 1, 2, 7, 19}) {
    check_tile<H, 1, 1, 1, false, H, H, H>(n);
    check_tile<H, 1, 5, 3, false, float, H, float>(n);
    check_tile<H, 2, 4, 6, true, H, H, float>(n);
    check_tile<H, 1, 33, 67, false, float, float, H>(n);
    check_tile<H, 1, 16, 16, true, H, H, H>(n);
  }
}

int main() {
  check_type<gw_bf16>();
#if defined(__FLT16_MANT_DIG__)
  check_type<gw_f16>();
#endif
}
