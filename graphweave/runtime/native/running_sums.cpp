// Running sums over the rows of a matrix, from the first row or from the last one.
//
// Rows are cut into blocks of a fixed number of rows. Each block is added up, and its running sums begin with the sum of
// the blocks before it. So no result depends on the number of threads. One thread does both in one walk over the rows.

#include <graphweave/parallel.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace {

constexpr int64_t kBlockRows = 1024;

template <typename T>
struct Room {
  T* const data;  // null without memory

  explicit Room(int64_t count) : data(new (std::nothrow) T[count]()) {}
  ~Room() { delete[] data; }
};

// `Sum` is the type in which numbers are added: float64, or unsigned integers, whose overflow is defined.
template <typename T, typename Sum>
struct Walk {
  const T* x;
  T* out;
  int64_t rows, width;
  bool reverse;

  int64_t blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }

  // Calls body(offset) with where in memory each row of a block begins, in the order of the sums.
  template <typename Body>
  void over_rows(int64_t block, const Body& body) const {
    const int64_t end = std::min(rows, (block + 1) * kBlockRows);
    for (int64_t r = block * kBlockRows; r < end; ++r) body((reverse ? rows - 1 - r : r) * width);
  }

  void add_up(int64_t block, Sum* total) const {
    over_rows(block, [&](int64_t at) {
      for (int64_t j = 0; j < width; ++j) total[j] += static_cast<Sum>(x[at + j]);
    });
  }

  // `running` begins as the sum of the blocks before, which it is not afterwards.
  void write(int64_t block, Sum* running) const {
    over_rows(block, [&](int64_t at) {
      for (int64_t j = 0; j < width; ++j) {
        running[j] += static_cast<Sum>(x[at + j]);
        out[at + j] = static_cast<T>(running[j]);
      }
    });
  }

  // Like `write`, and adds the block to `total`, which `running` is before and after. `own` has room for a row.
  void write_and_add_up(int64_t block, Sum* running, Sum* total, Sum* own) const {
    if (width == 1) return write_column(block, *running, *total);
    std::fill(own, own + width, Sum(0));
    over_rows(block, [&](int64_t at) {
      for (int64_t j = 0; j < width; ++j) {
        const Sum value = static_cast<Sum>(x[at + j]);
        running[j] += value;
        own[j] += value;
        out[at + j] = static_cast<T>(running[j]);
      }
    });
    for (int64_t j = 0; j < width; ++j) running[j] = total[j] += own[j];
  }

  // One number a row: both sums stay in registers.
  void write_column(int64_t block, Sum& running, Sum& total) const {
    Sum sum = running, own = 0;
    over_rows(block, [&](int64_t at) {
      const Sum value = static_cast<Sum>(x[at]);
      sum += value;
      own += value;
      out[at] = static_cast<T>(sum);
    });
    running = total += own;
  }

  int32_t in_one_walk() const {
    const Room<Sum> sums(3 * width);
    if (!sums.data) return -1;
    for (int64_t b = 0; b < blocks(); ++b) write_and_add_up(b, sums.data, sums.data + width, sums.data + 2 * width);
    return 0;
  }

  int32_t in_parallel(int32_t threads) const {
    const Room<Sum> sums(blocks() * width);  // of each block, then of the blocks before it
    if (!sums.data) return -1;
    gw_parallel(blocks(), threads, [&](int64_t b, int32_t) { add_up(b, sums.data + b * width); });
    for (int64_t j = 0; j < width; ++j) {
      Sum before = 0;
      for (int64_t b = 0; b < blocks(); ++b) {
        const Sum own = sums.data[b * width + j];
        sums.data[b * width + j] = before;
        before += own;
      }
    }
    gw_parallel(blocks(), threads, [&](int64_t b, int32_t) { write(b, sums.data + b * width); });
    return 0;
  }

  int32_t run(int32_t threads) const { return threads > 1 && blocks() > 1 ? in_parallel(threads) : in_one_walk(); }
};

}  // namespace

// out[r] = x[0] + ... + x[r] for each of `rows` rows of `width` numbers, with `reverse` x[r] + ... + x[rows - 1].
// Returns 0, or -1 without memory.
extern "C" int32_t gw_running_f64(const double* x, double* out, int64_t rows, int64_t width, int32_t reverse,
                                  int32_t threads) {
  return Walk<double, double>{x, out, rows, width, reverse != 0}.run(threads);
}

extern "C" int32_t gw_running_f32(const float* x, float* out, int64_t rows, int64_t width, int32_t reverse,
                                  int32_t threads) {
  return Walk<float, double>{x, out, rows, width, reverse != 0}.run(threads);
}

extern "C" int32_t gw_running_i64(const int64_t* x, int64_t* out, int64_t rows, int64_t width, int32_t reverse,
                                  int32_t threads) {
  return Walk<int64_t, uint64_t>{x, out, rows, width, reverse != 0}.run(threads);
}
