// Vectors of lanes against numbers: to and from memory at all tails, conversions, choices, folds, elementary functions.
#include <graphweave/bfloat16.h>
#include <graphweave/elementary.h>
#include <graphweave/folds.h>
#ifdef __FLT16_MANT_DIG__
#include <graphweave/float16.h>
#endif

#include <vector>

#include "check.h"

template <class T>
static bool same(T a, T b) {  // the same bits; of NaN, which the compiler may make either, that they are
  return a != a ? b != b : memcmp(&a, &b, sizeof a) == 0;
}
template <class T>
static T number(int i) {  // signed and spread
  return (T)(i % 3 == 0 ? -7 * i - 1 : 5 * i + 2);
}
template <>
bool number<bool>(int i) {
  return i % 3 == 1;
}
template <>
gw_bf16 number<gw_bf16>(int i) {
  return gw_bf16((float)number<int>(i));
}
static bool is_true(int32_t mask) { return mask == -1; }
// what a lane is in registers, of an element in memory
template <class T>
static auto lane(T x) {
  if constexpr (std::is_same_v<T, bool>)
    return -(int32_t)x;
  else if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>)
    return (float)x;
  else
    return x;
}

// ---------------------------------------------------------------- memory

template <class T, int W, int K>
static void check_memory() {
  std::unique_ptr<T[]> from(new T[K]), to(new T[K]);
  for (int i = 0; i < K; ++i) from[i] = number<T>(i);
  const auto v = gw_load<W, K>(from.get());
  for (int i = 0; i < W; ++i) CHECK(v[i] == (i < K ? lane(from[i]) : 0), "lane %d of %d in %d", i, K, W);
  gw_store<W, K>(to.get(), v);
  CHECK(memcmp(from.get(), to.get(), K * sizeof(T)) == 0, "%d of %d are stored", K, W);

  constexpr int step = 3;
  const int span = (K - 1) * step + 1;
  std::unique_ptr<T[]> wide(new T[span]), spread(new T[span]);
  for (int i = 0; i < span; ++i) wide[i] = spread[i] = number<T>(i);
  const auto steps = gw_load_steps<step, 0, W, K>(wide.get());
  constexpr int less = K > 1 ? K - 1 : 1, phase = K > 1 ? 2 : 0;
  const auto phased = gw_load_steps<step, phase, W, less>(wide.get());
  for (int i = 0; i < less; ++i) CHECK(phased[i] == lane(wide[phase + i * step]), "lane %d of %d in %d", i, less, W);
  const auto places = gw_converted<int64_t>(gw_from<W, step>(0));
  const auto each = gw_gather<W, K>(wide.get(), 5, [](int64_t c) { return (c - 5) * step; });
  const auto at = gw_gather_at<W, K>(wide.get(), places);
  for (int i = 0; i < K; ++i) {
    const auto want = lane(wide[i * step]);
    CHECK(steps[i] == want && each[i] == want && at[i] == want, "gathered lane %d of %d in %d", i, K, W);
  }
  gw_store_steps<step, W, K>(spread.get(), v);
  for (int i = 0; i < span; ++i)
    CHECK(lane(spread[i]) == lane(i % step == 0 ? from[i / step] : wide[i]), "scattered %d of %d", i, K);
  for (int i = 0; i < span; ++i) spread[i] = wide[i];
  gw_scatter_at<W, K>(spread.get(), places, v);
  for (int i = 0; i < span; ++i)
    CHECK(lane(spread[i]) == lane(i % step == 0 ? from[i / step] : wide[i]), "scattered %d of %d", i, K);
}
template <class T, int W>
static void check_tails() {
  check_memory<T, W, 1>();
  check_memory<T, W, W / 2>();
  check_memory<T, W, W / 2 + 1>();
  check_memory<T, W, W - 1>();
  check_memory<T, W, W>();
  if constexpr (W >= 8) {
    check_memory<T, W, 3>();
    check_memory<T, W, W - 3>();
    check_memory<T, W, W / 4>();
  }
}

template <int N, int SIZE, bool PIECES>
static void check_over() {
  std::vector<int> times(N, 0);
  gw_over<N, SIZE, PIECES>([&](auto some, int64_t c) {
    for (int i = 0; i < some.there; ++i) ++times.at(c + i);
    CHECK(!PIECES || some.there == some.lanes || some.lanes * SIZE <= 16, "%d lanes in pieces", N);
  });
  for (int i = 0; i < N; ++i) CHECK(times[i] == 1, "lane %d of %d: %d times", i, N, times[i]);
}
template <int... N>
static void check_all_over(std::integer_sequence<int, N...>) {
  (check_over<N + 1, 4, false>(), ...);
  (check_over<N + 1, 4, true>(), ...);
  (check_over<2 * N + 31, 8, false>(), ...);
}

// ---------------------------------------------------------------- conversions, choices, arithmetic

