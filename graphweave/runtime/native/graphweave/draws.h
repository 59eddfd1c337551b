// Random choices as a function of a key and of who draws: the numbers of one row are those at the positions (row, 0),
// (row, 1), ... of Philox under the key. Threads therefore share nothing, and any number of them gives the same choices.
#pragma once

#include <graphweave/random.h>

#include <algorithm>
#include <cmath>
#include <vector>

// A key that depends on both numbers; different numbers give different keys.
inline int64_t gw_folded(int64_t key, int64_t number) {
  const auto words = gw_philox(key, number);
  return (int64_t)((words.a << 32) | words.b);
}

struct gw_draws {
  int64_t key, row, next = 0;

  int64_t position() { return (int64_t)(((uint64_t)row << 32) + (uint64_t)next++); }
  // One of 0..count-1. Its probability differs from 1 / count by less than 2^-64.
  int64_t below(int64_t count) {
    const auto words = gw_philox(key, position());
    return (int64_t)(((unsigned __int128)((words.a << 32) | words.b) * (uint64_t)count) >> 64);
  }
  // In [0, 1), of 53 bits.
  double uniform() { return gw_uniform_f64(key, position()); }
};

// A set of numbers >= 0, for few at a time: a list that is searched, or a table of open addresses.
class gw_small_set {
public:
  void reset(int64_t most) {
    list_ = most <= 24;
    count_ = 0;
    if (list_) return;
    size_t slots = 64;
    while (slots < 2 * (size_t)most) slots *= 2;
    slots_.assign(slots, -1);
  }
  // Whether the number was not there.
  bool insert(int64_t number) {
    if (list_) {
      for (int i = 0; i < count_; ++i)
        if (few_[i] == number) return false;
      few_[count_++] = number;
      return true;
    }
    const size_t mask = slots_.size() - 1;
    size_t at = ((uint64_t)number * 0x9e3779b97f4a7c15u >> 20) & mask;
    for (; slots_[at] >= 0; at = (at + 1) & mask)
      if (slots_[at] == number) return false;
    slots_[at] = number;
    return true;
  }

private:
  bool list_ = true;
  int count_ = 0;
  int64_t few_[24];
  std::vector<int64_t> slots_;
};

// Sorts numbers. The comparison is spelled out: libc++ has the usual one compiled, in a library that need not be there.
inline void gw_sort(int64_t* from, int64_t* to) {
  std::sort(from, to, [](int64_t a, int64_t b) { return a < b; });
}

// `wanted` of the numbers 0..count-1, in rising order, each set of them equally likely: Floyd's algorithm (Bentley and
// Floyd, "A sample of brilliance", 1987). wanted <= count.
inline void gw_choose(gw_draws& draws, gw_small_set& seen, int64_t count, int64_t wanted, int64_t* out) {
  if (wanted == count) {
    for (int64_t i = 0; i < count; ++i) out[i] = i;
    return;
  }
  seen.reset(wanted);
  int64_t* to = out;
  for (int64_t last = count - wanted; last < count; ++last) {
    const int64_t drawn = draws.below(last + 1);
    if (seen.insert(drawn)) {
      *to++ = drawn;
    } else {
      seen.insert(last);
      *to++ = last;
    }
  }
  gw_sort(out, to);
}
