// The edges between chosen nodes, in the order of their destinations, with the numbers of both ends among the chosen.
// Edges are grouped by destination (CSC); every result is the same for any number of threads.

#include <graphweave/parallel.h>

#include <cstdint>

namespace {

constexpr int64_t kSerial = 1 << 10;  // below this many rows other threads cost more than they save
constexpr int64_t kRange = 64;        // rows that a thread takes at a time

template <typename Int>
struct Between {
  const Int* indptr;       // [nodes + 1]
  const Int* sources;      // [edges], by position
  const Int* edges;        // [edges]: the number of the edge at each position; null if it is the position
  const int64_t* numbers;  // [sources]: the number of a chosen source, -1 for others
  const int64_t* rows;     // [count]: the chosen destinations
  int64_t count;

  template <typename Body>
  void for_rows(int32_t threads, const Body& body) const {
    gw_parallel_ranges(count, kRange, count < kSerial ? 1 : threads, [&](int64_t first, int64_t last, int32_t) {
      for (int64_t i = first; i < last; ++i) body(i);
    });
  }

  void counts(int64_t* offsets, int32_t threads) const {
    for_rows(threads, [&](int64_t i) {
      int64_t found = 0;
      for (int64_t k = indptr[rows[i]], last = indptr[rows[i] + 1]; k < last; ++k) found += numbers[sources[k]] >= 0;
      offsets[i + 1] = found;
    });
    offsets[0] = 0;
    for (int64_t i = 0; i < count; ++i) offsets[i + 1] += offsets[i];
  }

  void fill(const int64_t* offsets, int64_t* src, int64_t* dst, int64_t* edge, int32_t threads) const {
    for_rows(threads, [&](int64_t i) {
      int64_t at = offsets[i];
      for (int64_t k = indptr[rows[i]], last = indptr[rows[i] + 1]; k < last; ++k) {
        const int64_t number = numbers[sources[k]];
        if (number < 0) continue;
        src[at] = number;
        dst[at] = i;
        edge[at++] = edges ? static_cast<int64_t>(edges[k]) : k;
      }
    });
  }
};

}  // namespace

// A graph and the nodes chosen of it; the fields are those of `Between`.
struct Chosen {
  const void *indptr, *sources, *edges;
  const int64_t *numbers, *rows;
  int64_t count;
  int64_t wide;  // whether indptr, sources and edges are int64 instead of int32
};

namespace {

template <typename Int>
Between<Int> between(const Chosen& c) {
  return {static_cast<const Int*>(c.indptr),
          static_cast<const Int*>(c.sources),
          static_cast<const Int*>(c.edges),
          c.numbers,
          c.rows,
          c.count};
}

}  // namespace

// offsets[i + 1] - offsets[i] is the number of edges from a chosen source to row i. Returns their sum.
extern "C" int64_t gw_between_count(const Chosen* c, int64_t* offsets, int32_t threads) {
  if (c->wide)
    between<int64_t>(*c).counts(offsets, threads);
  else
    between<int32_t>(*c).counts(offsets, threads);
  return offsets[c->count];
}

extern "C" void gw_between_fill(const Chosen* c, const int64_t* offsets, int64_t* src, int64_t* dst, int64_t* edge,
                                int32_t threads) {
  if (c->wide)
    between<int64_t>(*c).fill(offsets, src, dst, edge, threads);
  else
    between<int32_t>(*c).fill(offsets, src, dst, edge, threads);
}
