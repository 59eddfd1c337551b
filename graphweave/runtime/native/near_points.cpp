// The points that are nearest to each query, or within a distance of it, among the points of one set. Queries are taken
// a block of their own trees at a time, which finds the way through the points' tree once for 16 queries.

namespace {

constexpr int64_t kRange = 4;              // blocks of queries that a thread takes at a time
constexpr int64_t kSerialQueries = 256;    // below this many queries (about 0.2 ms) one thread is quicker
constexpr int64_t kFew = 64;               // up to this many numbers, counting sorts faster than comparing
constexpr int64_t kMostOfBlock = 1 << 20;  // numbers that the queries of a block keep at most while pairs are counted

// What is asked of every query.
struct Question {
  int64_t nearest;     // as many points as that, the nearest first; 0 for all that are near enough, by number
  double square;       // the square of the largest distance
  double certain;      // of points further than that, `Doubt` decides; at most `square`
  const int64_t* own;  // by query: a point that is not meant; null for none
};

// Decides about points that are nearly at the largest distance.
struct Doubt {
  virtual bool near(int64_t query, int64_t point) const = 0;

protected:
  ~Doubt() = default;
};

struct Scratch {
  std::vector<Near> nearest;                        // [lanes, room]
  std::vector<std::pair<int64_t, int64_t>> inside;  // blocks of which all points are near enough
  std::vector<int64_t> maybe;                       // blocks of which some may be
  std::vector<int64_t> found;                       // of one query
};

// Sorts at most kFew points. Counts, for each, the points before it: no branch depends on numbers, and eight are counted
// at once.
inline void sort_few(Near* all, int64_t count) {
  constexpr int kGroup = kLanes / 2;
  double squares[kFew];
  int64_t points[kFew], places[kFew];
  for (int64_t i = 0; i < count; ++i) {
    squares[i] = all[i].square;
    points[i] = all[i].point;
  }
  for (int64_t i = count; i % kGroup; ++i) squares[i] = points[i] = 0;
  for (int64_t i = 0; i < count; i += kGroup) {
    int64_t before[kGroup] = {};
    for (int64_t j = 0; j < count; ++j)
      for (int lane = 0; lane < kGroup; ++lane)
        before[lane] +=
            (squares[j] < squares[i + lane]) | ((squares[j] == squares[i + lane]) & (points[j] < points[i + lane]));
    std::copy_n(before, kGroup, places + i);
  }
  for (int64_t i = 0; i < count; ++i) all[places[i]] = {squares[i], points[i]};
}

// The nearest points of the queries of one block.
template <int D>
class NearestOfBlock {
public:
  NearestOfBlock(const Forest& points, const Forest& queries, const Question& question, int64_t block, Scratch& scratch)
      : metric_{points.dims},
        points_(points),
        queries_(queries),
        question_(question),
        block_(block),
        scratch_(scratch),
        box_(queries.box(queries.node_of[block])) {}

  // Calls found(query, points, count) with what was found for each query, sorted.
  template <class Found>
  void search(const Tree& tree, const Found& found) {
    most_ = std::min(question_.nearest, tree.points);
    room_ = most_ + std::max<int64_t>(most_, kLanes) + kLanes;
    if (static_cast<int64_t>(scratch_.nearest.size()) < kLanes * room_) scratch_.nearest.resize(kLanes * room_);
    lanes_ = static_cast<int>(queries_.points_of(block_, 1));
    for (int lane = 0; lane < lanes_; ++lane) bounds_[lane] = {question_.square, kNone};
    bound_ = bounds_[0];
    const Node root = points_.root(tree);
    visit(root, metric_.apart(box_, points_.box(root.number)));
    for (int lane = 0; lane < lanes_; ++lane) {
      sort(lane);
      found(queries_.numbers[block_ * kLanes + lane], of(lane), counts_[lane]);
    }
  }

private:
  // What was found for a query: the nearest points and, until there is no more room, others.
  Near* of(int lane) { return scratch_.nearest.data() + lane * room_; }

  // `square`: that of the distance between the node's box and that of the queries.
  void visit(const Node& node, double square) {
    if (!(Near{square, points_.least[node.number]} < bound_)) return;
    if (node.is_block()) return scan(node);
    const Node left = node.left(), right = node.right();
    const double *const a = points_.box(left.number), *const b = points_.box(right.number);
    const double to_left = metric_.apart(box_, a), to_right = metric_.apart(box_, b);
    bool right_first = to_right < to_left;
    if (to_right == to_left) {
      const Near first{metric_.middles(box_, a), points_.least[left.number]};
      right_first = Near{metric_.middles(box_, b), points_.least[right.number]} < first;
    }
    visit(right_first ? right : left, right_first ? to_right : to_left);
    visit(right_first ? left : right, right_first ? to_left : to_right);
  }

