// Kernels that follow one another without a call of PyTorch, as one call: on a graph that is seen for the first time as
// well as on a known one.
//
// This text follows those of formats.cpp and records.cpp. A segment is made once from numbers (`Reader` below). A call
// gives the row counts, the index tensors and the values. It finds the records of the indices, makes the formats that
// are missing, computes limits on rows, divides rows into chunks, and runs the kernels. All that depends on the graph
// alone is kept for the last one (`Bound`).

namespace {

typedef int32_t Kernel(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                       int32_t num_threads);

// What a call returns. `Failure` says more.
enum Status : int64_t {
  kDone = 0,
  kMissing = 1,   // an index has no record: the caller makes those of all indices, and calls again
  kNotRow = 2,    // a value of an index names no row
  kNoRoom = 3,    // no memory for a format, or for a kernel
  kWritten = 4,   // somebody wrote to an index while it was read
  kUnequal = 5,   // indices of the same edges have different lengths
  kNoIndex = 6,   // a tensor is no index
  kGaps = 7,      // a value is not contiguous: the caller copies it, and calls again
  kOneByOne = 8,  // the caller runs kernel after kernel: rows are so long, or so many, that they need more than this
};

struct Failure {
  int64_t at;        // the map, value or kernel, by number
  int64_t position;  // in the index
  int64_t builds, hits;
  int64_t grown;  // whether formats were made of a record that others find
};

struct Chunking {
  int64_t row, chunk, tile;  // `Work` in runtime/launch.py
};

struct Pointer {
  enum Kind : int64_t { value, inside, indptr, perm, column, flat, fixed } kind;
  int64_t a, b;
  void* address;
};

struct Zero {  // rows of a value that are set to zero, up to a limit
  Pointer to;
  int64_t nbytes;  // of a row
  int64_t upto;
};

struct Step {
  Kernel* kernel;
  int64_t walked;                              // map, or -1
  std::vector<std::pair<int64_t, bool>> maps;  // and whether they are indices of the walked edges
  std::vector<int64_t> spaces, over;           // sizes; what totals are taken over: -1 for edges, else a space
  Chunking chunking;
  int64_t divided_from;        // rows of more edges may be divided; -1: never
  int64_t rows, edges, below;  // limits; the map of `edges`; -1: none
  std::vector<Zero> zeros;
  std::vector<Pointer> pointers;
};

struct Limit {
  enum Kind : int64_t { rows, most, least, reach } kind;
  std::vector<int64_t> of;
};

struct Turn {
  int64_t itemsize, rows, columns, from, to;
};

struct BoundStep {
  std::vector<Pointer> pointers;
  std::vector<int64_t> sizes, own_chunks;
  const int64_t* chunks;
  int64_t num_chunks;
  int64_t rows, edges;  // that are computed and walked
  struct Range {
    Pointer to;
    int64_t begin, nbytes;
  };
  std::vector<Range> zeros;
};

struct Bound {
  std::vector<int64_t> rows, inside;  // inside: where each place begins
  int64_t nbytes = 0;
  uint64_t edits = 0;
  std::vector<RecordRef> records;
  std::vector<BoundStep> steps;
  std::vector<Array> arrays;
  std::vector<std::shared_ptr<Csr>> csrs;
  std::vector<RecordRef> subsets;
};

constexpr int64_t kSmall = 1 << 14;              // edges; formats of fewer are made faster than a record is kept
constexpr size_t kOnce = 32, kSubsets = 16;      // of a record
constexpr int64_t kAlignment = 64, kShare = 64;  // kShare as in long_rows.py
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

struct Segment {
  std::vector<std::pair<int64_t, bool>> maps;  // the space that each leads to, and whether values wrap
  int64_t num_spaces = 0, num_reads = 0, num_writes = 0;
  int64_t most_edges = 0;  // of a row of a kernel whose rows have a limit
  std::vector<Limit> limits;
  std::vector<Turn> turns;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> inside;  // of each place, the values: bytes of a row, space
  std::vector<Step> steps;
  std::shared_ptr<Bound> last;
  std::array<uint64_t, kOnce> once{};  // hashes of the values of small indices, the latest ones
  size_t next_once = 0;
};

// Reads the numbers of which a segment is made, in the order of `make_segment`.
struct Reader {
  const int64_t* at;
  int64_t next() { return *at++; }
  template <typename Body>
  void each(Body body) {
    for (int64_t n = next(); n > 0; --n) body();
  }
  std::vector<int64_t> list() {
    std::vector<int64_t> out;
    each([&] { out.push_back(next()); });
    return out;
  }
  Pointer pointer() {
    const auto kind = static_cast<Pointer::Kind>(next());
    const int64_t a = next();
    return Pointer{kind, a, next(), nullptr};
  }
};

Step make_step(Reader& from) {
  Step step;
  step.kernel = reinterpret_cast<Kernel*>(from.next());
  step.walked = from.next();
  from.each([&] {
    const int64_t map = from.next();
    step.maps.emplace_back(map, from.next() != 0);
  });
  step.spaces = from.list();
  step.over = from.list();
  step.chunking.row = from.next(), step.chunking.chunk = from.next(), step.chunking.tile = from.next();
  step.divided_from = from.next();
  step.rows = from.next(), step.edges = from.next(), step.below = from.next();
  from.each([&] {
    const Pointer to = from.pointer();
    const int64_t nbytes = from.next();
    step.zeros.push_back(Zero{to, nbytes, from.next()});
  });
  from.each([&] { step.pointers.push_back(from.pointer()); });
  return step;
}

Segment* make_segment(Reader from) {
  auto* const made = new Segment;
  made->num_spaces = from.next(), made->num_reads = from.next(), made->num_writes = from.next();
  made->most_edges = from.next();
  from.each([&] {
    const int64_t space = from.next();
    made->maps.emplace_back(space, from.next() != 0);
  });
  from.each([&] {
    const auto kind = static_cast<Limit::Kind>(from.next());
    made->limits.push_back(Limit{kind, from.list()});
  });
  from.each([&] {
    const int64_t itemsize = from.next(), rows = from.next(), columns = from.next(), value = from.next();
    made->turns.push_back(Turn{itemsize, rows, columns, value, from.next()});
  });
  from.each([&] {
    auto& place = made->inside.emplace_back();
    from.each([&] {
      const int64_t nbytes = from.next();
      place.emplace_back(nbytes, from.next());
    });
  });
  from.each([&] { made->steps.push_back(make_step(from)); });
  return made;
}

int64_t rows_of(const int64_t* rows, int64_t space) { return space < 0 ? 1 : rows[space]; }

// ---------------------------------------------------------------- subsets of edges

// Drops the oldest of many, since limits may be others in each call. The caller holds the lock.
template <typename T, typename Dropped>
void keep_few(std::vector<T>& of, Dropped dropped) {
  if (of.size() < kSubsets) return;
  dropped(of.front());
  of.erase(of.begin());
}

// The edges that a map sends to a row below a number.
int64_t edges_below(const RecordRef& by, int64_t below, int32_t threads, Edges* out, Tally* tally) {
  {
    const std::lock_guard<std::mutex> held(*lock);
    for (const Edges& edges : by->edges)
      if (edges.below == below) return *out = edges, kFine;
  }
  std::shared_ptr<Csr> csr;
  if (const int64_t status = csr_of(by, false, threads, &csr, tally); status != kFine) return status;
  Edges made{below, static_cast<const int32_t*>(csr->indptr.data)[below], {}};
  if (!csr->found.sorted) {
    Array flat;
    if (const int64_t status = flat_of(by, false, threads, &flat, tally); status != kFine) return status;
    made.numbers = Array::of(made.count, 4);
    if (!made.numbers) return kNoMemory;
    const auto* const row = static_cast<const int32_t*>(flat.data);
    auto* const numbers = static_cast<int32_t*>(made.numbers.data);
    int64_t n = 0;
    for (int64_t e = 0; e < by->index.count && n < made.count; ++e)
      if (row[e] < below) numbers[n++] = static_cast<int32_t>(e);
    if (n != made.count) return kChanged;
  }
  const std::lock_guard<std::mutex> held(*lock);
  keep_few(by->edges, [&](const Edges& old) { by->nbytes -= old.numbers ? old.count * 4 : 0; });
  by->edges.push_back(made);
  if (made.numbers) by->nbytes += made.count * 4;
  *out = made;
  return kFine;
}

// The index `of` on these edges alone.
int64_t subset_of(const RecordRef& by, const Edges& edges, const RecordRef& of, int32_t threads, RecordRef* out,
                  Tally* tally) {
  {
    const std::lock_guard<std::mutex> held(*lock);
    for (const Subset& subset : by->subsets)
      if (subset.below == edges.below && subset.of.lock() == of) return *out = subset.rows, kFine;
  }
  auto made = std::make_shared<Record>();
  made->index = of->index;
  made->index.count = edges.count;
  if (edges.numbers) {
    Array flat;
    if (const int64_t status = flat_of(of, false, threads, &flat, tally); status != kFine) return status;
    made->values = Array::of(edges.count, 4);
    if (!made->values) return kNoMemory;
    const auto* const row = static_cast<const int32_t*>(flat.data);
    const auto* const numbers = static_cast<const int32_t*>(edges.numbers.data);
    auto* const values = static_cast<int32_t*>(made->values.data);
    for (int64_t n = 0; n < edges.count; ++n) values[n] = row[numbers[n]];
    made->index = Index{values, 1, edges.count, of->index.rows, false, false};
    made->own = true;
  }
  const std::lock_guard<std::mutex> held(*lock);
  keep_few(by->subsets, [&](const Subset& old) { by->nbytes -= old.rows->own ? old.rows->index.count * 4 : 0; });
  by->subsets.push_back(Subset{of, edges.below, made});
  if (edges.numbers) by->nbytes += edges.count * 4;
  *out = made;
  return kFine;
}

// The edge, counted among all edges, at each position of the CSR of a subset.
int64_t edges_at(const RecordRef& walked, const Edges& edges, int32_t threads, Array* out, Tally* tally) {
  if (const int64_t status = perm_of(walked, false, threads, out, tally); status != kFine || !edges.numbers)
    return status;
  Array made = Array::of(edges.count, 4);
  if (!made) return kNoMemory;
  const auto* const at = static_cast<const int32_t*>(out->data);
  const auto* const numbers = static_cast<const int32_t*>(edges.numbers.data);
  for (int64_t n = 0; n < edges.count; ++n) static_cast<int32_t*>(made.data)[n] = numbers[at[n]];
  *out = made;
  return kFine;
}

// ---------------------------------------------------------------- binding to a graph

struct Binding {
  const Segment& segment;
  Bound& bound;
  int32_t threads;
  Failure* failure;
  Tally tally;
  std::vector<int64_t> numbers;  // of the limits

