// Kernels that follow one another without a call of PyTorch, as one call: on a graph that is seen for the first time as
// well as on a known one.
//
// This text follows those of formats.cpp, records.cpp and divided_rows.cpp. A segment is made once from numbers (`Reader` below). A call
// gives the row counts, the index tensors and the values. It finds the records of the indices, makes the formats that
// are missing, computes limits on rows, divides rows into chunks, and runs the kernels. All that depends on the graph
// alone is kept for the last one (`Bound`).

namespace {

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
  kTooMany = 8,   // rows or edges do not fit 32 bits: the caller runs kernel after kernel
  kDivided = 9,   // the caller adds the kernels of a step's divided rows, and calls again
  kScratch = 10,  // the caller gives so many bytes of scratch memory, and calls again
};

struct Failure {
  int64_t at;        // the map, value or kernel, by number
  int64_t position;  // in the index; the bytes of scratch memory
  int64_t builds, hits;
  int64_t grown;              // whether formats were made of a record that others find
  int64_t launches, divided;  // kernels that ran, and kernels whose divided rows others computed
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

// A total over no rows, or no edges, which becomes a value that `bits` begins.
struct Fill {
  int64_t over;  // a space, or -1 for edges
  Pointer to;
  int64_t itemsize, count, bits;
};

// What the caller says of a step on the one graph that it has, in place of what would be found: its formats are the
// step's pointers.
struct Given {
  List<int64_t> sizes;
  const int64_t* chunks;
  int64_t num_chunks;
  bool skipped, in_pieces;
  PieceTables tables;
};

struct Step {
  Kernel* kernel;
  int64_t walked;                       // map, or -1
  List<std::pair<int64_t, bool>> maps;  // and whether they are indices of the walked edges
  List<int64_t> spaces;                 // sizes
  List<Fill> fills;
  Chunking chunking;
  bool has_totals, divides;  // divides: long rows are divided
  Division division;
  int64_t rows, edges, below;  // limits; the map of `edges`; -1: none
  List<Zero> zeros;
  List<Pointer> pointers;
  Ref<const Given> given;
  Ref<const Divided> divided;  // null until the caller has built these kernels
};

struct Limit {
  enum Kind : int64_t { rows, most, least, reach } kind;
  List<int64_t> of;
};

struct Turn {
  int64_t itemsize, rows, columns, from, to;
};

struct BoundStep {
  List<Pointer> pointers;
  List<int64_t> sizes, own_chunks;
  const int64_t* chunks;
  int64_t num_chunks;
  int64_t rows, edges;  // that are computed and walked
  struct Range {
    Pointer to;
    int64_t begin, nbytes;
  };
  List<Range> zeros;
  List<Fill> fills;
  Ref<const BoundDivided> divided;  // null if no row is
  bool skipped = false;             // all rows are divided
};

struct Bound {
  List<int64_t> rows, inside;  // inside: where each place begins
  int64_t nbytes = 0, scratch = 0;
  uint64_t edits = 0;
  List<RecordRef> records;
  List<BoundStep> steps;
  List<Array> arrays;
  List<Ref<Csr>> csrs;
  List<RecordRef> subsets;
  List<Ref<LongRows>> long_rows;
};

constexpr int64_t kSmall = 1 << 14;  // edges; formats of fewer are made faster than a record is kept
constexpr size_t kOnce = 32;
constexpr int64_t kTries = 16, kRound = 256;  // a fold by a tree has an index for each of its levels

// Whether what comes with the values of an earlier one is worth an entry that other programs find, which costs more than
// the work that it saves once. It pays where the same tensor comes again, and never where equal values lie in other
// memory each time, as those that a step computes from its data. So after kTries entries in a row that were not found
// again where they were asked for, no more are made in this round of kRound calls.
struct Sharing {
  int64_t unfound = 0;

