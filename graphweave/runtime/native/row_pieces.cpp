// Rows with so many edges that one of them would keep a thread busy while the others wait, divided into pieces.
//
// This text follows that of records.cpp. The tables are those of runtime/row_pieces.py and runtime/long_rows.py, number
// by number, so that results have the same bits whoever divides the rows.

namespace {

// Which rows of a CSR are divided, and into how many pieces: see `Division` in runtime/long_rows.py.
struct Division {
  int64_t longest, share;  // a divided row has more edges than `longest`, and than 1 / share of rows and edges
  int64_t most_pieces, least_edges;  // of all rows together, and of a piece

  bool operator==(const Division& other) const {
    return longest == other.longest && share == other.share && most_pieces == other.most_pieces &&
           least_edges == other.least_edges;
  }
  int64_t shortest(int64_t rows, int64_t edges) const { return std::max(longest, (rows + edges) / share); }
};

// What kernels of divided rows are told about pieces: addresses of the tables, in the order of `PIECE_TABLES` in
// execute/cpp_divided.py, and the numbers of pieces, of slots (a slot stands for a divided row) and of their edges.
struct PieceTables {
  enum Name { slots, pieces, piece_row, piece_shift, piece_slot, slot_row, slot_piece, kNames };
  void* of[kNames];
  int64_t num_pieces, num_slots, num_edges;
};

struct LongRows {
  Division by;
  List<int64_t> rows;  // that are divided, in rising order
  int64_t max_degree;  // of the other rows
  Array numbers;       // all tables, one after the other
  PieceTables tables;
};

// Writes the tables for `row`, whose rows have falling degrees, in pieces of at most `size` edges.
void fill_tables(const int32_t* indptr, const List<int64_t>& row, int64_t size, LongRows* made) {
  PieceTables& t = made->tables;
  int32_t* const of[] = {
      static_cast<int32_t*>(t.of[PieceTables::slots]),      static_cast<int32_t*>(t.of[PieceTables::pieces]),
      static_cast<int32_t*>(t.of[PieceTables::piece_row]),  static_cast<int32_t*>(t.of[PieceTables::piece_shift]),
      static_cast<int32_t*>(t.of[PieceTables::piece_slot]), static_cast<int32_t*>(t.of[PieceTables::slot_row]),
  };
  const auto degree_of = [&](int64_t slot) { return static_cast<int64_t>(indptr[row[slot] + 1]) - indptr[row[slot]]; };
  int64_t first = 0;
  for (int64_t s = 0; s < t.num_slots; ++s) {
    of[PieceTables::slot_row][s] = static_cast<int32_t>(row[s]);
    of[PieceTables::slots][s] = static_cast<int32_t>(first);
    first += std::max<int64_t>(1, (degree_of(s) + size - 1) / size);
  }
  of[PieceTables::slots][t.num_slots] = static_cast<int32_t>(first);
  int64_t slot = 0, start = 0;
  for (int64_t p = 0; p < t.num_pieces; ++p) {  // those from `first` on are not used: they have no edges
    while (slot + 1 < t.num_slots && of[PieceTables::slots][slot + 1] <= p) ++slot;
    const int64_t done = (p - of[PieceTables::slots][slot]) * size;
    const int64_t length = p < first ? std::max<int64_t>(0, std::min(degree_of(slot) - done, size)) : 0;
    of[PieceTables::piece_row][p] = static_cast<int32_t>(row[slot]);
    of[PieceTables::piece_slot][p] = static_cast<int32_t>(slot);
    of[PieceTables::pieces][p] = static_cast<int32_t>(start);
    of[PieceTables::piece_shift][p] = static_cast<int32_t>(indptr[row[slot]] + done - start);
    start += length;
  }
  of[PieceTables::pieces][t.num_pieces] = static_cast<int32_t>(start);
  t.num_edges = start;
}

// Sorts rising rows by falling degree; rows of the same degree stay in order.
void sort_falling(List<int64_t>* rows, const int32_t* indptr) {
  constexpr int64_t kHalf = int64_t{1} << 32;
  for (int64_t& row : *rows) row -= (static_cast<int64_t>(indptr[row + 1]) - indptr[row]) * kHalf;
  std::qsort(rows->data(), rows->size(), sizeof(int64_t), [](const void* a, const void* b) {
    const int64_t first = *static_cast<const int64_t*>(a), second = *static_cast<const int64_t*>(b);
    return first < second ? -1 : static_cast<int>(first > second);
  });
  for (int64_t& row : *rows) row &= kHalf - 1;
}

Ref<LongRows> made_long_rows(const Csr& csr, int64_t num_edges, const Division& by) {
  auto made = shared<LongRows>();
  made->by = by, made->max_degree = 0;
  const auto* const indptr = static_cast<const int32_t*>(csr.indptr.data);
  const auto degree_of = [&](int64_t row) { return static_cast<int64_t>(indptr[row + 1]) - indptr[row]; };
  const int64_t shortest = by.shortest(csr.num_rows, num_edges);
  int64_t divided = 0;
  for (int64_t row = 0; row < csr.num_rows; ++row) {
    const int64_t degree = degree_of(row);
    if (degree <= shortest) {
      made->max_degree = std::max(made->max_degree, degree);
      continue;
    }
    made->rows.push_back(row);
    divided += degree;
  }
  List<int64_t> falling = made->rows;
  sort_falling(&falling, indptr);
  const int64_t size = std::max(by.least_edges, (divided + by.most_pieces - 1) / by.most_pieces);
  PieceTables& t = made->tables;
  t.num_slots = static_cast<int64_t>(falling.size());
  t.num_pieces = t.num_slots + num_edges / size;
  const int64_t pieces = t.num_pieces, slots = t.num_slots;
  const int64_t lengths[] = {slots + 1, pieces + 1, pieces, pieces, pieces, slots, 0};
  int64_t count = 0;
  for (const int64_t length : lengths) count += length;
  made->numbers = Array::of(count, 4);
  if (!made->numbers) return nullptr;
  auto* at = static_cast<int32_t*>(made->numbers.data);
  for (int name = 0; name < PieceTables::kNames; ++name) {
    t.of[name] = lengths[name] ? at : nullptr;
    at += lengths[name];
  }
  fill_tables(indptr, falling, size, made.get());
  return made;
}

// The divided rows of the CSR of a record of 32 bits, one of which is long. Returns what functions of records.cpp do.
int64_t long_rows_of(const RecordRef& record, const Division& by, int32_t threads, Ref<LongRows>* out, Tally* tally) {
  {
    const Held held(lock);
    for (const auto& one : record->long_rows)
      if (one->by == by) return *out = one, ++tally->hits, kFine;
  }
  Ref<Csr> csr;
  if (const int64_t status = csr_of(record, false, threads, &csr, tally); status != kFine) return status;
  auto made = made_long_rows(*csr, record->index.count, by);
  if (!made) return kNoMemory;
  ++tally->builds;
  const Held held(lock);
  record->long_rows.push_back(made);
  record->nbytes += made->numbers.held->nbytes;
  *out = made;
  return kFine;
}

// Boundaries of chunks (rising, without marks) in which divided rows are marked as left out: ~r for a row r.
List<int64_t> leave_out(const int64_t* chunks, int64_t num_chunks, const List<int64_t>& rows) {
  List<int64_t> starts;
  const auto add = [&](int64_t start) {
    if (starts.empty() || starts.back() != start) starts.push_back(start);
  };
  const int64_t* const end = chunks + num_chunks + 1;
  for (const int64_t row : rows) {  // they rise, too
    for (; chunks < end && *chunks <= row; ++chunks) add(*chunks);
    add(row);
    starts.back() = ~row;
    add(row + 1);
  }
  for (; chunks < end; ++chunks) add(*chunks);
  return starts;
}

}  // namespace

// The tables of a record's divided rows, whose memory is the record's. `found` gets the addresses in the order of
// `PieceTables`; `counts` the numbers of pieces, slots and edges, and the largest degree of another row. Returns -1, or
// the number that stands for an error.
extern "C" int64_t gw_record_long_rows(const RecordRef* record, const Division* by, void** found, int64_t* counts,
                                       int32_t threads) {
  Ref<LongRows> made;
  Tally tally;
  const int64_t status = long_rows_of(*record, *by, threads, &made, &tally);
  if (status != kFine) return status;
  const PieceTables& tables = made->tables;
  std::copy(tables.of, tables.of + PieceTables::kNames, found);
  counts[0] = tables.num_pieces, counts[1] = tables.num_slots, counts[2] = tables.num_edges;
  counts[3] = made->max_degree;
  return kFine;
}
