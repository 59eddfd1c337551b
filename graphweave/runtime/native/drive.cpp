// Runs several kernels as one call, for callers that have tables of them (JAX).
#include <cstdint>

namespace {

typedef int32_t Kernel(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                       int32_t num_threads);

// An address: `at[1]` bytes after values[at[0]], or `at[1]` itself if at[0] is negative.
char* place(const int64_t* at, char* const* values) {
  return at[0] < 0 ? reinterpret_cast<char*>(at[1]) : values[at[0]] + at[1];
}

}  // namespace

// `code` holds int64 numbers: the number of steps, followed by the steps. A step is
//   kernel's address, pointers, sizes, address of the chunks, chunks, [place of a pointer]..., [size]...
// where a place is two numbers (see `place`). Returns 0, or the number, counted from 1, of the step that had no memory.
extern "C" int64_t gw_drive(const int64_t* code, char* const* values, int32_t num_threads) {
  const int64_t steps = *code++;
  for (int64_t step = 1; step <= steps; ++step) {
    Kernel* const kernel = reinterpret_cast<Kernel*>(code[0]);
    const int64_t pointers = code[1], sizes = code[2], num_chunks = code[4];
    const int64_t* const chunks = reinterpret_cast<const int64_t*>(code[3]);
    code += 5;
    void* ptrs[pointers + 1];
    for (int64_t i = 0; i < pointers; ++i) ptrs[i] = place(code + 2 * i, values);
    code += 2 * pointers;
    if (kernel(ptrs, code, chunks, num_chunks, num_threads) != 0) return step;
    code += sizes;
  }
  return 0;
}
