// A greedy matching: edges that have no end in common, chosen in a given order.

#include <cstdint>

// chosen[p] = whether the edge order[p], from node src[e] to node dst[e], has no end that is an end of an edge chosen
// before. `used`, zeros for `num_nodes` nodes, marks those ends. Returns 0, or -1 if an end is not among the nodes.
extern "C" int32_t gw_match_edges(const int64_t* src, const int64_t* dst, const int64_t* order, uint8_t* used,
                                  uint8_t* chosen, int64_t num_edges, int64_t num_nodes) {
  const uint64_t nodes = static_cast<uint64_t>(num_nodes);
  for (int64_t p = 0; p < num_edges; ++p) {
    const int64_t e = order[p];
    const uint64_t a = static_cast<uint64_t>(src[e]), b = static_cast<uint64_t>(dst[e]);
    if (a >= nodes || b >= nodes) return -1;
    chosen[p] = !used[a] && !used[b];
    if (chosen[p]) used[a] = used[b] = 1;
  }
  return 0;
}
