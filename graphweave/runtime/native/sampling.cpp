// Neighbour sampling: how many edges each row draws, which ones, and the numbers of the nodes found within a batch.
// Every result is the same for any number of threads: each row draws its own numbers (draws.h), and nodes are numbered
// in the order in which the edges name them first.

#include <graphweave/draws.h>
#include <graphweave/parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

namespace {

constexpr int64_t kSerial = 1 << 12;  // below this many rows or edges other threads cost more than they save
constexpr int64_t kRange = 256;       // rows that a thread takes at a time
constexpr int64_t kAbsent = std::numeric_limits<int64_t>::max();

int threads_for(int64_t work, int32_t threads) { return work < kSerial ? 1 : std::max<int32_t>(threads, 1); }

// Calls body(range, from, to) for as many equal ranges of 0..count as there are threads.
template <typename Body>
void in_equal_ranges(int64_t count, int32_t threads, const Body& body) {
  const auto begin = [&](int64_t range) { return count / threads * range + std::min(range, count % threads); };
  gw_parallel(threads, threads, [&](int64_t range, int32_t) { body(range, begin(range), begin(range + 1)); });
}

}  // namespace

// Edges grouped by destination. Position k holds the edge `edges[k]` (k itself if that is null), whose source is
// `sources[k]`. Other arrays may be null.
struct Adjacency {
  const void* indptr;         // [rows + 1]
  const void* sources;        // [edges]
  const void* edges;          // [edges]
  const double* weights;      // [edges], by position, finite and >= 0
  const int64_t* edge_times;  // [edges], by position
  const int64_t* node_times;  // [sources]
  int64_t wide;               // whether indptr, sources and edges are int64 instead of int32
  const int64_t* excluded;    // [num_excluded]: positions that no row draws, in rising order
  int64_t num_excluded;
};

// Rows that draw: nodes[i], which sees no edge and no source later than times[i] (null: it sees all).
struct Rows {
  const int64_t* nodes;
  const int64_t* times;
  int64_t count;
};

struct Choice {
  int64_t fanout;   // edges a row draws; below 0, all that it sees
  int64_t key;      // of the random numbers
  int64_t replace;  // whether an edge may be drawn again
  int64_t latest;   // whether the latest edges are taken instead of random ones
  int64_t by_node;  // whether a row draws the numbers of its node instead of those of its place among the rows
};

namespace {

template <typename Int>
struct Sampler {
  const Adjacency& graph;
  const Rows& rows;
  const Choice& choice;

  int64_t begin(int64_t i) const { return static_cast<const Int*>(graph.indptr)[rows.nodes[i]]; }
  int64_t end(int64_t i) const { return static_cast<const Int*>(graph.indptr)[rows.nodes[i] + 1]; }
  bool timed() const { return rows.times && (graph.edge_times || graph.node_times); }
  bool plain() const { return !graph.weights && !timed(); }

  int64_t time_of(int64_t k) const {
    if (graph.edge_times && graph.node_times)
      return std::max(graph.edge_times[k], graph.node_times[static_cast<const Int*>(graph.sources)[k]]);
    return graph.edge_times ? graph.edge_times[k] : graph.node_times[static_cast<const Int*>(graph.sources)[k]];
  }

  // The excluded positions of a row, in rising order.
  struct Excluded {
    const int64_t *begin, *end;

    int64_t count() const { return end - begin; }
    // The position that `rank` others of those that are not excluded stand before, in a row that begins at `first`.
    int64_t at(int64_t first, int64_t rank) const {
      int64_t low = 0, high = count();  // of the excluded ones that stand before it
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (begin[middle] - middle <= first + rank)
          low = middle + 1;
        else
          high = middle;
      }
      return first + rank + low;
    }
  };
  Excluded excluded(int64_t i) const {
    const int64_t* const all = graph.excluded;
    if (!graph.num_excluded) return {all, all};
    const int64_t* const from = std::lower_bound(all, all + graph.num_excluded, begin(i));
    return {from, std::lower_bound(from, all + graph.num_excluded, end(i))};
  }

  // Calls body with each position that row i may draw.
  template <typename Body>
  void seen(int64_t i, Body body) const {
    const bool timed_ = timed();
    Excluded gone = excluded(i);
    for (int64_t k = begin(i), last = end(i); k < last; ++k) {
      if (gone.count() && *gone.begin == k)
        ++gone.begin;
      else if (!(graph.weights && !(graph.weights[k] > 0)) && !(timed_ && time_of(k) > rows.times[i]))
        body(k);
    }
  }

