// Pairs of points within a cutoff where space repeats itself: each pair of points i and j, with how many cells j is
// shifted. The images of points that can lie within the cutoff of their system are the points of a search.

// Systems of points in cells. Rows of `cells` along which a system does not repeat are 0.
struct Periodic {
  PointSets systems;
  const double* cells;     // [systems, dims, dims]
  const double* inverses;  // [systems, dims, dims]: of the row of a point gives its place in units of the cell's rows
};

namespace {

constexpr double kWhole = 9007199254740992.0;  // numbers of cells are whole numbers of float64 below it

// The square of the distance from i to j, shifted by whole cells. Its operations only change sign with the pair's
// order, so that both orders are equally far.
double shifted_square(const double* i, const double* j, const double* shift, const double* cell, int64_t dims) {
  double square = 0;
  for (int64_t k = 0; k < dims; ++k) {
    double moved = 0;
    for (int64_t d = 0; d < dims; ++d) moved += shift[d] * cell[d * dims + k];
    const double gap = (j[k] - i[k]) + moved;
    square += gap * gap;
  }
  return square;
}

class Images : public Doubt {
public:
  // `cutoff` > 0. Throws std::bad_alloc. False if cells must be counted beyond what numbers hold.
  bool make(const Periodic& given, double cutoff, int32_t threads) {
    given_ = given;
    cutoff_ = cutoff;
    dims_ = given.systems.dims;
    const int64_t atoms = given.systems.starts[given.systems.sets];
    threads_ = threads_for(atoms, threads);
    system_.resize(atoms);
    for (int64_t s = 0; s < given.systems.sets; ++s)
      std::fill(system_.begin() + given.systems.starts[s], system_.begin() + given.systems.starts[s + 1], s);
    return wrap(atoms) && reach() && place(atoms);
  }

  // The greatest error of a distance between images: of a wrapped point, its coordinates and its cells are rounded.
  double margin() const { return 1e-13 * static_cast<double>(dims_) * largest_; }
  PointSets wrapped() const { return {wrapped_.data(), given_.systems.starts, given_.systems.sets, dims_}; }
  PointSets images() const { return {images_.data(), starts_.data(), given_.systems.sets, dims_}; }
  const int64_t* own() const { return own_.data(); }

  bool near(int64_t query, int64_t image) const override {
    std::vector<double>& shift = shift_of_thread();
    const int64_t atom = shifted(query, image, shift.data());
    const double* const at = given_.systems.coordinates;
    const double* const cell = given_.cells + dims_ * dims_ * system_[query];
    return shifted_square(at + dims_ * query, at + dims_ * atom, shift.data(), cell, dims_) <= cutoff_ * cutoff_;
  }

  // The point that an image is of, and by how many cells it is shifted against the query.
  int64_t shifted(int64_t query, int64_t image, double* shift) const {
    const int64_t atom = atoms_[image];
    for (int64_t d = 0; d < dims_; ++d)
      shift[d] = (shifts_[dims_ * image + d] - cells_of_[dims_ * atom + d]) + cells_of_[dims_ * query + d];
    return atom;
  }

private:
  std::vector<double>& shift_of_thread() const {
    static thread_local std::vector<double> shift;
    shift.resize(dims_);
    return shift;
  }

  template <class Body>
  void each_atom(int64_t atoms, const Body& body) const {
    gw_parallel_ranges(atoms, 1 << 10, threads_, [&](int64_t from, int64_t to, int32_t) {
      for (int64_t i = from; i < to; ++i) body(i);
    });
  }

  // Moves every point into its cell. False if a point is too many cells away.
  bool wrap(int64_t atoms) {
    places_.resize(atoms * dims_);
    cells_of_.resize(atoms * dims_);
    wrapped_.resize(atoms * dims_);
    std::vector<double> sizes(atoms);
    each_atom(atoms, [&](int64_t i) {
      const double* const at = given_.systems.coordinates + dims_ * i;
      const double* const cell = given_.cells + dims_ * dims_ * system_[i];
      const double* const inverse = given_.inverses + dims_ * dims_ * system_[i];
      for (int64_t k = 0; k < dims_; ++k) {
        wrapped_[dims_ * i + k] = at[k];
        sizes[i] += std::abs(at[k]);
      }
      for (int64_t d = 0; d < dims_; ++d) {
        double place = 0;
        for (int64_t k = 0; k < dims_; ++k) place += at[k] * inverse[k * dims_ + d];
        const double whole = std::floor(place);
        cells_of_[dims_ * i + d] = whole;
        places_[dims_ * i + d] = place - whole;
        for (int64_t k = 0; k < dims_; ++k) {
          wrapped_[dims_ * i + k] -= whole * cell[d * dims_ + k];
          sizes[i] += std::abs(whole * cell[d * dims_ + k]);
        }
        if (!(std::abs(whole) < kWhole)) sizes[i] = kInfinity;
      }
    });
    largest_ = cutoff_;
    for (const double size : sizes) largest_ = std::max(largest_, size);
    return largest_ < kInfinity;
  }