  int64_t failed(int64_t status, int64_t map) {
    failure->at = map;
    failure->position = status;
    return status >= 0 ? kNotRow : status == kChanged ? kWritten : kNoRoom;
  }

  int64_t bind() {
    if (const int64_t status = compute_limits(); status != kDone) return status;
    bound.steps.reserve(segment.steps.size());
    for (const Step& step : segment.steps)
      if (const int64_t status = bind_step(step); status != kDone) return status;
    return kDone;
  }

  int64_t compute_limits() {
    for (const Limit& limit : segment.limits) {
      int64_t number = 0;
      switch (limit.kind) {
        case Limit::rows:
          number = rows_of(bound.rows.data(), limit.of[0]);
          break;
        case Limit::most:
          for (const int64_t other : limit.of) number = std::max(number, numbers[other]);
          break;
        case Limit::least:
          number = numbers[limit.of[0]];
          for (const int64_t other : limit.of) number = std::min(number, numbers[other]);
          break;
        case Limit::reach:
          if (const int64_t status = reached(limit, &number); status != kDone) return status;
      }
      numbers.push_back(number);
    }
    return kDone;
  }

  int64_t reached(const Limit& limit, int64_t* number) {
    const RecordRef &by = bound.records[limit.of[0]], &to = bound.records[limit.of[1]];
    Array column;
    if (const int64_t status = column_at(by, limit.of[0], to, limit.of[1], &column); status != kDone) return status;
    std::shared_ptr<Csr> csr;
    if (const int64_t status = csr_of(by, false, threads, &csr, &tally); status != kFine)
      return failed(status, limit.of[0]);
    const int64_t below = std::min(numbers[limit.of[2]], by->index.rows);
    const int64_t count = static_cast<const int32_t*>(csr->indptr.data)[below];
    const auto* const row = static_cast<const int32_t*>(column.data);
    for (int64_t k = 0; k < count; ++k) *number = std::max<int64_t>(*number, row[k] + 1);
    return kDone;
  }

