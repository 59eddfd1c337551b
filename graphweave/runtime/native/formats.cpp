// Graph formats built in parallel: checked and narrowed indices, stable counting sort by row (CSR), row chunks. Apart
// from the result, nothing as large as the edges is allocated here.
//
// With `wrap`, -n..-1 count from the end. Functions that read raw values return -1, or the position of the first value
// that is out of range. They write nothing outside their outputs. No result depends on the number of threads.

#include <graphweave/parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace {

constexpr int64_t kSerial = 1 << 15;  // below this many elements other threads cost more than they save
constexpr int kParts = 8;             // threads that each read a whole index; more would only share its bandwidth

// `count` values, `stride` elements apart, each of which names one of `rows` rows.
struct Index {
  const void* data;
  int64_t stride;
  int64_t count;
  int64_t rows;
  bool is64;
  bool wrap;
};

int threads_for(int64_t work, int32_t threads) { return work < kSerial ? 1 : std::max<int32_t>(threads, 1); }

inline int64_t value_at(const Index& index, int64_t e, bool is64) {
  const int64_t at = e * index.stride;
  return is64 ? static_cast<const int64_t*>(index.data)[at] : static_cast<const int32_t*>(index.data)[at];
}

inline int64_t value_at(const Index& index, int64_t e) { return value_at(index, e, index.is64); }

// The row that `value` names, or -1. One unsigned comparison covers both ends.
inline int64_t row_of(const Index& index, int64_t value) {
  if (index.wrap && value < 0) value += index.rows;
  return static_cast<uint64_t>(value) < static_cast<uint64_t>(index.rows) ? value : -1;
}

inline int64_t row_at(const Index& index, int64_t e) { return row_of(index, value_at(index, e)); }

void keep_smallest(std::atomic<int64_t>& best, int64_t candidate) {
  int64_t seen = best.load(std::memory_order_relaxed);
  while (candidate < seen && !best.compare_exchange_weak(seen, candidate)) {
  }
}

void keep_largest(std::atomic<int64_t>& best, int64_t candidate) {
  int64_t seen = best.load(std::memory_order_relaxed);
  while (candidate > seen && !best.compare_exchange_weak(seen, candidate)) {
  }
}

int64_t block_begin(int64_t count, int64_t block, int64_t blocks) {
  return static_cast<int64_t>(static_cast<__int128>(count) * block / blocks);
}

// Calls body(block, begin, end) for `blocks` equal ranges of 0..count.
template <typename Body>
void in_blocks(int64_t count, int blocks, int32_t threads, const Body& body) {
  gw_parallel(blocks, threads,
              [&](int64_t b, int32_t) { body(b, block_begin(count, b, blocks), block_begin(count, b + 1, blocks)); });
}

template <typename Out>
int64_t flat(const Index& index, Out* out, int32_t threads) {
  std::atomic<int64_t> bad{index.count};
  in_blocks(index.count, threads_for(index.count, threads), threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t row = row_at(index, e);
      if (row < 0) return keep_smallest(bad, e);
      if (out) out[e] = static_cast<Out>(row);
    }
  });
  return bad == index.count ? -1 : bad.load();
}

// Results of `scatter` other than a position: it could not allocate, or the index was written to in the meantime.
constexpr int64_t kNoMemory = -2, kChanged = -3;