  // Between which places images of each system must lie: within the cutoff of its points.
  bool reach() {
    const int64_t systems = given_.systems.sets;
    low_.assign(systems * dims_, 0);
    high_.assign(systems * dims_, 0);
    for (int64_t s = 0; s < systems; ++s)
      for (int64_t d = 0; d < dims_; ++d) {
        double low = kInfinity, high = -kInfinity, square = 0, length = 0;
        for (int64_t i = given_.systems.starts[s]; i < given_.systems.starts[s + 1]; ++i) {
          low = std::min(low, places_[dims_ * i + d]);
          high = std::max(high, places_[dims_ * i + d]);
        }
        for (int64_t k = 0; k < dims_; ++k) {
          const double column = given_.inverses[(s * dims_ + k) * dims_ + d];
          square += column * column;
          length += std::abs(given_.cells[(s * dims_ + d) * dims_ + k]);
        }
        const double reach = cutoff_ * std::sqrt(square) * (1 + 1e-9) + (square > 0) * 1e-9;
        low_[s * dims_ + d] = low - reach;
        high_[s * dims_ + d] = high + reach;
        if (!(reach < kWhole)) return false;
        largest_ = std::max(largest_, cutoff_ + (reach + 2) * length * static_cast<double>(dims_));
      }
    return largest_ < kInfinity;
  }

  // The cells by which a point may be shifted along dim d: from the first to the second.
  std::pair<double, double> cells(int64_t atom, int64_t d) const {
    const int64_t at = system_[atom] * dims_ + d;
    const double place = places_[dims_ * atom + d];
    return {std::ceil(low_[at] - place), std::floor(high_[at] - place)};
  }

  // Writes the images of all points. False if there are too many to be counted.
  bool place(int64_t atoms) {
    std::vector<int64_t> first(atoms + 1, 0);
    std::atomic<bool> fits{true};
    each_atom(atoms, [&](int64_t i) {
      int64_t count = 1;
      for (int64_t d = 0; d < dims_; ++d) {
        const auto [from, to] = cells(i, d);
        if (__builtin_mul_overflow(count, static_cast<int64_t>(to - from) + 1, &count)) fits = false;
      }
      first[i + 1] = count;
    });
    int64_t bytes = 0;
    for (int64_t i = 0; i < atoms; ++i)
      if (__builtin_add_overflow(first[i + 1], first[i], &first[i + 1])) fits = false;
    if (!fits || __builtin_mul_overflow(first[atoms], 8 * dims_, &bytes)) return false;
    atoms_.resize(first[atoms]);
    own_.resize(atoms);
    shifts_.resize(first[atoms] * dims_);
    images_.resize(first[atoms] * dims_);
    each_atom(atoms, [&](int64_t i) { place_images_of(i, first[i], first[i + 1]); });
    for (int64_t s = 0; s <= given_.systems.sets; ++s) starts_.push_back(first[given_.systems.starts[s]]);
    return true;
  }

  // Images of a point stand in the order of their shifts.
  void place_images_of(int64_t atom, int64_t first, int64_t end) {
    const double* const cell = given_.cells + dims_ * dims_ * system_[atom];
    for (int64_t image = first; image < end; ++image) {
      atoms_[image] = atom;
      double* const shift = shifts_.data() + dims_ * image;
      double* const at = images_.data() + dims_ * image;
      bool none = true;
      int64_t rest = image - first;
      std::copy_n(wrapped_.data() + dims_ * atom, dims_, at);
      for (int64_t d = dims_ - 1; d >= 0; --d) {
        const auto [from, to] = cells(atom, d);
        const int64_t count = static_cast<int64_t>(to - from) + 1;
        shift[d] = from + static_cast<double>(rest % count);
        rest /= count;
        none &= shift[d] == 0;
        for (int64_t k = 0; k < dims_; ++k) at[k] += shift[d] * cell[d * dims_ + k];
      }
      if (none) own_[atom] = image;
    }
  }