  void scan(const Node& node) {
    const double* const box = points_.box(node.number);
    const double* const block = points_.of_block(node.block);
    const int64_t* const numbers = points_.numbers.data() + node.block * kLanes;
    bool nearer = false;
    for (int lane = 0; lane < lanes_; ++lane) {
      const double* const query = queries_.of_block(block_) + lane;
      const Near bound = bounds_[lane];
      if (metric_.boxes_are_quicker() && !(Near{metric_.to_box(query, box), points_.least[node.number]} < bound))
        continue;
      double squares[kLanes];
      metric_.to_block(query, block, squares);
      const int64_t own = question_.own ? question_.own[queries_.numbers[block_ * kLanes + lane]] : -1;
      Near* const found = of(lane);
      int64_t count = counts_[lane];
      for (int i = 0; i < kLanes; ++i) {
        found[count] = {squares[i], numbers[i]};
        count += (found[count] < bound) & (numbers[i] != own);
      }
      counts_[lane] = count;
      if (count > room_ - kLanes || (count >= most_ && bound.point == kNone)) {
        select(lane);
        nearer = true;
      }
    }
    if (nearer) bound_ = *std::max_element(bounds_, bounds_ + lanes_);
  }

  // Leaves the nearest of what was found for a query, which is at least as many points as asked for.
  void select(int lane) {
    if (counts_[lane] <= kFew)
      sort_few(of(lane), counts_[lane]);
    else
      std::nth_element(of(lane), of(lane) + most_ - 1, of(lane) + counts_[lane]);
    counts_[lane] = most_;
    bounds_[lane] = of(lane)[most_ - 1];
  }

  // Leaves the nearest, sorted.
  void sort(int lane) {
    if (counts_[lane] > most_) select(lane);
    if (counts_[lane] <= kFew)
      sort_few(of(lane), counts_[lane]);
    else
      std::sort(of(lane), of(lane) + counts_[lane]);
  }

  const Metric<D> metric_;
  const Forest &points_, &queries_;
  const Question& question_;
  const int64_t block_;
  Scratch& scratch_;
  const double* const box_;
  int64_t most_ = 0, room_ = 0;
  int lanes_ = 0;
  int64_t counts_[kLanes] = {};
  Near bounds_[kLanes];  // a point must be nearer
  Near bound_{};         // the furthest of `bounds_`
};

// All points within the distance of the queries of one block.
template <int D>
class WithinOfBlock {
public:
  WithinOfBlock(const Forest& points, const Forest& queries, const Question& question, const Doubt* doubt,
                int64_t block, Scratch& scratch)
      : metric_{points.dims},
        points_(points),
        queries_(queries),
        question_(question),
        doubt_(doubt),
        block_(block),
        scratch_(scratch),
        box_(queries.box(queries.node_of[block])) {}

  // Adds what is found to `out`, query after query, and writes the counts of each. If `out` is null it only counts, and
  // so it does if more than `most` numbers could be added. Whether it has added them.
  bool search(const Tree& tree, std::vector<int64_t>* out, int64_t most, int64_t* counts) {
    scratch_.inside.clear();
    scratch_.maybe.clear();
    gather(points_.root(tree));
    const int lanes = static_cast<int>(queries_.points_of(block_, 1));
    if (lanes * gathered() > most) out = nullptr;
    for (int lane = 0; lane < lanes; ++lane) {
      const int64_t query = queries_.numbers[block_ * kLanes + lane];
      const int64_t own = question_.own ? question_.own[query] : kNone;
      if (out == nullptr && doubt_ == nullptr) {
        counts[query] = counted(lane) - (question_.own != nullptr);  // a point is near itself
        continue;
      }
      int64_t* const begin = found();
      int64_t* end = collect(lane, begin);
      const auto not_meant = [&](int64_t& point) {
        if (point < 0) point = doubt_->near(query, ~point) ? ~point : own;
        return point == own;
      };
      if (question_.own) end = std::remove_if(begin, end, not_meant);
      std::sort(begin, end);
      counts[query] = end - begin;
      if (out) out->insert(out->end(), begin, end);
    }
    return out != nullptr;
  }

private:
  // Room for all that one query may find.
  int64_t* found() {
    const size_t room = gathered() + kLanes;
    if (scratch_.found.size() < room) scratch_.found.resize(room);
    return scratch_.found.data();
  }

  int64_t gathered() const {
    int64_t count = static_cast<int64_t>(scratch_.maybe.size()) * kLanes;
    for (const auto& [block, blocks] : scratch_.inside) count += points_.points_of(block, blocks);
    return count;
  }

