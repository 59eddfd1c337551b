// Tables of kernels: what each is given, matrices turned over, and a kernel that has no memory.
#include <drive.cpp>

#include <vector>

#include "check.h"

static int calls;

// out[i] = a[i] + b[i] for the rows of each chunk
static int32_t add(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                   int32_t threads) {
  CHECK(sizes[0] == 5 && threads == 3, "%d rows, %d threads", (int)sizes[0], threads);
  const float *a = (const float*)ptrs[0], *b = (const float*)ptrs[1];
  float* const out = (float*)ptrs[2];
  for (int64_t c = 0; c < num_chunks; ++c)
    for (int64_t i = chunks[c]; i < chunks[c + 1]; ++i) out[i] = a[i] + b[i];
  ++calls;
  return 0;
}

static int32_t no_memory(void* const*, const int64_t*, const int64_t*, int64_t, int32_t) { return 1; }

static void check_kernels() {
  Numbers<float> a(5, 1), b(5, 2), inside(5), out(5);
  const int64_t chunks[] = {0, 2, 5};
  char* const values[] = {(char*)a.get(), (char*)inside.get(), (char*)out.get()};
  const int64_t code[] = {
      2,  // steps
      (int64_t)&add,
      3,
      1,
      (int64_t)chunks,
      2,
      0,
      0,
      -1,
      (int64_t)b.get(),
      1,
      0,
      5,  // inside = a + b
      (int64_t)&add,
      3,
      1,
      (int64_t)chunks,
      2,
      1,
      0,
      0,
      0,
      2,
      0,
      5,  // out = inside + a
  };
  CHECK(gw_drive(code, values, 3) == 0 && calls == 2, "%d calls", calls);
  for (int i = 0; i < 5; ++i) CHECK(out[i] == a[i] + b[i] + a[i], "number %d", i);
}

template <class T>
static void check_turned(int64_t rows, int64_t columns) {
  Numbers<float> bytes(rows * columns * sizeof(T) / 4 + 1, (uint32_t)(rows + columns));
  std::vector<T> from(rows * columns), to(2 + rows * columns);
  if (!from.empty()) memcpy(from.data(), bytes.get(), from.size() * sizeof(T));
  char* const values[] = {(char*)to.data(), (char*)from.data()};
  const int64_t code[] = {1, 0, (int64_t)sizeof(T), rows, columns, 1, 0, 0, 2 * (int64_t)sizeof(T)};
  CHECK(gw_drive(code, values, 1) == 0, "no kernel fails");
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      CHECK(to[2 + c * rows + r] == from[r * columns + c], "%d x %d", (int)rows, (int)columns);
}

int main() {
  check_kernels();
  for (int64_t rows : {0, 1, 3, 16, 33})
    for (int64_t columns : {1, 2, 17, 64}) {
      check_turned<int16_t>(rows, columns);
      check_turned<int32_t>(rows, columns);
      check_turned<int64_t>(rows, columns);
    }
  const int64_t chunks[] = {0, 0};
  const int64_t code[] = {2,
                          0,
                          4,
                          0,
                          0,
                          -1,
                          0,
                          -1,
                          0,  // nothing to turn over
                          (int64_t)&no_memory,
                          0,
                          0,
                          (int64_t)chunks,
                          1};
  CHECK(gw_drive(code, nullptr, 1) == 2, "the second step has no memory");
}
