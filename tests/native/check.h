// What the test programs of the headers share. A program ends with 0 if every check held.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>

#define CHECK(condition, ...)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                   \
      std::fprintf(stderr, "\n");                                          \
      std::exit(1);                                                        \
    }                                                                      \
  } while (0)

// An array that is exactly as long as it says, so that the sanitizer sees one element too far. Its elements are signed
// and spread; those of another seed are others.
template <class T>
struct Numbers {
  int64_t count;
  std::unique_ptr<T[]> data;
  explicit Numbers(int64_t n, uint32_t seed = 1) : count(n), data(new T[n]) {
    for (int64_t i = 0; i < n; ++i) {
      seed = seed * 1664525u + 1013904223u;
      data[i] = T((int32_t)(seed >> 8) % 2001 - 1000) / T(500);
    }
  }
  T* get() { return data.get(); }
  T& operator[](int64_t i) { return data[i]; }
};
