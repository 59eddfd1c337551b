// Loops shared among threads: every i once, no thread's number twice at a time, loops inside of loops, ranges, no pool.
#include <graphweave/parallel.h>

#include <atomic>
#include <memory>

#include "check.h"
#include "pool.h"

static int entered;

static void enter_counted(void (*task)(void*), void* data, unsigned threads, unsigned flags) {
  ++entered;
  enter_threads(task, data, threads, flags);
}

// OpenMP may give fewer threads than it is asked for.
static void enter_one(void (*task)(void*), void* data, unsigned, unsigned) { task(data); }

static void check_loop(int64_t count, int32_t threads) {
  const std::unique_ptr<std::atomic<int>[]> calls(new std::atomic<int>[count]());
  const std::unique_ptr<std::atomic<bool>[]> busy(new std::atomic<bool>[threads < 1 ? 1 : threads]());
  gw_parallel(count, threads, [&](int64_t i, int32_t thread) {
    CHECK(thread >= 0 && thread < (threads < 1 ? 1 : threads), "thread %d of %d", thread, threads);
    CHECK(!busy[thread].exchange(true), "thread %d is there twice", thread);
    CHECK(i >= 0 && i < count, "%d of %d", (int)i, (int)count);
    ++calls[i];
    busy[thread] = false;
  });
  for (int64_t i = 0; i < count; ++i) CHECK(calls[i] == 1, "%d of %d: %d calls", (int)i, (int)count, (int)calls[i]);
}

static void check_ranges(int64_t count, int64_t size, int32_t threads) {
  const std::unique_ptr<std::atomic<int>[]> calls(new std::atomic<int>[count]());
  gw_parallel_ranges(count, size, threads, [&](int64_t first, int64_t last, int32_t) {
    CHECK(first % size == 0 && last > first && last - first <= size, "%d to %d", (int)first, (int)last);
    for (int64_t i = first; i < last; ++i) ++calls[i];
  });
  for (int64_t i = 0; i < count; ++i) CHECK(calls[i] == 1, "%d of %d: %d calls", (int)i, (int)count, (int)calls[i]);
}

static void check_loop_inside_of_another() {
  std::atomic<int> calls[3][5] = {};
  gw_parallel(3, 4, [&](int64_t i, int32_t) { gw_parallel(5, 4, [&](int64_t j, int32_t) { ++calls[i][j]; }); });
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 5; ++j) CHECK(calls[i][j] == 1, "%d, %d", i, j);
}

// What one loop writes, the next one reads on other threads.
static void check_that_a_loop_ends_before_the_next() {
  Numbers<double> x(1000), y(1000), z(1000);
  gw_parallel(1000, 4, [&](int64_t i, int32_t) { y[i] = 2 * x[i]; });
  gw_parallel(1000, 4, [&](int64_t i, int32_t) { z[i] = y[999 - i]; });
  for (int64_t i = 0; i < 1000; ++i) CHECK(z[i] == 2 * x[999 - i], "%d", (int)i);
}

static void check_all() {
  for (int64_t count : {0, 1, 2, 3, 100})
    for (int32_t threads : {-1, 0, 1, 2, 7}) {
      check_loop(count, threads);
      for (int64_t size : {1, 3, 64, 1000}) check_ranges(count, size, threads);
    }
  check_loop_inside_of_another();
  check_that_a_loop_ends_before_the_next();
}

int main() {
  check_all();  // without a pool
  for (gw_enter* enter : {enter_threads, enter_one}) {
    gw_use_threads(enter);
    check_all();
  }
  gw_use_threads(enter_counted);
  check_loop(1, 4);
  check_loop(4, 1);
  check_ranges(64, 64, 4);
  CHECK(entered == 0, "one thread needs no pool");
  check_loop(2, 4);
  CHECK(entered == 1, "two chunks are shared");
}
