// Linear deterministic greedy partitioning of a stream of nodes (Stanton and Kliot, "Streaming Graph Partitioning for
// Large Distributed Graphs", 2012, section 4). All work is serial, so that a result is a function of the arguments
// alone.

#include <graphweave/draws.h>

#include <cstdint>
#include <vector>

// The nodes first .. first + count - 1 of the stream, with the nodes joined to each: those of node first + i stand at
// indptr[i] to indptr[i + 1] of `neighbours`. `weights` are those of the count nodes, > 0.
struct StreamedNodes {
  const int64_t* indptr;
  const int64_t* neighbours;
  const int64_t* weights;
  int64_t first, count;
};

namespace {

struct Candidate {
  int64_t part = -1, joined = 0, load = 0;
};

// Whether `a` is better than `b`: joined * (capacity - load), then the smaller load, then the number drawn for the node.
// The products are exact.
bool better(const Candidate& a, const Candidate& b, int64_t capacity, int64_t key) {
  if (b.part < 0) return true;
  const auto left = (__int128)a.joined * (capacity - a.load), right = (__int128)b.joined * (capacity - b.load);
  if (left != right) return left > right;
  if (a.load != b.load) return a.load < b.load;
  return gw_folded(key, a.part) < gw_folded(key, b.part);
}

}  // namespace

// Gives each node of the stream, in turn, the part to which most of its edges lead, weighted by the part's free share
// 1 - load / capacity, of the parts that have room for it; the part of the smallest load if none has. `parts` holds -1
// for the nodes not yet placed, and `loads` [num_parts] the weight of each part; both are updated. `seed` decides ties.
extern "C" void gw_place_stream(const StreamedNodes* stream, int32_t* parts, int64_t* loads, int64_t num_parts,
                                int64_t capacity, int64_t seed) {
  std::vector<int64_t> joined(num_parts, 0);
  std::vector<int64_t> met;
  for (int64_t i = 0; i < stream->count; ++i) {
    const int64_t v = stream->first + i, weight = stream->weights[i], key = gw_folded(seed, v);
    met.clear();
    for (int64_t k = stream->indptr[i]; k < stream->indptr[i + 1]; ++k) {
      const int32_t part = parts[stream->neighbours[k]];
      if (part < 0) continue;
      if (joined[part]++ == 0) met.push_back(part);
    }
    Candidate best;
    for (const int64_t part : met) {
      const Candidate one{part, joined[part], loads[part]};
      if (one.load + weight <= capacity && better(one, best, capacity, key)) best = one;
      joined[part] = 0;
    }
    if (best.part < 0)
      for (int64_t part = 0; part < num_parts; ++part) {
        const Candidate one{part, 0, loads[part]};
        if (better(one, best, capacity, key)) best = one;
      }
    parts[v] = (int32_t)best.part;
    loads[best.part] += weight;
  }
}