template <class To, class From, int W>
static void check_conversion() {
  gw_vec<From, W> v;
  for (int i = 0; i < W; ++i) v[i] = number<From>(i);
  const auto got = gw_converted<To>(v);
  for (int i = 0; i < W; ++i) CHECK(got[i] == (To)number<From>(i), "converted lane %d of %d", i, W);
}

template <class T, int W>
static void check_choices() {
  gw_vec<T, W> a, b;
  for (int i = 0; i < W; ++i) a[i] = number<T>(i), b[i] = number<T>(W - i);
  const auto less = a < b;
  gw_vec<int8_t, W> narrow;
  for (int i = 0; i < W; ++i) narrow[i] = i % 2 ? -1 : 0;
  const auto chosen = gw_select(less, a, b), odd = gw_select(narrow, a, b);
  const auto max = gw_max(a, b), min = gw_min(a, b), relu = gw_relu(a), sign = gw_sign(a), abs = gw_abs(a);
  const auto ones = gw_ones<float>(less);
  const auto both = gw_and(less, narrow);
  const auto either = gw_or(narrow, less), differ = gw_differ(narrow, less);
  const auto truth = gw_select_truth(narrow, less, gw_not(less));
  for (int i = 0; i < W; ++i) {
    const bool l = a[i] < b[i], n = i % 2;
    CHECK(chosen[i] == (l ? a[i] : b[i]) && odd[i] == (n ? a[i] : b[i]), "select, lane %d", i);
    CHECK(max[i] == gw_max(a[i], b[i]) && min[i] == gw_min(a[i], b[i]), "max, min, lane %d", i);
    CHECK(relu[i] == gw_relu(a[i]) && sign[i] == gw_sign(a[i]) && abs[i] == gw_abs(a[i]), "pointwise, lane %d", i);
    CHECK(ones[i] == (l ? 1.0f : 0.0f), "ones, lane %d", i);
    CHECK(is_true(either[i]) == (l || n) && is_true(both[i]) == (l && n) && is_true(differ[i]) == (l != n), "truths");
    CHECK(is_true(truth[i]) == (n ? l : !l), "a choice of truths");
  }
  CHECK(gw_any(narrow) && !gw_any(gw_and(narrow, gw_not(narrow))), "any");
  for (int i = 0; i < W; ++i) {
    gw_vec<T, W> one{};
    one[i] = 1;
    CHECK(gw_any(one != gw_vec<T, W>{}), "any of lane %d", i);
  }
  const auto kept = gw_kept<W - 1>(a, T(9));
  CHECK(kept[W - 1] == T(9) && kept[0] == a[0] && kept[W - 2] == a[W - 2], "kept");
  const auto counted = gw_from<W, -2>(7);
  CHECK(counted[0] == 7 && counted[W - 1] == 7 - 2 * (W - 1), "counted");
  if constexpr (std::is_integral_v<T>) {
    const T least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
    const auto low = gw_all<W, T>(least), high = gw_all<W, T>(most), one = gw_all<W, T>(1);
    CHECK(gw_sum(high, one)[0] == least && gw_difference(low, one)[W - 1] == most, "integers wrap");
    CHECK(gw_product_of(high, gw_all<W, T>(2))[1] == T(-2) && gw_abs(low)[0] == (T)(least < 0 ? least : 0), "wrap");
  }
}

// ---------------------------------------------------------------- folds

