// A page of C++ as an expert would write it for 64 features: what generated kernels are measured against.
#include <graphweave/parallel.h>

#include <cstdint>

namespace {
constexpr int64_t F = 64;     // features
constexpr int64_t AHEAD = 16;  // edges between asking for a row and reading it

inline void fetch(const float* row) {
  for (int64_t line = 0; line < F; line += 16) __builtin_prefetch(row + line);
}
}  // namespace

// y[v] = sum over edges u -> v of x[u]
extern "C" int32_t spmm(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                        int32_t num_threads) {
  const int32_t* const indptr = static_cast<const int32_t*>(ptrs[0]);
  const int32_t* const src = static_cast<const int32_t*>(ptrs[1]);
  const float* const x = static_cast<const float*>(ptrs[2]);
  float* const y = static_cast<float*>(ptrs[3]);
  const int64_t end = indptr[sizes[0]];
  gw_parallel(num_chunks, num_threads, [&](int64_t chunk, int32_t) {
    for (int64_t v = chunks[chunk]; v < chunks[chunk + 1]; ++v) {
      float sum[F] = {};
      for (int64_t k = indptr[v]; k < indptr[v + 1]; ++k) {
        if (k + AHEAD < end) fetch(x + src[k + AHEAD] * F);
        const float* const row = x + src[k] * F;
#pragma GCC ivdep
        for (int64_t j = 0; j < F; ++j) sum[j] += row[j];
      }
#pragma GCC ivdep
      for (int64_t j = 0; j < F; ++j) y[v * F + j] = sum[j];
    }
  });
  return 0;
}

// out[e] = <x[src[e]], x[dst[e]]>, edges grouped by destination
extern "C" int32_t sddmm(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                         int32_t num_threads) {
  const int32_t* const indptr = static_cast<const int32_t*>(ptrs[0]);
  const int32_t* const src = static_cast<const int32_t*>(ptrs[1]);
  const float* const x = static_cast<const float*>(ptrs[2]);
  float* const out = static_cast<float*>(ptrs[3]);
  const int32_t* const edge = static_cast<const int32_t*>(ptrs[4]);
  const int64_t end = indptr[sizes[0]];
  gw_parallel(num_chunks, num_threads, [&](int64_t chunk, int32_t) {
    for (int64_t v = chunks[chunk]; v < chunks[chunk + 1]; ++v) {
      const float* const mine = x + v * F;
      for (int64_t k = indptr[v]; k < indptr[v + 1]; ++k) {
        if (k + AHEAD < end) fetch(x + src[k + AHEAD] * F);
        const float* const row = x + src[k] * F;
        float part[16] = {};
        for (int64_t j = 0; j < F; j += 16)
#pragma GCC ivdep
          for (int64_t i = 0; i < 16; ++i) part[i] += mine[j + i] * row[j + i];
        for (int64_t half = 8; half > 0; half /= 2)
          for (int64_t i = 0; i < half; ++i) part[i] += part[i + half];
        out[edge[k]] = part[0];
      }
    }
  });
  return 0;
}
