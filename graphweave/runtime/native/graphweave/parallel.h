// Shares a loop among the threads of the process, whatever compiler made this code.
//
// A library links no pool of threads. Whoever loads it hands it `GOMP_parallel` of the OpenMP runtime that PyTorch uses
// (runtime/threads.py). Until then, loops run on the calling thread. So do loops inside of others, as OpenMP wants it.
#pragma once

#include <cstdint>

// Calls task(data) on at most `threads` threads, of which the caller is one, and returns when all of them have.
typedef void gw_enter(void (*task)(void*), void* data, unsigned threads, unsigned flags);

#ifdef GW_EXPORTED_MODEL  // each run of a model says which threads it may enter
static thread_local gw_enter* gw_enter_threads = nullptr;
#else
static gw_enter* gw_enter_threads = nullptr;

extern "C" __attribute__((used, visibility("default"))) void gw_use_threads(gw_enter* enter) {
  gw_enter_threads = enter;
}
#endif

template <class Body>
struct gw_shared_loop {
  const Body& body;
  const int64_t count;
  int64_t next = 0;
  int32_t entered = 0;

  // One thread's share. What this throws would have to pass through C code, so it ends the process. Not inlined, as the
  // body would then be there twice: for the calling thread alone and for all of them.
  static __attribute__((noinline)) void run(void* shared) noexcept {
    gw_shared_loop& loop = *static_cast<gw_shared_loop*>(shared);
    const int32_t thread = __atomic_fetch_add(&loop.entered, 1, __ATOMIC_RELAXED);
    int64_t i;
    while ((i = __atomic_fetch_add(&loop.next, 1, __ATOMIC_RELAXED)) < loop.count) loop.body(i, thread);
  }
};

// Calls body(i, thread) for each i of 0..count, in any order. `thread` is from 0 to threads - 1, and no two calls at the
// same time have the same. With one i, no other thread is woken. Otherwise all are, even if there are fewer i: libgomp
// ends threads that a loop does not ask for, and would have to start them again for the next.
template <class Body>
void gw_parallel(int64_t count, int32_t threads, const Body& body) {
  gw_shared_loop<Body> loop{body, count};
  if (count > 1 && threads > 1 && gw_enter_threads != nullptr)
    gw_enter_threads(&loop.run, &loop, static_cast<unsigned>(threads), 0);
  else
    loop.run(&loop);
}

// Calls body(first, last, thread) for the ranges of `size` elements that make up 0..count; the last may be shorter.
template <class Body>
void gw_parallel_ranges(int64_t count, int64_t size, int32_t threads, const Body& body) {
  gw_parallel((count + size - 1) / size, threads, [&](int64_t range, int32_t thread) {
    const int64_t first = range * size;
    body(first, count - first < size ? count : first + size, thread);
  });
}