  int64_t size(int64_t i) const {
    int64_t found = 0;
    if (plain())
      found = end(i) - begin(i) - excluded(i).count();
    else
      seen(i, [&](int64_t) { ++found; });
    if (choice.fanout < 0) return found;
    if (choice.replace && !choice.latest) return found ? choice.fanout : 0;
    return std::min(found, choice.fanout);
  }

  // Memory of one thread. It does not share a cache line with that of another.
  struct alignas(64) Scratch {
    gw_small_set chosen;
    std::vector<int64_t> positions;
    std::vector<double> sums;
    std::vector<std::pair<double, int64_t>> ranked;
    std::vector<std::pair<int64_t, int64_t>> dated;
  };

  // Writes the `count` positions that row i draws.
  void draw(int64_t i, int64_t count, int64_t* out, Scratch& scratch) const {
    if (count == 0) return;
    gw_draws draws{choice.key, choice.by_node ? rows.nodes[i] : i};
    if (plain()) {
      const Excluded gone = excluded(i);
      const int64_t first = begin(i), degree = end(i) - first - gone.count();
      if (choice.replace && choice.fanout >= 0)
        for (int64_t j = 0; j < count; ++j) out[j] = draws.below(degree);
      else
        gw_choose(draws, scratch.chosen, degree, count, out);
      for (int64_t j = 0; j < count; ++j) out[j] = gone.at(first, out[j]);
      return;
    }
    auto& at = scratch.positions;
    at.clear();
    seen(i, [&](int64_t k) { at.push_back(k); });
    const int64_t found = static_cast<int64_t>(at.size());
    if (found == count && (!choice.replace || choice.fanout < 0 || choice.latest)) {
      std::copy(at.begin(), at.end(), out);
    } else if (choice.latest) {
      latest(at, count, out, scratch.dated);
    } else if (graph.weights && choice.replace) {
      weighted_again(draws, at, count, out, scratch.sums);
    } else if (graph.weights) {
      weighted_once(draws, at, count, out, scratch.ranked);
    } else if (choice.replace) {
      for (int64_t j = 0; j < count; ++j) out[j] = at[draws.below(found)];
    } else {
      gw_choose(draws, scratch.chosen, found, count, out);
      for (int64_t j = 0; j < count; ++j) out[j] = at[out[j]];
    }
  }

  // The latest edges; of two of one time, the one at the later position.
  void latest(const std::vector<int64_t>& at, int64_t count, int64_t* out,
              std::vector<std::pair<int64_t, int64_t>>& dated) const {
    dated.clear();
    for (const int64_t k : at) dated.emplace_back(time_of(k), k);
    std::nth_element(dated.begin(), dated.begin() + count - 1, dated.end(), std::greater<>());
    for (int64_t j = 0; j < count; ++j) out[j] = dated[j].second;
    gw_sort(out, out + count);
  }

  void weighted_again(gw_draws& draws, const std::vector<int64_t>& at, int64_t count, int64_t* out,
                      std::vector<double>& sums) const {
    sums.clear();
    double most = 0, sum = 0;
    for (const int64_t k : at) most = std::max(most, graph.weights[k]);
    // By a power of 2 the largest weight becomes one from 1/2 to 1: sums neither overflow nor lose bits as denormals.
    const int scale = -std::ilogb(most) - 1;
    for (const int64_t k : at) sums.push_back(sum += std::ldexp(graph.weights[k], scale));
    for (int64_t j = 0; j < count; ++j) {
      const auto found = std::upper_bound(sums.begin(), sums.end() - 1, draws.uniform() * sum);
      out[j] = at[found - sums.begin()];
    }
  }

  // Each draw takes one of the edges that are left, by its weight. Of exponential waiting times with the weights as
  // rates, the first `count` are that (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
  // Logarithms of the times are compared, since the times of very small and very large weights are no numbers.
  void weighted_once(gw_draws& draws, const std::vector<int64_t>& at, int64_t count, int64_t* out,
                     std::vector<std::pair<double, int64_t>>& ranked) const {
    ranked.clear();
    for (const int64_t k : at)
      ranked.emplace_back(std::log(-std::log1p(-draws.uniform())) - std::log(graph.weights[k]), k);
    std::nth_element(ranked.begin(), ranked.begin() + count - 1, ranked.end());
    for (int64_t j = 0; j < count; ++j) out[j] = ranked[j].second;
    gw_sort(out, out + count);
  }