  int64_t column_at(const RecordRef& by, int64_t map, const RecordRef& to, int64_t other, Array* out) {
    if (by->index.count != to->index.count) {
      failure->at = map;
      failure->position = other;
      return kUnequal;
    }
    bool at_other = false;
    const int64_t status = column_of(by, to, false, threads, out, &at_other, &tally);
    if (status != kFine) return failed(status, at_other ? other : map);
    bound.arrays.push_back(*out);
    return kDone;
  }

  int64_t bind_step(const Step& step) {
    BoundStep& made = bound.steps.emplace_back();
    const int64_t* const rows = bound.rows.data();
    int64_t most = 0;
    for (const int64_t space : step.spaces) made.sizes.push_back(rows_of(rows, space));
    for (const int64_t size : made.sizes) most = std::max(most, size);
    for (const auto& map : step.maps) most = std::max(most, bound.records[map.first]->index.count);
    if (most > kInt32Max) return kOneByOne;
    for (const int64_t space : step.over)
      if (!(space < 0 ? bound.records[step.maps[0].first]->index.count : rows_of(rows, space))) return kOneByOne;
    const int64_t every = made.sizes.empty() ? 1 : made.sizes[0];
    const int64_t end = step.rows < 0 ? every : std::min(numbers[step.rows], every);
    made.rows = end, made.edges = 0;
    if (const int64_t status = find_formats(step, made, end, end < every || step.rows >= 0); status != kDone)
      return status;
    for (const Zero& zero : step.zeros) {
      const int64_t upto = zero.upto < 0 ? every : std::min(every, numbers[zero.upto]);
      if (end < upto) made.zeros.push_back({zero.to, end * zero.nbytes, (upto - end) * zero.nbytes});
    }
    return kDone;
  }