template <class T, int W, int N>
static void check_fold() {
  Numbers<T> given(N * W, (uint32_t)N);
  gw_vec<T, W> parts[N];
  for (int n = 0; n < N; ++n) parts[n] = gw_load<W>(given.get() + n * W);
  std::vector<T> sum(given.get(), given.get() + N * W), max = sum;
  for (int half = N * W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sum[i] += sum[i + half], max[i] = gw_max(max[i], max[i + half]);
  CHECK(gw_fold(parts, gw_fold_sum()) == sum[0], "a sum of %d vectors of %d", N, W);
  CHECK(gw_fold(parts, gw_fold_max()) == max[0], "a maximum of %d vectors of %d", N, W);
}
template <class T, int64_t N>
static void check_fold_into() {
  Numbers<T> to(N, 3), from(N, 4), want(N, 3);
  for (int64_t i = 0; i < N; ++i) want[i] = want[i] + from[i];
  gw_fold_into<N>(to.get(), from.get(), gw_fold_sum());
  for (int64_t i = 0; i < N; ++i) CHECK(to[i] == want[i], "element %d", (int)i);
  gw_fold_into<N>(to.get(), from.get(), gw_fold_min());
  for (int64_t i = 0; i < N; ++i) CHECK(to[i] == gw_min(want[i], from[i]), "element %d", (int)i);
}

// ---------------------------------------------------------------- functions

template <class T, int W, class F>
static void check_function(const char* name, F function) {
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const T small = std::numeric_limits<T>::denorm_min(), least = std::numeric_limits<T>::min();
  std::vector<T> x = {T(0),
                      -T(0),
                      inf,
                      -inf,
                      nan,
                      small,
                      -small,
                      5 * small,
                      least,
                      -least,
                      T(1),
                      T(-1),
                      std::numeric_limits<T>::max(),
                      -std::numeric_limits<T>::max(),
                      T(1e7),
                      T(-3e9),
                      T(0.6),
                      T(5.9)};
  for (int i = 0; i < 500; ++i) x.push_back((T)(number<int>(i) * 0.0137));
  while (x.size() % W) x.push_back(T(0.5));
  for (size_t at = 0; at < x.size(); at += W) {
    const auto got = function(gw_load<W>(x.data() + at), gw_load<W>(x.data() + x.size() - W - at));
    for (int i = 0; i < W; ++i) {
      const T a = x[at + i], b = x[x.size() - W - at + i], want = function(a, b);
      CHECK(same(got[i], want), "%s(%g, %g) = %g, of numbers %g", name, (double)a, (double)b, (double)got[i],
            (double)want);
    }
  }
}
#define CHECK_FUNCTION(call) check_function<T, W>(#call, [](auto x, [[maybe_unused]] auto y) { return call; })
template <class T, int W>
static void check_functions() {
  CHECK_FUNCTION(gw_exp(x));
  CHECK_FUNCTION(gw_log(x));
  CHECK_FUNCTION(gw_log1p(x));
  CHECK_FUNCTION(gw_expm1(x));
  CHECK_FUNCTION(gw_tanh(x));
  CHECK_FUNCTION(gw_sigmoid(x));
  CHECK_FUNCTION(gw_erf(x));
  CHECK_FUNCTION(gw_sin(x));
  CHECK_FUNCTION(gw_cos(x));
  CHECK_FUNCTION(gw_sqrt(x));
  CHECK_FUNCTION(gw_floor(x));
  CHECK_FUNCTION(gw_ceil(x));
  CHECK_FUNCTION(gw_pow(x, y));
  CHECK_FUNCTION(gw_atan2(x, y));
  CHECK_FUNCTION(gw_max(x, y));
  CHECK_FUNCTION(gw_min(x, y));
  CHECK_FUNCTION(gw_relu(x));
  CHECK_FUNCTION(gw_abs(x));
  CHECK_FUNCTION(gw_sign(x));
  CHECK_FUNCTION(gw_fma(x, y, x));
  CHECK_FUNCTION(x * y + x);
}

// every half of float, rounded as the number is
template <class H, int W>
static void check_rounding() {
  for (uint32_t bits = 0; bits < 0xffff0000u; bits += 0x3a7b) {
    gw_vec<float, W> v;
    for (int i = 0; i < W; ++i) v[i] = gw_float((int32_t)(bits + i * 0x111));
    const auto got = gw_rounded<H>(v);
    for (int i = 0; i < W; ++i) {
      const float want = (float)H(v[i]);
      CHECK(same((float)got[i], want), "%a is rounded to %a, as a number to %a", v[i], got[i], want);
    }
  }
}

template <int BYTES>
static void check_width() {
  check_tails<float, BYTES / 4>();
  check_tails<bool, BYTES / 4>();
  check_tails<gw_bf16, BYTES / 4>();
  check_choices<float, BYTES / 4>();
  check_conversion<int32_t, int8_t, BYTES / 4>();
  check_conversion<uint8_t, int32_t, BYTES / 4>();
  check_conversion<int32_t, uint8_t, BYTES / 4>();
}

int main() {
  constexpr int most = gw_bytes_of_vector;
  check_width<16>();
  check_width<most>();
  check_tails<double, most / 8>();
  check_tails<double, most / 4>();  // beside floats, of which a vector has twice as many
  check_tails<int64_t, most / 8>();
  check_tails<int8_t, most / 4>();
  check_choices<double, most / 8>();
  check_choices<float, most / 8>();
  check_choices<int32_t, most / 4>();
  check_choices<int64_t, 2>();
  check_choices<int8_t, most / 4>();
  check_conversion<float, int64_t, most / 8>();
  check_conversion<int64_t, double, most / 8>();
  check_all_over(std::make_integer_sequence<int, 36>());
  check_fold<float, 4, 4>();
  check_fold<float, most / 4, 1>();
  check_fold<double, most / 8, 2>();
  check_fold<int64_t, most / 8, 1>();
  check_fold_into<float, 1>();
  check_fold_into<float, 33>();
  check_fold_into<double, 31>();
  check_fold_into<int32_t, 64>();
  check_functions<float, most / 4>();
  check_functions<double, most / 8>();
  check_rounding<gw_bf16, most / 4>();
#ifdef __FLT16_MANT_DIG__
  check_rounding<gw_f16, most / 4>();
#endif
}