  bool pays() { return unfound++ % kRound < kTries; }
  void found() { unfound = 0; }
};

struct Segment {
  List<std::pair<int64_t, bool>> maps;  // the space that each leads to, and whether values wrap
  int64_t num_spaces = 0, num_reads = 0, num_writes = 0;
  int64_t most_rows = 0;   // or edges, that kernels of 32 bits can count
  int64_t most_edges = 0;  // of a row of a kernel whose rows have a limit
  List<Limit> limits;
  List<Turn> turns;
  List<List<std::pair<int64_t, int64_t>>> inside;  // of each place, the values: bytes of a row, space
  List<Step> steps;
  Ref<Bound> last;
  uint64_t once[kOnce] = {};  // hashes of the values of small indices, the latest ones
  size_t next_once = 0;
  List<Sharing> sharing;  // for each map, of the records of small indices
};

Pointer read_pointer(Reader& from) {
  const auto kind = static_cast<Pointer::Kind>(from.next());
  const int64_t a = from.next(), b = from.next();
  return Pointer{kind, a, b, kind == Pointer::fixed ? reinterpret_cast<void*>(a) : nullptr};
}

Ref<const Given> read_given(Reader& from) {
  if (!from.next()) return nullptr;
  auto made = shared<Given>();
  made->sizes = from.list();
  made->chunks = reinterpret_cast<const int64_t*>(from.next());
  made->num_chunks = from.next();
  made->skipped = from.next() != 0, made->in_pieces = from.next() != 0;
  if (!made->in_pieces) return made;
  PieceTables& tables = made->tables;
  for (void*& table : tables.of) table = reinterpret_cast<void*>(from.next());
  tables.num_pieces = from.next(), tables.num_slots = from.next(), tables.num_edges = from.next();
  return made;
}

Step make_step(Reader& from) {
  Step step;
  step.kernel = reinterpret_cast<Kernel*>(from.next());
  step.walked = from.next();
  from.each([&] {
    const int64_t map = from.next();
    step.maps.emplace_back(map, from.next() != 0);
  });
  step.spaces = from.list();
  from.each([&] {
    const int64_t over = from.next();
    const Pointer to = read_pointer(from);
    const int64_t itemsize = from.next(), count = from.next();
    step.fills.push_back(Fill{over, to, itemsize, count, from.next()});
  });
  step.chunking.row = from.next(), step.chunking.chunk = from.next(), step.chunking.tile = from.next();
  step.has_totals = from.next() != 0, step.divides = from.next() != 0;
  step.division.longest = from.next(), step.division.share = from.next();
  step.division.most_pieces = from.next(), step.division.least_edges = from.next();
  step.rows = from.next(), step.edges = from.next(), step.below = from.next();
  from.each([&] {
    const Pointer to = read_pointer(from);
    const int64_t nbytes = from.next();
    step.zeros.push_back(Zero{to, nbytes, from.next()});
  });
  from.each([&] { step.pointers.push_back(read_pointer(from)); });
  step.given = read_given(from);
  return step;
}

Segment* make_segment(Reader from) {
  auto* const made = new Segment;
  made->num_spaces = from.next(), made->num_reads = from.next(), made->num_writes = from.next();
  made->most_rows = from.next(), made->most_edges = from.next();
  from.each([&] {
    const int64_t space = from.next();
    made->maps.emplace_back(space, from.next() != 0);
    made->sharing.emplace_back();
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

// ---------------------------------------------------------------- binding to a graph

struct Binding {
  const Segment& segment;
  Bound& bound;
  int32_t threads;
  Failure* failure;
  Tally tally;
  List<int64_t> numbers;  // of the limits

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
    for (const BoundStep& step : bound.steps)
      if (step.divided) bound.scratch = std::max(bound.scratch, step.divided->nbytes);
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
    Ref<Csr> csr;
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
    for (const int64_t space : step.spaces) made.sizes.push_back(rows_of(rows, space));
    for (const Fill& fill : step.fills)
      if (!(fill.over < 0 ? bound.records[step.maps[0].first]->index.count : rows_of(rows, fill.over)))
        made.fills.push_back(fill);
    if (step.given) return take_given(step, made);
    int64_t most = 0;
    for (const int64_t size : made.sizes) most = std::max(most, size);
    for (const auto& map : step.maps) most = std::max(most, bound.records[map.first]->index.count);
    if (most > segment.most_rows) return kTooMany;
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

  int64_t take_given(const Step& step, BoundStep& made) {
    const Given& given = *step.given;
    made.sizes = given.sizes;
    made.rows = made.sizes.empty() ? 1 : made.sizes[0], made.edges = 0;
    made.chunks = given.chunks, made.num_chunks = given.num_chunks, made.skipped = given.skipped;
    made.pointers = step.pointers;
    return given.in_pieces ? divide(step, made, given.tables) : kDone;
  }

  // Finds the indices that a step walks, which are subsets if it has a limit on edges, and all their formats.
  int64_t find_formats(const Step& step, BoundStep& made, int64_t end, bool limited) {
    if (step.walked < 0) return uniform(step, made, end), point(step, made, bound.records, nullptr);
    Ref<Csr> csr;
    int64_t by = step.edges, below = by < 0 ? 0 : numbers[step.below];
    if (by < 0) {
      const int64_t status = csr_of(bound.records[step.walked], false, threads, &csr, &tally);
      if (status != kFine) return failed(status, step.walked);
      // Rows behind the limit must not be divided, so where a row may be long their edges are left out.
      if (limited && csr->found.max_degree > segment.most_edges) by = step.walked, below = end;
    }
    List<RecordRef> subset;
    Edges edges{};
    if (by >= 0)
      if (const int64_t status = find_subset(step, by, below, &edges, &subset); status != kDone) return status;
    const List<RecordRef>& of = by >= 0 ? subset : bound.records;
    if (by >= 0)
      if (const int64_t status = csr_of(of[step.walked], false, threads, &csr, &tally); status != kFine)
        return failed(status, step.walked);
    bound.csrs.push_back(csr);
    const int64_t degree = csr->found.max_degree;
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
    if (const int64_t status = point(step, made, of, by >= 0 ? &edges : nullptr); status != kDone) return status;
    const bool is_long = degree > step.division.shortest(csr->num_rows, made.edges);
    if (!step.divides || step.edges >= 0 || !is_long) return kDone;
    Ref<LongRows> rows;
    if (const int64_t status = long_rows_of(of[step.walked], step.division, threads, &rows, &tally); status != kFine)
      return failed(status, step.walked);
    bound.long_rows.push_back(rows);
    made.sizes.back() = rows->max_degree;
    made.own_chunks = leave_out(made.chunks, made.num_chunks, rows->rows);
    made.chunks = made.own_chunks.data();
    made.num_chunks = static_cast<int64_t>(made.own_chunks.size()) - 1;
    made.skipped = static_cast<int64_t>(rows->rows.size()) == csr->num_rows && !step.has_totals;
    return divide(step, made, rows->tables);
  }

  // The edges that the map `map` sends to a row below `below`, and all indices, of which those of edges are subsets.
  int64_t find_subset(const Step& step, int64_t map, int64_t below, Edges* edges, List<RecordRef>* subset) {
    const RecordRef& by = bound.records[map];
    const int64_t status = edges_below(by, std::min(below, by->index.rows), threads, edges, &tally);
    if (status != kFine) return failed(status, map);
    *subset = bound.records;
    for (const auto& other : step.maps) {
      if (!other.second) continue;
      if (bound.records[other.first]->index.count != by->index.count) {
        failure->at = map, failure->position = other.first;
        return kUnequal;
      }
      RecordRef part;
      const int64_t status = subset_of(by, *edges, bound.records[other.first], threads, &part, &tally);
      if (status != kFine) return failed(status, other.first);
      (*subset)[other.first] = part;
      bound.subsets.push_back(part);
    }
    return kDone;
  }

  int64_t divide(const Step& step, BoundStep& made, const PieceTables& tables) {
    Ref<const Divided> kernels;
    {
      const Held held(lock);
      kernels = step.divided;
    }
    if (!kernels) return failure->at = static_cast<int64_t>(&step - segment.steps.data()), kDivided;
    made.divided = shared<BoundDivided>(kernels, tables);
    return kDone;
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

  int64_t point(const Step& step, BoundStep& made, const List<RecordRef>& of, const Edges* edges) {
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

}  // namespace