  // Finds the indices that a step walks, which are subsets if it has a limit on edges, and all their formats.
  int64_t find_formats(const Step& step, BoundStep& made, int64_t end, bool limited) {
    if (step.walked < 0) return uniform(step, made, end), point(step, made, bound.records, nullptr);
    std::vector<RecordRef> subset;
    Edges edges{};
    if (step.edges >= 0) {
      const RecordRef& by = bound.records[step.edges];
      const int64_t below = std::min(numbers[step.below], by->index.rows);
      if (const int64_t status = edges_below(by, below, threads, &edges, &tally); status != kFine)
        return failed(status, step.edges);
      subset = bound.records;
      for (const auto& map : step.maps) {
        if (!map.second) continue;
        if (bound.records[map.first]->index.count != by->index.count) {
          failure->at = step.edges, failure->position = map.first;
          return kUnequal;
        }
        RecordRef part;
        const int64_t status = subset_of(by, edges, bound.records[map.first], threads, &part, &tally);
        if (status != kFine) return failed(status, map.first);
        subset[map.first] = part;
        bound.subsets.push_back(part);
      }
    }
    const std::vector<RecordRef>& of = step.edges >= 0 ? subset : bound.records;
    std::shared_ptr<Csr> csr;
    if (const int64_t status = csr_of(of[step.walked], false, threads, &csr, &tally); status != kFine)
      return failed(status, step.walked);
    bound.csrs.push_back(csr);
    const int64_t degree = csr->found.max_degree, work = csr->num_rows + of[step.walked]->index.count;
    if (limited && step.edges < 0 && degree > segment.most_edges) return kOneByOne;
    if (step.edges < 0 && step.divided_from >= 0 && degree > std::max(step.divided_from, work / kShare))
      return kOneByOne;
    made.edges = of[step.walked]->index.count;
    made.sizes.push_back(degree);
    made.chunks = static_cast<const int64_t*>(csr->chunks.data);
    made.num_chunks = csr->found.num_chunks;
    if (end < made.chunks[made.num_chunks]) {
      for (int64_t c = 0; c <= made.num_chunks && made.chunks[c] < end; ++c) made.own_chunks.push_back(made.chunks[c]);
      if (made.own_chunks.empty()) made.own_chunks.push_back(0);
      made.own_chunks.push_back(end);
      made.chunks = made.own_chunks.data();
      made.num_chunks = static_cast<int64_t>(made.own_chunks.size()) - 1;
    }
    return point(step, made, of, step.edges >= 0 ? &edges : nullptr);
  }