// Computes indptr of the rows that `index` names, by adding up a histogram for each block of edges.
template <typename Out>
int64_t count_rows(const Index& index, Out* indptr, bool& sorted, int32_t threads) {
  // Histograms pay off only as long as together they are not larger than the edges.
  const int64_t affordable = std::max<int64_t>(1, 4 * index.count / std::max<int64_t>(index.rows, 1));
  const int blocks = static_cast<int>(std::min<int64_t>(threads_for(index.count, threads), affordable));
  const Memory held(blocks * index.rows * static_cast<int64_t>(sizeof(Out)));
  auto* const counts = static_cast<Out*>(held.data);
  if (!counts) return kNoMemory;
  std::atomic<int64_t> bad{index.count};
  std::atomic<bool> ordered{true};
  in_blocks(index.count, blocks, threads, [&](int64_t b, int64_t begin, int64_t end) {
    Out* mine = counts + b * index.rows;
    std::fill(mine, mine + index.rows, Out(0));
    int64_t before = begin > 0 ? row_at(index, begin - 1) : 0;
    bool rising = true;
    for (int64_t e = begin; e < end; ++e) {
      const int64_t row = row_at(index, e);
      if (row < 0) return keep_smallest(bad, e);
      rising &= row >= before;
      before = row;
      ++mine[row];
    }
    if (!rising) ordered.store(false, std::memory_order_relaxed);
  });
  if (bad != index.count) return bad;
  sorted = ordered;
  Out position = 0;
  for (int64_t row = 0; row < index.rows; ++row) {
    indptr[row] = position;
    for (int b = 0; b < blocks; ++b) position += counts[static_cast<int64_t>(b) * index.rows + row];
  }
  indptr[index.rows] = position;
  return -1;
}

// out[k] = the row that `other` names for the edge at position k of the CSR `indptr` of `index`: the second half of a
// stable counting sort. If `other` is null, it is the number of that edge. Each thread reads all edges and places those
// of its own rows. So the order needs no histogram for each thread, and what one thread writes is more likely to fit a
// cache.
template <bool kIs64, typename Out, typename Value>
int64_t scatter(const Index& index, const Out* indptr, Out* out, int32_t threads, Value value) {
  const Memory held(index.rows * static_cast<int64_t>(sizeof(Out)));
  auto* const next = static_cast<Out*>(held.data);
  if (!next) return kNoMemory;
  const int parts = std::min(threads_for(index.count, threads), kParts);
  std::atomic<int64_t> bad{index.count};
  std::atomic<bool> changed{false};
  in_blocks(index.count, parts, threads, [&](int64_t, int64_t first, int64_t last) {
    const auto row_with = [&](int64_t k) { return std::lower_bound(indptr, indptr + index.rows, Out(k)) - indptr; };
    const int64_t begin = first == 0 ? 0 : row_with(first), end = last == index.count ? index.rows : row_with(last);
    std::copy(indptr + begin, indptr + end, next + begin);
    for (int64_t e = 0; e < index.count; ++e) {
      const int64_t row = row_of(index, value_at(index, e, kIs64));
      if (row < begin || row >= end) continue;
      const int64_t k = next[row]++, found = value(e);
      if (found < 0) return keep_smallest(bad, e);
      if (k >= index.count) return changed.store(true);
      out[k] = static_cast<Out>(found);
    }
    // Every position is filled, and filled once, only if nobody wrote to the index since its rows were counted.
    for (int64_t row = begin; row < end; ++row)
      if (next[row] != indptr[row + 1]) return changed.store(true);
  });
  if (bad != index.count) return bad;
  return changed ? kChanged : -1;
}

template <typename Out>
int64_t max_degree(const Out* indptr, int64_t num_rows, int32_t threads) {
  std::atomic<int64_t> best{0};
  in_blocks(num_rows, threads_for(num_rows, threads), threads, [&](int64_t, int64_t begin, int64_t end) {
    int64_t mine = 0;
    for (int64_t row = begin; row < end; ++row)
      mine = std::max(mine, static_cast<int64_t>(indptr[row + 1]) - static_cast<int64_t>(indptr[row]));
    keep_largest(best, mine);
  });
  return best;
}

