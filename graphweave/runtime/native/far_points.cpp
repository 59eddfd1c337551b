// Points that are far from each other: each next one is the furthest from those that are chosen already.

namespace {

// A point and the square of its distance to the nearest chosen point. -1 once it is chosen itself.
struct Far {
  double square;
  int64_t place;  // block * kLanes + lane
  int64_t point;

  bool further(const Far& other) const {
    return square > other.square || (square == other.square && point < other.point);
  }
};

template <int D>
class Farthest {
public:
  Farthest(const Forest& points, const Tree& tree) : metric_{points.dims}, points_(points), tree_(tree) {
    squares_.assign(tree.blocks * kLanes, kInfinity);
    std::fill(squares_.begin() + tree.points, squares_.end(), -1);
    best_.assign(2 * tree.blocks, {kInfinity, 0, kNone});
  }

  // Chooses the point `start`, then the furthest ones. Of equally far points, the one of the lowest number.
  void choose(int64_t start, int64_t count, int64_t* out) {
    const int64_t* const numbers = points_.numbers.data() + tree_.first_block * kLanes;
    int64_t place = std::find(numbers, numbers + tree_.points, start) - numbers;
    for (int64_t i = 0; i < count; ++i) {
      chosen_ = tree_.first_block * kLanes + place;
      out[i] = points_.numbers[chosen_];
      squares_[place] = -1;
      update(points_.root(tree_));
      place = best_[0].place;
    }
  }

private:
  Far& best(const Node& node) { return best_[node.number - tree_.root()]; }

  // A box that is further from the chosen point than its points are from those before it stays as it is.
  void update(const Node& node) {
    const double* const chosen = points_.of_block(chosen_ / kLanes) + chosen_ % kLanes;
    const int64_t block = chosen_ / kLanes;
    const bool holds = block >= node.block && block < node.block + node.blocks;
    if (!holds && metric_.to_box(chosen, points_.box(node.number)) >= best(node).square) return;
    if (!node.is_block()) {
      update(node.left());
      update(node.right());
      const Far &a = best(node.left()), &b = best(node.right());
      best(node) = a.further(b) ? a : b;
      return;
    }
    const int64_t first = (node.block - tree_.first_block) * kLanes;
    double squares[kLanes];
    metric_.to_block(chosen, points_.of_block(node.block), squares);
    Far found{-2, 0, kNone};
    for (int lane = 0; lane < kLanes; ++lane) {
      squares_[first + lane] = std::min(squares_[first + lane], squares[lane]);
      const Far far{squares_[first + lane], first + lane, points_.numbers[node.block * kLanes + lane]};
      if (far.further(found)) found = far;
    }
    best(node) = found;
  }

  const Metric<D> metric_;
  const Forest& points_;
  const Tree& tree_;
  int64_t chosen_ = 0;           // its place among all blocks
  std::vector<double> squares_;  // by place in the tree
  std::vector<Far> best_;        // by node of the tree
};

template <int D>
void choose_far(Metric<D>, const Forest& points, const Tree& tree, int64_t start, int64_t count, int64_t* out) {
  Farthest<D>(points, tree).choose(start, count, out);
}

}  // namespace

// Chooses offsets[s + 1] - offsets[s] points of each set s, at most as many as it has, the first of them starts[s].
// Writes their numbers, set after set. Returns 0, or 1 without memory.
extern "C" int64_t gw_far_points(const PointSets* sets, const int64_t* starts, const int64_t* offsets, int64_t* out,
                                 int32_t threads) {
  std::atomic<bool> failed{false};
  const bool built = has_memory([&] {
    Forest points;
    points.build(*sets, threads);
    gw_parallel(sets->sets, threads_for(sets->starts[sets->sets], threads), [&](int64_t s, int32_t) {
      const bool chosen = has_memory([&] {
        with_metric(sets->dims, [&](auto metric) {
          choose_far(metric, points, points.trees[s], starts[s], offsets[s + 1] - offsets[s], out + offsets[s]);
        });
      });
      if (!chosen) failed = true;
    });
  });
  return !built || failed;
}