  void gather(const Node& node) {
    const double* const box = points_.box(node.number);
    if (metric_.apart(box_, box) > question_.square) return;
    if (metric_.span(box_, box) <= question_.certain)
      scratch_.inside.emplace_back(node.block, node.blocks);
    else if (node.is_block())
      scratch_.maybe.push_back(node.block);
    else {
      gather(node.left());
      gather(node.right());
    }
  }

  bool reaches(const double* query, int64_t block) const {
    return !metric_.boxes_are_quicker() ||
           metric_.to_box(query, points_.box(points_.node_of[block])) <= question_.square;
  }

  int64_t counted(int lane) const {
    const double* const query = queries_.of_block(block_) + lane;
    int64_t count = 0;
    for (const auto& [block, blocks] : scratch_.inside) count += points_.points_of(block, blocks);
    for (const int64_t block : scratch_.maybe) {
      if (!reaches(query, block)) continue;
      double squares[kLanes];
      metric_.to_block(query, points_.of_block(block), squares);
      for (int i = 0; i < kLanes; ++i) count += squares[i] <= question_.square;
    }
    return count;
  }

  // Writes the numbers of points, ~number for one that is in doubt. Returns their end.
  int64_t* collect(int lane, int64_t* out) const {
    const double* const query = queries_.of_block(block_) + lane;
    for (const auto& [block, blocks] : scratch_.inside)
      out = std::copy_n(points_.numbers.data() + block * kLanes, points_.points_of(block, blocks), out);
    for (const int64_t block : scratch_.maybe) {
      if (!reaches(query, block)) continue;
      double squares[kLanes];
      metric_.to_block(query, points_.of_block(block), squares);
      const int64_t* const numbers = points_.numbers.data() + block * kLanes;
      for (int i = 0; i < kLanes; ++i) {
        *out = squares[i] <= question_.certain ? numbers[i] : ~numbers[i];
        out += squares[i] <= question_.square;
      }
    }
    return out;
  }

  const Metric<D> metric_;
  const Forest &points_, &queries_;
  const Question& question_;
  const Doubt* const doubt_;
  const int64_t block_;
  Scratch& scratch_;
  const double* const box_;
};

// A search in two steps: it counts, then it writes where the caller has room for what was counted.
class Search {
public:
  Forest points, own_queries;
  const Forest* queries = &points;  // or &own_queries
  std::vector<int64_t> tree_of;     // by tree of queries: the tree of its points; -1 if it has none
  Question question{};
  const Doubt* doubt = nullptr;
  std::vector<int64_t> offsets;  // [queries + 1]

  // The number of pairs, -1 if 64 bits do not hold it. About `most` numbers are kept; what is beyond is found again when
  // it is written. Throws std::bad_alloc.
  int64_t count(int64_t num_queries, int64_t most, int32_t threads) {
    offsets.assign(num_queries + 1, 0);
    const int64_t ranges = (queries->num_blocks() + kRange - 1) / kRange;
    found_.resize(ranges);
    kept_.assign(ranges, 0);
    std::atomic<int64_t> kept{0};
    each_range(threads, [&](int64_t range, Scratch& scratch) {
      std::vector<int64_t>& found = found_[range];
      const bool keep = kept.load(std::memory_order_relaxed) < most;
      kept_[range] = run(range, keep ? &found : nullptr, kMostOfBlock, scratch, offsets.data() + 1);
      if (kept_[range])
        kept.fetch_add(static_cast<int64_t>(found.size()), std::memory_order_relaxed);
      else
        std::vector<int64_t>().swap(found);
    });
    for (int64_t i = 0; i < num_queries; ++i)
      if (__builtin_add_overflow(offsets[i + 1], offsets[i], offsets.data() + i + 1)) return -1;
    return offsets[num_queries];
  }

  // Calls write(query, first, points, count) with what was found for each query, and its first place among the pairs.
  template <class Write>
  void each_query(int32_t threads, const Write& write) {
    std::vector<int64_t> counts(offsets.size());
    each_range(threads, [&](int64_t range, Scratch& scratch) {
      if (!kept_[range]) run(range, &found_[range], kNone, scratch, counts.data());
      const int64_t* found = found_[range].data();
      each_lane(range, [&](int64_t query) {
        const int64_t count = offsets[query + 1] - offsets[query];
        write(query, offsets[query], found, count);
        found += count;
      });
      std::vector<int64_t>().swap(found_[range]);
    });
  }

private:
  template <class Body>
  void each_range(int32_t threads, const Body& body) {
    if (static_cast<int64_t>(offsets.size()) <= kSerialQueries) threads = 1;
    std::vector<Scratch> scratch(threads);
    std::atomic<bool> failed{false};
    gw_parallel(static_cast<int64_t>(found_.size()), threads, [&](int64_t range, int32_t thread) {
      if (!has_memory([&] { body(range, scratch[thread]); })) failed = true;
    });
    if (failed) end_without_memory();
  }

