// Pointwise operators at the ends of their types, and folds over lanes against plain loops.
#include <graphweave/folds.h>

#include "check.h"

template <class T, class Tree>
static void check_tree(int n, Tree tree) {
  typedef T aligned[16] __attribute__((aligned(128)));
  aligned p;
  T want[16];
  Numbers<T> given(n, (uint32_t)n);
  for (int i = 0; i < n; ++i) p[i] = want[i] = given[i];
  for (int half = n / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) want[i] += want[i + half];
  const T got = tree(p);
  CHECK(got == want[0], "a sum of %d: %g, expected %g", n, (double)got, (double)want[0]);
}

template <class T>
static void check_floats() {
  const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
  CHECK(std::isnan(gw_max(nan, T(1))) && std::isnan(gw_max(T(1), nan)) && std::isnan(gw_min(nan, T(1))), "NaN wins");
  CHECK(std::isnan(gw_relu(nan)) && gw_relu(-inf) == 0 && gw_relu(inf) == inf, "relu");
  CHECK(gw_sign(T(-3)) == -1 && gw_sign(T(0)) == 0 && gw_sign(inf) == 1, "sign");
  CHECK(gw_select(true, T(1), nan) == 1 && gw_select(false, nan, T(2)) == 2, "select");
  for (int n : {0, 1, 7, 33}) {
    Numbers<T> x(n, 5);
    T most = -inf, least = inf, max = -inf, min = inf;
#pragma omp simd reduction(gw_max : most) reduction(gw_min : least)
    for (int i = 0; i < n; ++i) {
      most = gw_max(most, x[i]);
      least = gw_min(least, x[i]);
    }
    for (int i = 0; i < n; ++i) max = x[i] > max ? x[i] : max, min = x[i] < min ? x[i] : min;
    CHECK(most == max && least == min, "folds of %d", n);
  }
}

template <class T>
static void check_integers() {
  const T least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  CHECK(gw_abs(least) == (least == 0 ? 0 : least) && gw_abs(most) == most && gw_abs(T(5)) == 5, "abs");
  CHECK(gw_max(least, most) == most && gw_min(least, most) == least && gw_relu(least) == 0, "ends");
  CHECK(gw_sign(most) == 1 && gw_sign(T(0)) == 0 && gw_sign(least) == (least == 0 ? 0 : (T)-1), "sign");
}

int main() {
  check_floats<float>();
  check_floats<double>();
  check_integers<int64_t>();
  check_integers<int32_t>();
  check_integers<int16_t>();
  check_integers<int8_t>();
  check_integers<uint8_t>();
  check_tree<float>(16, [](float* p) { return gw_tree16(p); });
  check_tree<float>(8, [](float* p) { return gw_tree8(p); });
  check_tree<double>(8, [](double* p) { return gw_tree8(p); });
  check_tree<double>(4, [](double* p) { return gw_tree4(p); });
}
