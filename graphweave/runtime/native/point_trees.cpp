// Sets of points as trees of boxes, for exact searches (near_points.cpp, far_points.cpp).
//
// The points of a set stand in blocks of 16, whose coordinates are compared all at once. Over the blocks of a set stands
// a tree of boxes, halved at the median of the widest dim. Squares of distances are sums over the dims in their order,
// each operation rounded once; bounds of boxes are computed by the same operations, which keep the order of numbers. So
// a bound is never above a distance that it stands for, and no search needs a margin.

#include <graphweave/parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

namespace {

// Whether there was memory for what `body` does. Code that is compiled without exceptions ends the process there.
template <class Body>
bool has_memory(const Body& body) {
#if defined(__cpp_exceptions)
  try {
    body();
  } catch (const std::bad_alloc&) {
    return false;
  }
#else
  body();
#endif
  return true;
}

[[noreturn]] inline void end_without_memory() {
#if defined(__cpp_exceptions)
  throw std::bad_alloc();
#else
  std::abort();
#endif
}

constexpr int kLanes = 16;                                      // points of a block
constexpr int64_t kSerial = 1 << 10;                            // below this many points one thread is quicker
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();  // the number of a point that is not there
constexpr double kInfinity = std::numeric_limits<double>::infinity();

int32_t threads_for(int64_t points, int32_t threads) { return points < kSerial ? 1 : std::max<int32_t>(threads, 1); }

// A point and the square of its distance. Of equally near points, that with the lower number is the nearer.
struct Near {
  double square;
  int64_t point;

  bool operator<(const Near& other) const { return rank() < other.rank(); }

private:
  // Bits of numbers that are not negative have the order of the numbers. One comparison takes no branch.
  unsigned __int128 rank() const {
    uint64_t bits;
    std::memcpy(&bits, &square, sizeof bits);
    return static_cast<unsigned __int128>(bits) << 64 | static_cast<uint64_t>(point);
  }
};

// A tree over n blocks has 2 n - 1 nodes: the root, then the nodes over the first (n + 1) / 2 blocks, then the others.
struct Tree {
  int64_t first_block, blocks, points;

  int64_t root() const { return 2 * first_block; }
};

// A node of a tree, with the blocks below it.
struct Node {
  int64_t number, block, blocks;

  bool is_block() const { return blocks == 1; }
  Node left() const { return {number + 1, block, (blocks + 1) / 2}; }
  Node right() const { return {number + 2 * ((blocks + 1) / 2), block + (blocks + 1) / 2, blocks / 2}; }
};

}  // namespace

// Sets of points: those of set s are the rows starts[s] to starts[s + 1] of `coordinates`. No set is empty.
struct PointSets {
  const double* coordinates;  // [points, dims], finite
  const int64_t* starts;      // [sets + 1]
  int64_t sets;
  int64_t dims;
};

namespace {

class Forest {
public:
  int64_t dims = 0;
  std::vector<Tree> trees;
  std::vector<int64_t> numbers;     // [blocks, lanes]: of the points of each block
  std::vector<double> coordinates;  // [blocks, dims, lanes]; infinite where there is no point
  std::vector<double> boxes;        // [nodes, 2, dims]: least and greatest coordinates
  std::vector<int64_t> least;       // [nodes]: the least number of a point
  std::vector<int64_t> tree_of;     // [blocks]
  std::vector<int64_t> node_of;     // [blocks]

  int64_t num_blocks() const { return static_cast<int64_t>(tree_of.size()); }
  Node root(const Tree& tree) const { return {tree.root(), tree.first_block, tree.blocks}; }
  const double* box(int64_t node) const { return boxes.data() + 2 * dims * node; }
  const double* of_block(int64_t block) const { return coordinates.data() + dims * kLanes * block; }
  // The number of points of blocks that follow each other in a tree.
  int64_t points_of(int64_t block, int64_t blocks) const {
    const Tree& tree = trees[tree_of[block]];
    return std::min(blocks * kLanes, tree.points - (block - tree.first_block) * kLanes);
  }

  // May throw std::bad_alloc before any thread starts.
  void build(const PointSets& sets, int32_t threads) {
    dims = sets.dims;
    int64_t blocks = 0;
    for (int64_t s = 0; s < sets.sets; ++s) {
      const int64_t points = sets.starts[s + 1] - sets.starts[s], own = (points + kLanes - 1) / kLanes;
      trees.push_back({blocks, own, points});
      blocks += own;
    }
    numbers.assign(blocks * kLanes, kNone);
    coordinates.assign(blocks * kLanes * dims, kInfinity);
    boxes.resize(2 * blocks * 2 * dims);
    least.resize(2 * blocks);
    node_of.resize(blocks);
    tree_of.resize(blocks);
    std::vector<Keyed> order(sets.starts[sets.sets]);
    std::vector<Part> parts;
    for (int64_t s = 0; s < sets.sets; ++s) {
      std::fill_n(tree_of.begin() + trees[s].first_block, trees[s].blocks, s);
      for (int64_t i = sets.starts[s]; i < sets.starts[s + 1]; ++i) order[i].point = i;
      parts.push_back({root(trees[s]), order.data() + sets.starts[s], order.data() + sets.starts[s + 1]});
    }
    threads = threads_for(sets.starts[sets.sets], threads);
    // Parts are halved side by side until each thread has several whole ones.
    while (threads > 1 && !parts.empty() && static_cast<int64_t>(parts.size()) < 8 * threads) {
      std::vector<Part> halves(2 * parts.size());
      gw_parallel(parts.size(), threads, [&](int64_t i, int32_t) { halve(sets, parts[i], &halves[2 * i]); });
      halves.erase(std::remove_if(halves.begin(), halves.end(), [](const Part& p) { return p.begin == nullptr; }),
                   halves.end());
      parts.swap(halves);
    }
    gw_parallel(parts.size(), threads, [&](int64_t i, int32_t) { halve_to_the_end(sets, parts[i]); });
  }

private:
  struct Keyed {
    double key;
    int64_t point;