  // As `uniform_chunks` of runtime/launch.py.
  void uniform(const Step& step, BoundStep& made, int64_t num_rows) {
    const Chunking& by = step.chunking;
    const int64_t tiles = (num_rows + by.tile - 1) / by.tile;
    const int64_t wanted = num_rows * std::max<int64_t>(by.row, 1) / by.chunk;
    const int64_t count = std::max<int64_t>(1, std::min({wanted, kMaxChunks, tiles}));
    for (int64_t c = 0; c < count; ++c) made.own_chunks.push_back(tiles * c / count * by.tile);
    made.own_chunks.push_back(num_rows);
    made.chunks = made.own_chunks.data();
    made.num_chunks = count;
  }

  int64_t point(const Step& step, BoundStep& made, const std::vector<RecordRef>& of, const Edges* edges) {
    made.pointers = step.pointers;
    for (Pointer& p : made.pointers) {
      Array found;
      int64_t status = kFine;
      switch (p.kind) {
        case Pointer::value:
        case Pointer::inside:
        case Pointer::fixed:
          continue;
        case Pointer::indptr:
          p.address = bound.csrs.back()->indptr.data;
          break;
        case Pointer::perm:
          status = edges && p.a == step.walked ? edges_at(of[p.a], *edges, threads, &found, &tally)
                                               : perm_of(of[p.a], false, threads, &found, &tally);
          break;
        case Pointer::flat:
          status = flat_of(of[p.a], false, threads, &found, &tally);
          break;
        case Pointer::column:
          if (const int64_t failed_with = column_at(of[p.a], p.a, of[p.b], p.b, &found); failed_with != kDone)
            return failed_with;
      }
      if (status != kFine) return failed(status, p.a);
      if (p.kind != Pointer::indptr) {
        p.address = found.data;
        bound.arrays.push_back(found);
      }
      p.kind = Pointer::fixed;
    }
    return kDone;
  }
};

// ---------------------------------------------------------------- running

template <class T>
void turn(char* to, const char* from, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      std::memcpy(to + (c * rows + r) * sizeof(T), from + (r * columns + c) * sizeof(T), sizeof(T));
}

// The addresses that pointers of a bound step name.
struct Places {
  char* const* values;
  char* inside;
  const Bound& bound;

