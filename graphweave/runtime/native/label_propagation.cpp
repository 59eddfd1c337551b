// Size-constrained label propagation, and the order of a search in breadth. Graphs are undirected: the neighbours of
// node v stand at indptr[v] to indptr[v + 1], each edge at both of its ends. All work is serial, so that a result is a
// function of the arguments alone.

#include <algorithm>
#include <cstdint>
#include <vector>

struct Undirected {
  const int64_t* indptr;
  const int64_t* neighbours;
  const int64_t* weights;  // of edges, > 0
  const int64_t* sizes;    // of nodes, > 0
  int64_t num_nodes;
};

// Visits the nodes in the given order. Each takes the label to which most of its edges lead, by weight, of the labels
// whose total size stays at most `most` with it; it keeps its own where no other has more. A node whose label is over
// `most` takes the best other one that has room, or the smallest label. No label shrinks below `least`. `totals` holds
// the size of each label, and stays right. Returns how many nodes changed their label.
extern "C" int64_t gw_propagate(const Undirected* g, const int64_t* order, int64_t* labels, int64_t* totals,
                                int64_t num_labels, int64_t most, int64_t least) {
  std::vector<int64_t> strength(num_labels, 0);
  std::vector<int64_t> met;
  int64_t moved = 0;
  for (int64_t i = 0; i < g->num_nodes; ++i) {
    const int64_t v = order[i], own = labels[v], size = g->sizes[v];
    const bool over = totals[own] > most;
    if (!over && totals[own] - size < least) continue;
    met.clear();
    for (int64_t k = g->indptr[v]; k < g->indptr[v + 1]; ++k) {
      const int64_t label = labels[g->neighbours[k]];
      if (strength[label] == 0) met.push_back(label);
      strength[label] += g->weights[k];
    }
    int64_t best = over ? -1 : own;
    for (const int64_t label : met) {
      if (label == own || totals[label] + size > most) continue;
      const int64_t gain = best < 0 ? 1 : strength[label] - strength[best];
      if (gain > 0 || (gain == 0 && best != own && totals[label] < totals[best])) best = label;
    }
    for (const int64_t label : met) strength[label] = 0;
    if (best < 0) {
      best = std::min_element(totals, totals + num_labels) - totals;
      if (totals[best] + size >= totals[own]) best = own;
    }
    if (best == own) continue;
    totals[own] -= size;
    totals[best] += size;
    labels[v] = best;
    ++moved;
  }
  return moved;
}

// Writes the nodes in the order of a search in breadth that begins at the first node of `roots` (a permutation of all
// nodes), and again at the next one not yet found, as often as needed.
extern "C" void gw_breadth_first(const Undirected* g, const int64_t* roots, int64_t* order) {
  std::vector<bool> found(g->num_nodes, false);
  int64_t end = 0, next = 0;
  for (int64_t r = 0; r < g->num_nodes; ++r) {
    if (found[roots[r]]) continue;
    found[roots[r]] = true;
    order[end++] = roots[r];
    for (; next < end; ++next) {
      const int64_t v = order[next];
      for (int64_t k = g->indptr[v]; k < g->indptr[v + 1]; ++k) {
        const int64_t u = g->neighbours[k];
        if (found[u]) continue;
        found[u] = true;
        order[end++] = u;
      }
    }
  }
}

// Visits the nodes in the given order and joins each with one of its neighbours, where neither is joined yet: with the
// one to which its heaviest edge leads. pair[v] is the smaller number of v
// and of the node that v is joined with; v itself for a node that stays alone.
extern "C" void gw_match(const int64_t* indptr, const int64_t* neighbours, const double* weights, const int64_t* order,
                         int64_t num_nodes, int64_t* pair) {
  std::fill_n(pair, num_nodes, int64_t{-1});
  for (int64_t i = 0; i < num_nodes; ++i) {
    const int64_t v = order[i];
    if (pair[v] >= 0) continue;
    int64_t best = -1;
    for (int64_t k = indptr[v]; k < indptr[v + 1]; ++k) {
      const int64_t u = neighbours[k];
      if (u == v || pair[u] >= 0) continue;
      if (best < 0 || weights[k] > weights[best]) best = k;
    }
    const int64_t other = best < 0 ? v : neighbours[best];
    pair[v] = pair[other] = std::min(v, other);
  }
}