  Periodic given_{};
  double cutoff_ = 0, largest_ = 0;
  int64_t dims_ = 0;
  int32_t threads_ = 1;
  std::vector<int64_t> system_;     // [points]
  std::vector<double> places_;      // [points, dims]: in its cell, from 0 to 1
  std::vector<double> cells_of_;    // [points, dims]: the cells that a point is away from the first
  std::vector<double> wrapped_;     // [points, dims]: coordinates in the first cell
  std::vector<double> low_, high_;  // [systems, dims]
  std::vector<int64_t> atoms_;      // [images]
  std::vector<double> shifts_;      // [images, dims]
  std::vector<double> images_;      // [images, dims]: coordinates
  std::vector<int64_t> starts_;     // [systems + 1]
  std::vector<int64_t> own_;        // [points]: the image that is the point itself
};

}  // namespace

struct Neighbours {
  Images images;
  Search search;
};

// Counts the pairs of points of a system that are at most `cutoff` apart, each in both orders. Writes their number; -1
// if it, or the number of cells, is beyond what is counted. `most` is that of `gw_near_new`. Returns null without memory.
extern "C" Neighbours* gw_neighbours_new(const Periodic* given, double cutoff, int64_t most, int32_t threads,
                                         int64_t* pairs) {
  std::unique_ptr<Neighbours> made;
  const bool counted = has_memory([&] {
    made = std::make_unique<Neighbours>();
    Search& search = made->search;
    *pairs = -1;
    if (!made->images.make(*given, cutoff, threads)) return;
    search.points.build(made->images.images(), threads);
    search.own_queries.build(made->images.wrapped(), threads);
    search.queries = &search.own_queries;
    for (int64_t s = 0; s < given->systems.sets; ++s) search.tree_of.push_back(s);
    const double margin = made->images.margin(), widest = cutoff + margin, certain = std::max(cutoff - margin, 0.0);
    search.question = {0, widest * widest, certain * certain, made->images.own()};
    search.doubt = &made->images;
    *pairs = search.count(given->systems.starts[given->systems.sets], most, threads);
  });
  return counted ? made.release() : nullptr;
}

// Writes pairs [2, count] and shifts [count, dims]. Returns 0, or 1 without memory.
extern "C" int64_t gw_neighbours_take(Neighbours* found, int64_t* pairs, double* shifts, int32_t threads) {
  const int64_t total = found->search.offsets.back(), dims = found->search.points.dims;
  return !has_memory([&] {
    found->search.each_query(threads, [&](int64_t query, int64_t first, const int64_t* images, int64_t count) {
      std::fill_n(pairs + first, count, query);
      for (int64_t i = 0; i < count; ++i)
        pairs[total + first + i] = found->images.shifted(query, images[i], shifts + dims * (first + i));
    });
  });
}

extern "C" void gw_neighbours_free(Neighbours* found) { delete found; }

// Keeps those of `count` candidates [2, count], shifted [count, dims], that are at most `cutoff` apart. Candidates are
// taken in ranges of `size`; `offsets` [ranges + 1] is where each range writes. With null `pairs` and `out` it writes the
// counts to offsets[1..] instead. `system_of` [points]: the system of each point.
extern "C" void gw_neighbours_within(const Periodic* given, const int64_t* system_of, double cutoff,
                                     const int64_t* candidates, const double* shifts, int64_t count, int64_t size,
                                     int64_t* offsets, int64_t* pairs, double* out, int32_t threads) {
  const int64_t dims = given->systems.dims;
  const double* const at = given->systems.coordinates;
  const int64_t total = pairs ? offsets[(count + size - 1) / size] : 0;
  gw_parallel_ranges(count, size, threads_for(count, threads), [&](int64_t from, int64_t to, int32_t) {
    int64_t place = pairs ? offsets[from / size] : 0;
    for (int64_t e = from; e < to; ++e) {
      const int64_t i = candidates[e], j = candidates[count + e];
      const double* const cell = given->cells + dims * dims * system_of[i];
      if (!(shifted_square(at + dims * i, at + dims * j, shifts + dims * e, cell, dims) <= cutoff * cutoff)) continue;
      if (pairs) {
        pairs[place] = i;
        pairs[total + place] = j;
        std::copy_n(shifts + dims * e, dims, out + dims * place);
      }
      ++place;
    }
    if (!pairs) offsets[from / size + 1] = place;
  });
}