  char* operator()(const Pointer& p) const {
    if (p.kind == Pointer::value) return values[p.a];
    if (p.kind == Pointer::inside) return inside + bound.inside[p.a];
    return static_cast<char*>(p.address);
  }
};

int64_t run_bound(const Segment& segment, const Bound& bound, char* const* values, char* inside, int32_t threads,
                  Failure* failure) {
  const Places place{values, inside, bound};
  for (const Turn& t : segment.turns) {
    char *const from = values[t.from], *const to = inside + bound.inside[t.to];
    if (t.itemsize == 8)
      turn<int64_t>(to, from, t.rows, t.columns);
    else if (t.itemsize == 4)
      turn<int32_t>(to, from, t.rows, t.columns);
    else
      turn<int16_t>(to, from, t.rows, t.columns);
  }
  for (size_t s = 0; s < bound.steps.size(); ++s) {
    const BoundStep& step = bound.steps[s];
    for (const auto& zero : step.zeros) std::memset(place(zero.to) + zero.begin, 0, static_cast<size_t>(zero.nbytes));
    void* ptrs[step.pointers.size() + 1];
    for (size_t i = 0; i < step.pointers.size(); ++i) ptrs[i] = place(step.pointers[i]);
    if (segment.steps[s].kernel(ptrs, step.sizes.data(), step.chunks, step.num_chunks, threads) != 0) {
      failure->at = static_cast<int64_t>(s);
      failure->position = -1;
      return kNoRoom;
    }
  }
  return kDone;
}

std::vector<int64_t> inside_of(const Segment& segment, const int64_t* rows, int64_t* nbytes) {
  std::vector<int64_t> out;
  *nbytes = 0;
  for (const auto& values : segment.inside) {
    out.push_back(*nbytes);
    int64_t size = 0;
    for (const auto& value : values) size = std::max(size, value.first * rows_of(rows, value.second));
    *nbytes += (size + kAlignment - 1) / kAlignment * kAlignment;
  }
  return out;
}

bool is_same(Bound& bound, const int64_t* rows, const std::vector<Seen>& seen) {
  const auto uses = [&](const void* storage) {
    return std::any_of(seen.begin(), seen.end(), [&](const Seen& one) { return one.storage == storage; });
  };
  if (!is_unedited(&bound.edits, uses) || !std::equal(bound.rows.begin(), bound.rows.end(), rows)) return false;
  for (size_t m = 0; m < seen.size(); ++m)
    if (bound.records[m]->dropped || !(bound.records[m]->seen == seen[m])) return false;
  return true;
}

// A hash of the values of an index.
template <typename In>
uint64_t hash_of(const Index& index) {
  uint64_t lanes[4] = {1, 2, 3, 4};
  for (int64_t e = 0; e < index.count; ++e) {
    uint64_t& lane = lanes[e & 3];
    lane = (lane ^ static_cast<uint64_t>(value_at<In>(index, e))) * 0x9E3779B97F4A7C15u;
    lane ^= lane >> 29;
  }
  uint64_t hash = static_cast<uint64_t>(index.count) + static_cast<uint64_t>(index.rows);
  for (const uint64_t lane : lanes) hash = (hash ^ lane) * 0xD6E8FEB86659FD93u;
  return hash;
}

// A record that only this segment knows, as long as it keeps the graph: for a small index that it has not seen lately,
// such as that of a batch. A known one is worth a record that others find. The caller holds the lock.
RecordRef record_for_once(const Segment& segment, const Seen& seen, int64_t rows, bool wrap, const void* tensor,
                          std::vector<uint64_t>* hashes) {
  if (!seen.counter || seen.count > kSmall) return nullptr;
  const RecordRef made = new_record(seen, rows, wrap);
  const uint64_t hash = seen.is64 ? hash_of<int64_t>(made->index) : hash_of<int32_t>(made->index);
  if (std::find(segment.once.begin(), segment.once.end(), hash) != segment.once.end()) return nullptr;
  made->alias = alias_of(tensor);
  if (!made->alias) return nullptr;
  hashes->push_back(hash);
  return made;
}

// What is kept of the last graph, or made for this one. `given` are records by map, or null; `tensors` the indices.
int64_t find_bound(Segment* segment, const int64_t* rows, const std::vector<Seen>& seen, const int64_t* tensors,
                   RecordRef* const* given, int32_t threads, std::shared_ptr<Bound>* out, Failure* failure) {
  auto made = std::make_shared<Bound>();
  std::vector<uint64_t> hashes;
  {
    const std::lock_guard<std::mutex> held(*lock);
    if (segment->last && is_same(*segment->last, rows, seen)) {
      *out = segment->last;
      return kDone;
    }
    made->edits = edited.count;
    for (size_t m = 0; m < seen.size(); ++m) {
      const auto& map = segment->maps[m];
      const int64_t leads = rows_of(rows, map.first);
      RecordRef record = given ? *given[m] : find_record(seen[m], leads, map.second);
      for (size_t n = 0; n < m && !record; ++n)  // the same tensor may come twice
        if (seen[n] == seen[m] && made->records[n]->index.rows == leads && made->records[n]->index.wrap == map.second)
          record = made->records[n];
      if (!record) record = record_for_once(*segment, seen[m], leads, map.second, tensors + m, &hashes);
      if (!record) return failure->at = static_cast<int64_t>(m), kMissing;
      record->used = true;
      made->records.push_back(record);
    }
    for (const uint64_t hash : hashes) segment->once[segment->next_once++ % kOnce] = hash;
  }
  made->rows.assign(rows, rows + segment->num_spaces);
  made->inside = inside_of(*segment, rows, &made->nbytes);
  Binding binding{*segment, *made, threads, failure, {}, {}};
  const int64_t status = binding.bind();
  failure->builds = binding.tally.builds, failure->hits = binding.tally.hits;
  failure->grown = failure->builds && hashes.size() < made->records.size();
  if (status != kDone) return status;
  *out = made;
  bool kept = true;
  for (const Seen& one : seen) kept &= one.counter != nullptr;
  if (kept) {
    const std::lock_guard<std::mutex> held(*lock);
    std::swap(segment->last, made);  // what was kept before is freed after the lock is
  }
  return kDone;
}

}  // namespace