  int64_t count(int64_t* offsets, int32_t threads) const {
    gw_parallel_ranges(rows.count, kRange, threads_for(rows.count, threads), [&](int64_t from, int64_t to, int32_t) {
      for (int64_t i = from; i < to; ++i) {
        if (i + 16 < rows.count) __builtin_prefetch(static_cast<const Int*>(graph.indptr) + rows.nodes[i + 16]);
        offsets[i + 1] = size(i);
      }
    });
    offsets[0] = 0;
    for (int64_t i = 0; i < rows.count; ++i)
      if (__builtin_add_overflow(offsets[i + 1], offsets[i], offsets + i + 1)) return -1;
    return offsets[rows.count];
  }

  // For each drawn edge: its source, its number, and `first` plus the row that drew it.
  void fill(const int64_t* offsets, int64_t first, int64_t* sources, int64_t* edges, int64_t* drawn_by,
            int32_t threads) const {
    const int parallel = threads_for(offsets[rows.count], threads);
    std::vector<Scratch> scratch(parallel);
    gw_parallel_ranges(rows.count, kRange, parallel, [&](int64_t begin, int64_t end, int32_t thread) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = offsets[i], to = offsets[i + 1];
        draw(i, to - from, edges + from, scratch[thread]);
        for (int64_t j = from; j < to; ++j) {
          __builtin_prefetch(static_cast<const Int*>(graph.sources) + edges[j]);
          if (graph.edges) __builtin_prefetch(static_cast<const Int*>(graph.edges) + edges[j]);
          drawn_by[j] = first + i;
        }
      }
    });
    in_equal_ranges(offsets[rows.count], parallel, [&](int64_t, int64_t from, int64_t to) {
      for (int64_t j = from; j < to; ++j) {
        const int64_t k = edges[j];
        sources[j] = static_cast<const Int*>(graph.sources)[k];
        if (graph.edges) edges[j] = static_cast<const Int*>(graph.edges)[k];
      }
    });
  }
};

template <typename Body>
auto with_int(const Adjacency& graph, Body body) {
  return graph.wide ? body(int64_t{}) : body(int32_t{});
}

}  // namespace

// offsets[i + 1] - offsets[i] is the number of edges that row i draws. Returns their sum, -1 if 64 bits do not hold it.
extern "C" int64_t gw_sample_count(const Adjacency* graph, const Rows* rows, const Choice* choice, int64_t* offsets,
                                   int32_t threads) {
  return with_int(*graph,
                  [&](auto in) { return Sampler<decltype(in)>{*graph, *rows, *choice}.count(offsets, threads); });
}

// The edges of row i stand at offsets[i] to offsets[i + 1], in the order of their positions unless drawn with
// replacement.
extern "C" void gw_sample_fill(const Adjacency* graph, const Rows* rows, const Choice* choice, const int64_t* offsets,
                               int64_t first, int64_t* sources, int64_t* edges, int64_t* drawn_by, int32_t threads) {
  with_int(*graph, [&](auto in) {
    Sampler<decltype(in)>{*graph, *rows, *choice}.fill(offsets, first, sources, edges, drawn_by, threads);
  });
}

// The key of a batch: it depends on `seed` and on every number of `numbers`, in their order.
extern "C" int64_t gw_sample_key(int64_t seed, const int64_t* numbers, int64_t count) {
  int64_t key = gw_folded(seed, count);
  for (int64_t i = 0; i < count; ++i) key = gw_folded(key, numbers[i]);
  return key;
}

// Local numbers of the nodes of a batch. The node `node` of tree `tree` is the number tree * num_nodes + node; keys is
// null where that is the slot itself. An empty slot has key -1 and value kAbsent; a numbered one has -(number + 1).
struct Table {
  int64_t* keys;
  int64_t* values;
  int64_t capacity;  // a power of two, unless keys is null
  int64_t num_nodes;
};

namespace {

struct Slots {
  const Table& table;