    bool operator<(const Keyed& other) const { return key < other.key || (key == other.key && point < other.point); }
  };
  struct Part {
    Node node;
    Keyed *begin, *end;
  };

  void halve_to_the_end(const PointSets& sets, const Part& part) {
    Part halves[2] = {};
    halve(sets, part, halves);
    for (const Part& half : halves)
      if (half.begin != nullptr) halve_to_the_end(sets, half);
  }

  // Writes the box of a node, and what is below it if that is a block. Otherwise gives its halves.
  void halve(const PointSets& sets, const Part& part, Part* halves) {
    const auto row = [&](const Keyed& k) { return sets.coordinates + dims * k.point; };
    double* const low = boxes.data() + 2 * dims * part.node.number;
    double* const high = low + dims;
    std::copy_n(row(*part.begin), dims, low);
    std::copy_n(row(*part.begin), dims, high);
    int64_t lowest = kNone;
    for (const Keyed* k = part.begin; k != part.end; ++k) {
      const double* const at = row(*k);
      for (int64_t d = 0; d < dims; ++d) {
        low[d] = std::min(low[d], at[d]);
        high[d] = std::max(high[d], at[d]);
      }
      lowest = std::min(lowest, k->point);
    }
    least[part.node.number] = lowest;
    if (part.node.is_block()) return fill(sets, part);
    int64_t widest = 0;
    for (int64_t d = 1; d < dims; ++d)
      if (high[d] - low[d] > high[widest] - low[widest]) widest = d;
    for (Keyed* k = part.begin; k != part.end; ++k) k->key = row(*k)[widest];
    Keyed* const middle = part.begin + part.node.left().blocks * kLanes;
    std::nth_element(part.begin, middle, part.end);
    halves[0] = {part.node.left(), part.begin, middle};
    halves[1] = {part.node.right(), middle, part.end};
  }

  void fill(const PointSets& sets, const Part& part) {
    const int64_t block = part.node.block;
    node_of[block] = part.node.number;
    for (int64_t lane = 0; lane < part.end - part.begin; ++lane) {
      const int64_t point = part.begin[lane].point;
      numbers[block * kLanes + lane] = point;
      for (int64_t d = 0; d < dims; ++d)
        coordinates[(block * dims + d) * kLanes + lane] = sets.coordinates[dims * point + d];
    }
  }
};

// Half the lanes of a block, in memory that is aligned as single numbers are.
typedef double Vector __attribute__((vector_size(kLanes / 2 * sizeof(double)), aligned(alignof(double)), may_alias));

// Squares of distances between boxes, and to points. D is the number of dims, 0 if it is known only as `dims`.
template <int D>
struct Metric {
  const int64_t given;

  int64_t dims() const { return D ? D : given; }

  // The least between points of two boxes.
  double apart(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < dims(); ++d) {
      const double gap = std::max(std::max(a[d] - b[dims() + d], b[d] - a[dims() + d]), 0.0);
      sum += gap * gap;
    }
    return sum;
  }
  // The greatest between points of two boxes.
  double span(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < dims(); ++d) {
      const double gap = std::max(a[dims() + d] - b[d], b[dims() + d] - a[d]);
      sum += gap * gap;
    }
    return sum;
  }
  // Between the middles of two boxes, times 4.
  double middles(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < dims(); ++d) {
      const double gap = (a[d] + a[dims() + d]) - (b[d] + b[dims() + d]);
      sum += gap * gap;
    }
    return sum;
  }
  // The least from a point, whose coordinates stand kLanes apart, to a box.
  double to_box(const double* point, const double* box) const {
    double sum = 0;
    for (int64_t d = 0; d < dims(); ++d) {
      const double at = point[d * kLanes];
      const double gap = std::max(std::max(box[d] - at, at - box[dims() + d]), 0.0);
      sum += gap * gap;
    }
    return sum;
  }
  // From a point, whose coordinates stand kLanes apart, to those of a block.
  void to_block(const double* point, const double* block, double* squares) const {
    Vector low{}, high{};
    for (int64_t d = 0; d < dims(); ++d) {
      const Vector* const at = reinterpret_cast<const Vector*>(block + d * kLanes);
      const Vector below = at[0] - point[d * kLanes], above = at[1] - point[d * kLanes];
      low += below * below;
      high += above * above;
    }
    reinterpret_cast<Vector*>(squares)[0] = low;
    reinterpret_cast<Vector*>(squares)[1] = high;
  }
  // Whether it takes less time to compare with a box than with the points of a block.
  bool boxes_are_quicker() const { return dims() <= 6; }
};

template <class Body>
auto with_metric(int64_t dims, const Body& body) {
  if (dims == 2) return body(Metric<2>{dims});
  if (dims == 3) return body(Metric<3>{dims});
  return body(Metric<0>{dims});
}

}  // namespace
