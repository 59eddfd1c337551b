// Elementary functions against the C library's in higher precision, in units in the last place.
#include <graphweave/elementary.h>
#include <graphweave/online_softmax.h>

#include "check.h"

static const double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// the distance of neighbours of |x| among numbers of T
template <class T>
static long double spacing(long double x) {
  const T size = (T)fabsl(x), smallest = std::numeric_limits<T>::denorm_min();
  if (size < std::numeric_limits<T>::min()) return smallest;
  return (long double)std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
}

template <class T>
static void check(const char* name, T x, T got, long double want, double ulp) {
  const T nearest = (T)want;
  if (nearest != nearest || got != got) {
    CHECK(nearest != nearest && got != got, "%s(%a) = %a, expected %La", name, (double)x, (double)got, want);
    return;
  }
  if (std::isinf(nearest) || std::isinf(got)) {
    const T large = std::numeric_limits<T>::max() / 2;  // the last of them may round to infinity
    CHECK(
        got == nearest || (std::isinf(got) ? nearest * got > 0 && std::fabs(nearest) > large : std::fabs(got) > large),
        "%s(%a) = %a, expected %La", name, (double)x, (double)got, want);
    return;
  }
  const long double error = fabsl((long double)got - want) / spacing<T>(want);
  CHECK(error <= ulp, "%s(%a) = %a, expected %La: %Lf ulp", name, (double)x, (double)got, want, error);
}

template <class T>
static void check_exp(T x) {
  const long double e = expl(x);
  check("exp", x, gw_exp(x), e, 2);
  // 0 where the value is denormal
  const long double s = 1 / (1 + expl(-(long double)x));
  if (s < std::numeric_limits<T>::min())
    CHECK(gw_sigmoid(x) <= std::numeric_limits<T>::min(), "sigmoid(%a)", (double)x);
  else
    check("sigmoid", x, gw_sigmoid(x), s, 4);
}

template <class T>
static void check_all(T x) {
  check_exp(x);
  check("log", x, gw_log(x), logl(x), 2);
  check("log1p", x, gw_log1p(x), log1pl(x), 4);
  check("tanh", x, gw_tanh(x), tanhl(x), 3);
  check("expm1", x, gw_expm1(x), expm1l(x), 3);
  check("erf", x, gw_erf(x), erfl(x), 2);
  check("sin", x, gw_sin(x), sinl(x), 1);
  check("cos", x, gw_cos(x), cosl(x), 1);
  for (T y : {T(0), T(0.7), T(-1.3), T(2.5), T(3), T(-4), T(1e-3), T(1e30), T(kInf), T(kNaN)})
    check("pow", x, gw_pow(x, y), powl(x, y), 1);
  for (T y : {gw_tanh(x), gw_expm1(x), gw_erf(x), gw_sin(x), gw_log1p(x)})
    CHECK(x != 0 || std::signbit(y) == std::signbit(x), "of %g comes the other sign", (double)x);
}

int main() {
  const float small = std::numeric_limits<float>::denorm_min(), least = std::numeric_limits<float>::min();
  const float awkward[] = {0.0f,
                           1.0f,
                           small,
                           3 * small,
                           least,
                           std::nextafter(least, 0.0f),
                           1e-20f,
                           1e-8f,
                           1e-4f,
                           0.5f,
                           0.625f,
                           0.693147f,
                           2.0f,
                           17.0f,
                           86.0f,
                           87.33f,
                           88.722f,
                           88.73f,
                           88.999f,
                           103.27f,
                           103.98f,
                           104.0f,
                           1000.0f,
                           1e30f,
                           std::numeric_limits<float>::max(),
                           (float)kInf};
  for (float x : awkward) {
    check_all(x);
    check_all(-x);
    check_all((double)x);
    check_all(-(double)x);
  }
  for (double x : {708.0, 709.78, 710.0, 720.0, 745.1, 746.0, 1e300}) {
    check_all(x);
    check_all(-x);
  }
  for (float x : {(float)kNaN, -(float)kNaN}) check_all(x);
  check_all(kNaN);
  check_all(-kNaN);
  for (uint64_t bits = 0; bits < 0x7f800000; bits += 40009) {  // about every exponent and fraction
    check_all(gw_float((int32_t)bits));
    check_all(-gw_float((int32_t)bits));
  }
  for (double x = -750; x < 712; x += 0.0731) check_all(x);
  for (double x = 1e-300; x < 1e300; x *= 1.0537) {
    check_all(x);
    check_all(-x);
  }

  CHECK(gw_factor(1.0f, 0.5f) == 1.0f && gw_factor(1.0f, 1.0f) == 1.0f, "a value that is not larger changes nothing");
  check("factor", 1.0f, gw_factor(1.0f, 3.0f), expl(-2), 2);
  CHECK(gw_rescaled(5.0f, gw_factor(-(float)kInf, 1.0f)) == 0.0f, "sums begin at the first value");
  CHECK(gw_rescaled(5.0, gw_factor(0.0, 0.0)) == 5.0, "sums stay");
}