extern "C" Segment* gw_segment_new(const int64_t* numbers) { return make_segment(Reader{numbers}); }

extern "C" void gw_segment_free(Segment* segment) { delete segment; }

// Releases what is kept of the last graph.
extern "C" void gw_segment_forget(Segment* segment) {
  std::shared_ptr<Bound> freed;
  const std::lock_guard<std::mutex> held(*lock);
  freed.swap(segment->last);
}

// Writes, for each kernel, how many rows it computed and how many edges it was given in the last call. False if nothing is
// kept of that.
extern "C" int32_t gw_segment_computed(const Segment* segment, int64_t* out) {
  const std::lock_guard<std::mutex> held(*lock);
  if (!segment->last) return false;
  for (const BoundStep& step : segment->last->steps) *out++ = step.rows, *out++ = step.edges;
  return true;
}

// The bytes of the values inside.
extern "C" int64_t gw_segment_bytes(const Segment* segment, const int64_t* rows) {
  int64_t nbytes;
  inside_of(*segment, rows, &nbytes);
  return nbytes;
}

// Runs a segment. `numbers` are the row counts, the implementations of the index tensors and of the values (reads, then
// writes), the address of the memory inside, and, if `given`, records by map in place of those that would be found.
// Returns a `Status`.
extern "C" int64_t gw_segment_run(Segment* segment, const int64_t* numbers, int32_t given, int32_t threads,
                                  Failure* failure) {
  *failure = Failure{-1, -1, 0, 0, 0};
  const int64_t* const rows = numbers;
  const int64_t* at = numbers + segment->num_spaces;
  std::vector<Seen> seen(segment->maps.size());
  for (size_t m = 0; m < seen.size(); ++m)
    if (!read_index(at++, &seen[m])) return failure->at = static_cast<int64_t>(m), kNoIndex;
  const int64_t num_values = segment->num_reads + segment->num_writes;
  char* values[num_values + 1];
  for (int64_t v = 0; v < num_values; ++v, ++at) {
    void* data;
    bool contiguous = true;
    if (layout.data(at, &data) || (v < segment->num_reads && layout.contiguous(at, &contiguous)) || !contiguous)
      return failure->at = v, kGaps;
    values[v] = static_cast<char*>(data);
  }
  char* const inside = reinterpret_cast<char*>(*at++);
  std::shared_ptr<Bound> bound;
  RecordRef* const* const records_given = given ? reinterpret_cast<RecordRef* const*>(at) : nullptr;
  const int64_t* const tensors = numbers + segment->num_spaces;
  const int64_t status = find_bound(segment, rows, seen, tensors, records_given, threads, &bound, failure);
  if (status != kDone) return status;
  return run_bound(*segment, *bound, values, inside, threads, failure);
}
