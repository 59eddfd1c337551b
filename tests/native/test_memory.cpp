// What moves memory: streamed stores, prefetches, transposed matrices.
#include <graphweave/prefetch.h>
#include <graphweave/streaming.h>
#include <graphweave/transpose.h>
#include <graphweave/vectors.h>

#include "check.h"

template <int W, class T>
static void check_put() {
  typedef typename gw_vector<T, W>::type V;
  alignas(64) T from[W], to[W];
  for (bool streams : {false, true}) {
    for (int i = 0; i < W; ++i) from[i] = T(i + streams), to[i] = T(-1);
    V v;
    memcpy(&v, from, sizeof v);
    gw_put(to, v, streams);
    gw_streamed();
    CHECK(memcmp(from, to, sizeof v) == 0, "%d elements of %d bytes", W, (int)sizeof(T));
  }
}

static void check_stream() {
  for (int64_t bytes : {64, 192, 4096}) {
    alignas(64) char from[4096];
    for (int64_t i = 0; i < bytes; ++i) from[i] = (char)(i * 7);
    char* const to = (char*)aligned_alloc(64, bytes);
    gw_stream(to, from, bytes);
    gw_streamed();
    CHECK(memcmp(from, to, bytes) == 0, "%d bytes", (int)bytes);
    CHECK(gw_streams(to, gw_streamed_from) && !gw_streams(to, gw_streamed_from - 1), "large outputs alone");
    CHECK(!gw_streams(to + 32, gw_streamed_from), "aligned outputs alone");
    free(to);
  }
}

template <int R, int C, class T>
static void check_transpose() {
  Numbers<T> from(R * C, R), to(R * C, C);
  gw_transpose<R, C>(to.get(), from.get());
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) CHECK(to[c * R + r] == from[r * C + c], "%d x %d: row %d, column %d", R, C, r, c);
}

int main() {
  check_put<4, float>();
  check_put<2, double>();
#ifdef __AVX__
  check_put<8, float>();
  check_put<4, double>();
#endif
#ifdef __AVX512F__
  check_put<16, float>();
  check_put<8, double>();
#endif
  check_stream();
  check_transpose<1, 1, float>();
  check_transpose<8, 8, float>();
  check_transpose<8, 8, double>();
  check_transpose<7, 9, float>();
  check_transpose<17, 24, float>();
  check_transpose<31, 3, double>();
  gw_fetch<false, 3>(nullptr, 200);  // a prefetch of no address is none
}