// chunks[c] is the first row at which rows + edges reach c / num_chunks of their total. A hub can span several shares;
// chunks that this would leave empty are skipped. Returns the number of chunks, which is at least one.
template <typename Out>
int64_t balance(const Out* indptr, int64_t num_rows, int64_t* chunks, int64_t num_chunks) {
  const int64_t total = num_rows + static_cast<int64_t>(indptr[num_rows]);
  int64_t made = 0;
  chunks[0] = 0;
  for (int64_t c = 1; c < num_chunks; ++c) {
    const int64_t goal = block_begin(total, c, num_chunks);
    int64_t low = chunks[made], high = num_rows;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (middle + static_cast<int64_t>(indptr[middle]) < goal)
        low = middle + 1;
      else
        high = middle;
    }
    if (low > chunks[made]) chunks[++made] = low;
  }
  if (num_rows > chunks[made] || made == 0) chunks[++made] = num_rows;  // trailing rows without edges
  return made;
}

// Facts about a grouping, besides its indptr.
struct Grouping {
  int64_t sorted;
  int64_t max_degree;
  int64_t num_chunks;
};

template <typename Out>
int64_t group(const Index& index, Out* indptr, int64_t* chunks, int64_t num_chunks, Grouping& found, int32_t threads) {
  bool sorted = false;
  const int64_t bad = count_rows(index, indptr, sorted, threads);
  if (bad != -1) return bad;
  found = {sorted, max_degree(indptr, index.rows, threads), balance(indptr, index.rows, chunks, num_chunks)};
  return -1;
}

template <bool kIs64, typename Out>
int64_t place(const Index& index, const Index* other, const Out* indptr, Out* out, int32_t threads) {
  if (other) return scatter<kIs64>(index, indptr, out, threads, [=](int64_t e) { return row_at(*other, e); });
  return scatter<kIs64>(index, indptr, out, threads, [](int64_t e) { return e; });
}

}  // namespace

// out[e] = the row that index[e] names. If out is null, the values are only checked. Returns the first bad position, or
// -1.
extern "C" int64_t gw_flat(Index index, void* out, int32_t wide, int32_t threads) {
  return wide ? flat(index, static_cast<int64_t*>(out), threads) : flat(index, static_cast<int32_t*>(out), threads);
}

// out[e] = index[e] in 32 bits, without a check against rows. Returns the first position whose value does not fit, or
// -1.
extern "C" int64_t gw_narrow(const void* data, int64_t stride, int64_t count, int32_t* out, int32_t threads) {
  const Index index{data, stride, count, 0, true, false};
  std::atomic<int64_t> bad{count};
  in_blocks(count, threads_for(count, threads), threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t value = value_at(index, e);
      out[e] = static_cast<int32_t>(value);
      if (out[e] != value) return keep_smallest(bad, e);
    }
  });
  return bad == count ? -1 : bad.load();
}

// Counts edges by row. Returns -1, the first bad position, or kNoMemory. `chunks` has num_chunks + 1 places, of which
// found->num_chunks + 1 are written. num_chunks is at least one and at most the number of rows.
extern "C" int64_t gw_group(Index index, void* indptr, int64_t* chunks, int64_t num_chunks, Grouping* found,
                            int32_t wide, int32_t threads) {
  return wide ? group(index, static_cast<int64_t*>(indptr), chunks, num_chunks, *found, threads)
              : group(index, static_cast<int32_t*>(indptr), chunks, num_chunks, *found, threads);
}

// out[k] = the row that `other` names for the edge at position k of the CSR of `index`. If `other` is null, it is that
// edge's id. Returns -1, the first bad position of `other`, kNoMemory or kChanged.
extern "C" int64_t gw_place(Index index, const Index* other, const void* indptr, void* out, int32_t wide,
                            int32_t threads) {
  const auto of = [&](auto zero) {
    auto* const from = static_cast<const decltype(zero)*>(indptr);
    auto* const to = static_cast<decltype(zero)*>(out);
    return index.is64 ? place<true>(index, other, from, to, threads) : place<false>(index, other, from, to, threads);
  };
  return wide ? of(int64_t{}) : of(int32_t{});
}
