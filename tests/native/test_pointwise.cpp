// Pointwise operators at the ends of their types.
#include <graphweave/pointwise.h>

#include "check.h"

template <class T>
static void check_floats() {
  const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
  CHECK(std::isnan(gw_max(nan, T(1))) && std::isnan(gw_max(T(1), nan)) && std::isnan(gw_min(nan, T(1))), "NaN wins");
  CHECK(std::isnan(gw_relu(nan)) && gw_relu(-inf) == 0 && gw_relu(inf) == inf, "relu");
  CHECK(gw_sign(T(-3)) == -1 && gw_sign(T(0)) == 0 && gw_sign(inf) == 1, "sign");
  CHECK(gw_select(true, T(1), nan) == 1 && gw_select(false, nan, T(2)) == 2, "select");
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
}