  static uint64_t mixed(int64_t key) {
    uint64_t x = static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 32);
  }
  int64_t home(int64_t key) const {
    return table.keys ? static_cast<int64_t>(mixed(key) & static_cast<uint64_t>(table.capacity - 1)) : key;
  }
  void prefetch(int64_t key) const {
    const int64_t slot = home(key);
    if (table.keys) __builtin_prefetch(table.keys + slot, 1);
    __builtin_prefetch(table.values + slot, 1);
  }
  int64_t find(int64_t key) const {
    int64_t slot = home(key);
    if (!table.keys) return slot;
    for (;; slot = (slot + 1) & (table.capacity - 1)) {
      if (table.keys[slot] == key) return slot;
      if (table.keys[slot] < 0) {
        table.keys[slot] = key;
        return slot;
      }
    }
  }
  // As `find`, while other threads do the same.
  int64_t find_shared(int64_t key) const {
    int64_t slot = home(key);
    if (!table.keys) return slot;
    for (;; slot = (slot + 1) & (table.capacity - 1)) {
      int64_t there = __atomic_load_n(table.keys + slot, __ATOMIC_RELAXED);
      if (there < 0 &&
          __atomic_compare_exchange_n(table.keys + slot, &there, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return slot;
      if (there == key) return slot;
    }
  }
  void keep_smallest(int64_t slot, int64_t value) const {
    int64_t seen = __atomic_load_n(table.values + slot, __ATOMIC_RELAXED);
    while (value < seen &&
           !__atomic_compare_exchange_n(table.values + slot, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }
};

struct Named {
  const Table& table;
  const int64_t* nodes;
  const int64_t* trees;  // by number of the row that drew, or null
  const int64_t* drawn_by;

  int64_t tree(int64_t e) const { return trees ? trees[drawn_by ? drawn_by[e] : e] : 0; }
  int64_t key(int64_t e) const { return tree(e) * table.num_nodes + nodes[e]; }
};

constexpr int64_t kAhead = 16;  // edges by which slots are prefetched

int64_t number_alone(const Named& named, int64_t count, int64_t first, int64_t* local, int64_t* new_nodes,
                     int64_t* new_trees) {
  const Slots slots{named.table};
  int64_t added = 0;
  for (int64_t e = 0; e < count; ++e) {
    if (e + kAhead < count) slots.prefetch(named.key(e + kAhead));
    int64_t& value = named.table.values[slots.find(named.key(e))];
    if (value == kAbsent) {
      new_nodes[added] = named.nodes[e];
      if (new_trees) new_trees[added] = named.tree(e);
      value = -(first + added++ + 1);
    }
    local[e] = -value - 1;
  }
  return added;
}

int64_t number_together(const Named& named, int64_t count, int64_t first, int64_t* local, int64_t* new_nodes,
                        int64_t* new_trees, int threads) {
  const Slots slots{named.table};
  int64_t* const values = named.table.values;
  std::vector<int64_t> starts(threads + 1, 0);
  in_equal_ranges(count, threads, [&](int64_t, int64_t from, int64_t to) {
    for (int64_t e = from; e < to; ++e) {
      if (e + kAhead < count) slots.prefetch(named.key(e + kAhead));
      local[e] = slots.find_shared(named.key(e));
      slots.keep_smallest(local[e], e);
    }
  });
  const auto is_first = [&](int64_t e) { return __atomic_load_n(values + local[e], __ATOMIC_RELAXED) == e; };
  in_equal_ranges(count, threads, [&](int64_t range, int64_t from, int64_t to) {
    int64_t found = 0;
    for (int64_t e = from; e < to; ++e) found += is_first(e);
    starts[range + 1] = found;
  });
  for (int b = 0; b < threads; ++b) starts[b + 1] += starts[b];
  in_equal_ranges(count, threads, [&](int64_t range, int64_t from, int64_t to) {
    int64_t at = starts[range];
    for (int64_t e = from; e < to; ++e) {
      if (!is_first(e)) continue;
      new_nodes[at] = named.nodes[e];
      if (new_trees) new_trees[at] = named.tree(e);
      __atomic_store_n(values + local[e], -(first + at++ + 1), __ATOMIC_RELAXED);
    }
  });
  in_equal_ranges(count, threads, [&](int64_t, int64_t from, int64_t to) {
    for (int64_t e = from; e < to; ++e) local[e] = -values[local[e]] - 1;
  });
  return starts[threads];
}

}  // namespace

// Gives the nodes the numbers first, first + 1, ... A node that is there already keeps its number.
extern "C" void gw_table_fill(const Table* table, const int64_t* nodes, const int64_t* trees, int64_t count,
                              int64_t first) {
  const Slots slots{*table};
  const Named named{*table, nodes, trees, nullptr};
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) slots.prefetch(named.key(i + kAhead));
    int64_t& value = table->values[slots.find(named.key(i))];
    if (value == kAbsent) value = -(first + i + 1);
  }
}

// local[e] = the number of the node nodes[e] in the tree of the row drawn_by[e]. Nodes that have none get first,
// first + 1, ... in the order of the edges, and are written to new_nodes and new_trees. Returns how many those are.
extern "C" int64_t gw_table_number(const Table* table, const int64_t* nodes, const int64_t* trees,
                                   const int64_t* drawn_by, int64_t count, int64_t first, int64_t* local,
                                   int64_t* new_nodes, int64_t* new_trees, int32_t threads) {
  const Named named{*table, nodes, trees, drawn_by};
  const int parallel = threads_for(count, threads);
  if (parallel == 1) return number_alone(named, count, first, local, new_nodes, new_trees);
  return number_together(named, count, first, local, new_nodes, new_trees, parallel);
}