  template <class Body>
  void each_block(int64_t range, const Body& body) const {
    const int64_t end = std::min((range + 1) * kRange, queries->num_blocks());
    for (int64_t block = range * kRange; block < end; ++block)
      if (tree_of[queries->tree_of[block]] >= 0) body(block);
  }

  template <class Body>
  void each_lane(int64_t range, const Body& body) const {
    each_block(range, [&](int64_t block) {
      const int64_t* const numbers = queries->numbers.data() + block * kLanes;
      for (int64_t lane = 0; lane < queries->points_of(block, 1); ++lane) body(numbers[lane]);
    });
  }

  // Finds the points of the queries of a range, in the order of `each_lane`, and their counts. Only counts if `out` is
  // null, or if a block would add more than `most` numbers. Whether all numbers were added.
  bool run(int64_t range, std::vector<int64_t>* out, int64_t most, Scratch& scratch, int64_t* counts) const {
    with_metric(points.dims, [&](auto metric) {
      each_block(range, [&](int64_t block) {
        const Tree& tree = points.trees[tree_of[queries->tree_of[block]]];
        if (question.nearest == 0) {
          if (!within(metric, block, scratch).search(tree, out, most, counts)) out = nullptr;
          return;
        }
        nearest(metric, block, scratch).search(tree, [&](int64_t query, const Near* found, int64_t count) {
          counts[query] = count;
          for (int64_t i = 0; out && i < count; ++i) out->push_back(found[i].point);
        });
      });
    });
    return out != nullptr;
  }
  template <int D>
  WithinOfBlock<D> within(Metric<D>, int64_t block, Scratch& scratch) const {
    return {points, *queries, question, doubt, block, scratch};
  }
  template <int D>
  NearestOfBlock<D> nearest(Metric<D>, int64_t block, Scratch& scratch) const {
    return {points, *queries, question, block, scratch};
  }

  std::vector<std::vector<int64_t>> found_;  // by range of blocks of queries
  std::vector<char> kept_;                   // whether a range keeps what it has found
};

}  // namespace

// A search, with the numbers 0, 1, ... of the queries for `Question::own`.
struct NearPoints {
  Search search;
  std::vector<int64_t> own;
};

// Counts the pairs of a query and a point that is near it. `queries` is null if the points are the queries.
//
//   set_of    [sets of queries] the set of points of each set of queries; -1 for none
//   nearest   the number of points of a query, the nearest first; 0 for all, by their numbers
//   square    the square of the largest distance
//   others    whether a point is not near itself
//   most      about how many numbers are kept while pairs are counted; what is beyond is found again when it is written
//
// Writes the number of pairs, -1 if 64 bits do not hold it. Returns null without memory.
extern "C" NearPoints* gw_near_new(const PointSets* points, const PointSets* queries, const int64_t* set_of,
                                   int64_t nearest, double square, int32_t others, int64_t most, int32_t threads,
                                   int64_t* pairs) {
  std::unique_ptr<NearPoints> made;
  const bool counted = has_memory([&] {
    made = std::make_unique<NearPoints>();
    Search& search = made->search;
    search.points.build(*points, threads);
    if (queries) {
      search.own_queries.build(*queries, threads);
      search.queries = &search.own_queries;
    }
    const PointSets& asked = queries ? *queries : *points;
    for (int64_t s = 0; s < asked.sets; ++s) search.tree_of.push_back(queries ? set_of[s] : s);
    const int64_t count = asked.starts[asked.sets];
    for (int64_t i = 0; others && i < count; ++i) made->own.push_back(i);
    search.question = {nearest, square, square, others ? made->own.data() : nullptr};
    *pairs = search.count(count, most, threads);
  });
  return counted ? made.release() : nullptr;
}

// Writes the pairs: queries to out[0..pairs], points behind them. Returns 0, or 1 without memory.
extern "C" int64_t gw_near_take(NearPoints* near, int64_t* out, int32_t threads) {
  const int64_t pairs = near->search.offsets.back();
  return !has_memory([&] {
    near->search.each_query(threads, [&](int64_t query, int64_t first, const int64_t* points, int64_t count) {
      std::fill_n(out + first, count, query);
      std::copy_n(points, count, out + pairs + first);
    });
  });
}

extern "C" void gw_near_free(NearPoints* near) { delete near; }
