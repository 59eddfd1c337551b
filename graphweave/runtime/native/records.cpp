// Records of index tensors: what was made of a tensor's values, found again as long as nobody has edited them.
//
// This text follows those of containers.cpp, checksum.cpp and formats.cpp. A record is found by what identifies the
// contents of a tensor (`Seen`). The caller that adds a record keeps an alias of the tensor until it drops the record,
// so that neither its storage nor its version counter can die and give their address to another. Formats are made when
// they are first asked for, outside the lock: two threads that miss the same one both make it, and one of the results
// is kept. Everything that a kernel runs on has owners that are counted (`Ref`), so a record may be dropped while
// kernels use it.

// What follows runs once a call, not once an edge. So it compiles in two thirds of the time and runs as fast.
#pragma GCC optimize("O1")

namespace {

// How tensors of PyTorch are read: functions of its C interface, and offsets in bytes. The fields are those of
// `_Layout` in runtime/tensor_layout.py.
struct Layout {
  int32_t (*data)(const void* tensor, void** out);
  int32_t (*dim)(const void* tensor, int64_t* out);
  int32_t (*sizes)(const void* tensor, int64_t** out);
  int32_t (*strides)(const void* tensor, int64_t** out);
  int32_t (*dtype)(const void* tensor, int32_t* out);
  int32_t (*device)(const void* tensor, int32_t* out);
  int32_t (*contiguous)(const void* tensor, bool* out);
  int32_t (*copy)(const void* tensor, void** out);  // another handle of the same tensor
  int32_t (*free)(void* tensor);
  int32_t (*call)(const char* name, const char* overload, uint64_t* stack);
  int64_t int32, int64, cpu;          // numbers of dtypes and of the device
  int64_t storage, counter, version;  // of the first two in a tensor, of the last in a counter
};

Layout layout;

constexpr size_t kEdits = 64;

// Edits that PyTorch has not seen: how many were found so far, and the storages of the latest.
struct Edited {
  uint64_t count = 0;
  const void* storages[kEdits] = {};
};

Edited edited;

// Kept by pointer, since a fork may copy a mutex that another thread holds: the child takes a new one.
Lock* lock = new Lock;

// Whether none of the storages for which `uses` is true was edited since there were `*since` edits, which becomes the
// number that there are now. The caller holds the lock.
template <typename Uses>
bool is_unedited(uint64_t* since, Uses uses) {
  if (edited.count - *since > kEdits) return false;
  for (; *since != edited.count; ++*since)
    if (uses(edited.storages[*since % kEdits])) return false;
  return true;
}

// What identifies the contents of an index tensor of one dim. Without a version counter (inference tensors) edits
// cannot be noticed, so nothing is found again.
struct Seen {
  const void* storage;
  const void* counter;
  int64_t version;
  const void* data;
  int64_t count;
  int64_t stride;
  int64_t is64;

  bool operator==(const Seen& other) const {
    return storage == other.storage && counter == other.counter && version == other.version && data == other.data &&
           count == other.count && stride == other.stride && is64 == other.is64;
  }
};

// Reads where the memory of a tensor belongs, and how often it was edited. A tensor is given by the address of a variable
// that holds the address of its implementation, which is what a tensor of C++ is. Without a counter, the version is 0.
void read_place(const void* tensor, const void** storage, const void** counter, int64_t* version) {
  *storage = *counter = nullptr;
  *version = 0;
  if (layout.counter < 0) return;  // the offsets are not known
  const char* const implementation = *static_cast<char* const*>(tensor);
  std::memcpy(storage, implementation + layout.storage, sizeof(void*));
  std::memcpy(counter, implementation + layout.counter, sizeof(void*));
  if (!*counter) return;
  uint32_t found;
  std::memcpy(&found, static_cast<const char*>(*counter) + layout.version, sizeof found);
  *version = found;
}

// False if a tensor is no index of one dim on the CPU.
bool read_index(const void* tensor, Seen* seen) {
  int64_t dim;
  int32_t dtype, device;
  if (layout.dim(tensor, &dim) || dim != 1 || layout.dtype(tensor, &dtype) || layout.device(tensor, &device))
    return false;
  if (device != layout.cpu || (dtype != layout.int32 && dtype != layout.int64)) return false;
  int64_t *sizes, *strides;
  void* data;
  if (layout.sizes(tensor, &sizes) || layout.strides(tensor, &strides) || layout.data(tensor, &data)) return false;
  read_place(tensor, &seen->storage, &seen->counter, &seen->version);
  seen->data = data;
  seen->count = sizes[0];
  seen->stride = strides[0];
  seen->is64 = dtype == layout.int64;
  return true;
}

// An alias of a tensor, with its storage and version counter.
struct Alias {
  void* const tensor;
  explicit Alias(void* of) : tensor(of) {}
  Alias(const Alias&) = delete;
  Alias& operator=(const Alias&) = delete;
  ~Alias() { layout.free(tensor); }
};

// Null if PyTorch refuses.
Ref<Alias> alias_of(const void* tensor) {
  void* handle;
  if (layout.copy(tensor, &handle)) return nullptr;
  uint64_t stack = reinterpret_cast<uint64_t>(handle);
  if (layout.call("aten::detach", "", &stack)) return nullptr;  // takes the handle in any case
  return shared<Alias>(reinterpret_cast<void*>(stack));
}

// Numbers of one format: memory of its own, or that of the tensor (`held` is null then).
struct Array {
  Ref<Memory> held;
  void* data = nullptr;

  explicit operator bool() const { return data != nullptr; }
  static Array of(int64_t count, int64_t itemsize) {
    Array made;
    made.held = shared<Memory>(count * itemsize);
    made.data = made.held->data;
    return made;
  }
};

struct Csr {
  Array indptr;
  Array chunks;
  Grouping found;
  int64_t num_rows;
};

constexpr int64_t kChunkShare = 1 << 10, kMaxChunks = 256;  // as in formats.py and launch.py
constexpr int64_t kFine = -1;

struct LongRows;
struct Record;
struct Sharing;
using RecordRef = Ref<Record>;

// The edges that a map sends to a row below a number: how many there are, and their numbers; null for the first ones.
struct Edges {
  int64_t below;
  int64_t count;
  Array numbers;
};

struct Subset {
  Watcher<Record> of;
  int64_t below;
  RecordRef rows;
};

struct Column {
  Watcher<Record> other;
  bool wide;
  Array rows;
};

struct Record {
  Seen seen{};
  Index index{};
  bool own = false;                // only our own programs write to the tensor
  bool dropped = false;            // no longer to be found
  bool used = false;               // since `gw_record_used` was asked
  int64_t nbytes = 0;              // of the formats
  Array values;                    // of a record that is part of another one's edges
  Ref<Alias> alias;                // of the tensor, if no caller keeps one
  const Sharing* asked = nullptr;  // who asked for a record that others find
  Ref<Csr> csr[2];
  Array perm[2], flat[2];
  List<Column> columns;
  List<Edges> edges;
  List<Subset> subsets;
  List<Ref<LongRows>> long_rows;  // see row_pieces.cpp
};

// All records that can be found, shared out by a hash. They are never destroyed: threads may use them while a process ends.
constexpr size_t kShares = 1 << 10;
List<RecordRef>* const records = new List<RecordRef>[kShares];

List<RecordRef>& records_like(const Seen& seen) {
  const auto hash = mixed(reinterpret_cast<uint64_t>(seen.data), static_cast<uint64_t>(seen.count * 31 + seen.version));
  return records[hash % kShares];
}

// The caller holds the lock.
RecordRef find_record(const Seen& seen, int64_t rows, bool wrap) {
  if (!seen.counter) return nullptr;
  for (const RecordRef& one : records_like(seen))
    if (one->seen == seen && one->index.rows == rows && one->index.wrap == wrap) return one;
  return nullptr;
}

RecordRef new_record(const Seen& seen, int64_t rows, bool wrap) {
  auto made = shared<Record>();
  made->seen = seen;
  made->index = Index{seen.data, seen.stride, seen.count, rows, seen.is64 != 0, wrap};
  return made;
}

// How many formats were made and found while a caller asked for some.
struct Tally {
  int64_t builds = 0;
  int64_t hits = 0;
};

// Keeps what was made, unless another thread was faster. `place` is where it belongs in the record.
template <typename T>
void keep(const RecordRef& record, T& place, T& made, int64_t nbytes) {
  const Held held(lock);
  if (place) {
    made = place;
    return;
  }
  place = made;
  record->nbytes += nbytes;
}

template <typename T>
bool found_in(const T& place, T* out) {
  const Held held(lock);
  *out = place;
  return static_cast<bool>(*out);
}

int64_t size_of(bool wide) { return wide ? 8 : 4; }

// Functions that follow return kFine, or the number that stands for an error: see formats.cpp.

int64_t csr_of(const RecordRef& record, bool wide, int32_t threads, Ref<Csr>* out, Tally* tally) {
  if (found_in(record->csr[wide], out)) return ++tally->hits, kFine;
  const Index& index = record->index;
  const int64_t share = (index.rows + index.count + kChunkShare - 1) / kChunkShare;
  const int64_t most = std::max<int64_t>(1, std::min({share, kMaxChunks, index.rows}));
  auto made = shared<Csr>();
  made->num_rows = index.rows;
  made->indptr = Array::of(index.rows + 1, size_of(wide));
  made->chunks = Array::of(most + 1, 8);
  if (!made->indptr || !made->chunks) return kNoMemory;
  auto* const chunks = static_cast<int64_t*>(made->chunks.data);
  const int64_t status =
      wide ? group(index, static_cast<int64_t*>(made->indptr.data), chunks, most, made->found, threads)
           : group(index, static_cast<int32_t*>(made->indptr.data), chunks, most, made->found, threads);
  if (status != kFine) return status;
  ++tally->builds;
  keep(record, record->csr[wide], made, (index.rows + 1) * size_of(wide) + (made->found.num_chunks + 1) * 8);
  *out = made;
  return kFine;
}

int64_t flat_of(const RecordRef& record, bool wide, int32_t threads, Array* out, Tally* tally) {
  if (found_in(record->flat[wide], out)) return ++tally->hits, kFine;
  Index index = record->index;
  if (record->own && index.is64 == wide && index.stride == 1) {
    index.wrap = false;
    if (gw_flat(index, nullptr, wide, threads) < 0) {
      out->data = const_cast<void*>(index.data);
      if (!out->data) *out = Array::of(0, 1);
      ++tally->builds;
      keep(record, record->flat[wide], *out, 0);
      return kFine;
    }
    index.wrap = record->index.wrap;
  }
  Array made = Array::of(index.count, size_of(wide));
  if (!made) return kNoMemory;
  const int64_t status = gw_flat(index, made.data, wide, threads);
  if (status != kFine) return status;
  ++tally->builds;
  keep(record, record->flat[wide], made, index.count * size_of(wide));
  *out = made;
  return kFine;
}

// The edge at each position of the CSR, also of a sorted index.
int64_t perm_of(const RecordRef& record, bool wide, int32_t threads, Array* out, Tally* tally) {
  if (found_in(record->perm[wide], out)) return ++tally->hits, kFine;
  Ref<Csr> csr;
  if (const int64_t status = csr_of(record, wide, threads, &csr, tally); status != kFine) return status;
  const int64_t count = record->index.count;
  Array made = Array::of(count, size_of(wide));
  if (!made) return kNoMemory;
  if (csr->found.sorted) {
    for (int64_t e = 0; e < count; ++e)
      if (wide)
        static_cast<int64_t*>(made.data)[e] = e;
      else
        static_cast<int32_t*>(made.data)[e] = static_cast<int32_t>(e);
  } else {
    const int64_t status = gw_place(record->index, nullptr, csr->indptr.data, made.data, wide, threads);
    if (status != kFine) return status;
  }
  ++tally->builds;
  keep(record, record->perm[wide], made, count * size_of(wide));
  *out = made;
  return kFine;
}

// An error about a position concerns `other`, if `*at_other` becomes true.
int64_t column_of(const RecordRef& record, const RecordRef& other, bool wide, int32_t threads, Array* out,
                  bool* at_other, Tally* tally) {
  *at_other = false;
  {
    const Held held(lock);
    for (const Column& column : record->columns)
      if (column.wide == wide && column.other.watches(other)) {
        *out = column.rows;
        return ++tally->hits, kFine;
      }
  }
  Ref<Csr> csr;
  if (const int64_t status = csr_of(record, wide, threads, &csr, tally); status != kFine) return status;
  if (csr->found.sorted) {
    *at_other = true;
    return flat_of(other, wide, threads, out, tally);
  }
  Array made = Array::of(record->index.count, size_of(wide));
  if (!made) return kNoMemory;
  const int64_t status = gw_place(record->index, &other->index, csr->indptr.data, made.data, wide, threads);
  *at_other = true;
  if (status != kFine) return status;
  ++tally->builds;
  const Held held(lock);
  auto& columns = record->columns;
  for (size_t c = columns.size(); c-- > 0;)
    if (columns[c].other.expired()) columns.remove(&columns[c]);
  columns.push_back(Column{Watcher<Record>(other), wide, made});
  record->nbytes += record->index.count * size_of(wide);
  *out = made;
  return kFine;
}

}  // namespace

extern "C" void gw_records_layout(const Layout* of) { layout = *of; }

// What was made of a tensor with this storage is not used again without a record.
extern "C" void gw_records_edited(const void* storage) {
  const Held held(lock);
  edited.storages[edited.count++ % kEdits] = storage;
}

// For a forked process, which has no other threads.
extern "C" void gw_records_forked() { lock = new Lock; }

// -1 if all values of an index name one of `rows` rows; else a position, or kNoMemory for a tensor that is no index.
extern "C" int64_t gw_in_range(const void* implementation, int64_t rows, int32_t threads) {
  Seen seen;
  if (!read_index(&implementation, &seen)) return kNoMemory;
  return gw_flat(Index{seen.data, seen.stride, seen.count, rows, seen.is64 != 0, false}, nullptr, false, threads);
}

// What `gw_record_*` take as `record` is the address of a `RecordRef` that the caller owns.

// A record for the tensor; null for a tensor that is no index. With `kept`, it is found again until it is dropped.
extern "C" RecordRef* gw_record_new(const void* implementation, int64_t rows, int32_t wrap, int32_t own, int32_t kept) {
  Seen seen;
  if (!read_index(&implementation, &seen)) return nullptr;
  const RecordRef made = new_record(seen, rows, wrap != 0);
  made->own = own != 0;
  if (kept && seen.counter) {
    const Held held(lock);
    if (const RecordRef before = find_record(seen, rows, wrap != 0)) return new RecordRef(before);
    records_like(seen).push_back(made);
  }
  return new RecordRef(made);
}

// The record is not found any more.
extern "C" void gw_record_drop(const RecordRef* record) {
  const Held held(lock);
  (*record)->dropped = true;
  List<RecordRef>& like = records_like((*record)->seen);
  for (RecordRef& one : like)
    if (one == *record) return like.remove(&one);
}

extern "C" void gw_record_free(RecordRef* record) { delete record; }

// Whether it was found since this was last asked.
extern "C" int32_t gw_record_used(const RecordRef* record) {
  const Held held(lock);
  return std::exchange((*record)->used, false);
}

extern "C" int64_t gw_record_bytes(const RecordRef* record) {
  const Held held(lock);
  return (*record)->nbytes;
}

// What the functions below write, besides the address of a format.
struct Made {
  void* data;
  void* chunks;
  int64_t sorted, max_degree, num_chunks;
  int64_t builds, hits;
  int64_t at_other;
};

extern "C" int64_t gw_record_csr(const RecordRef* record, int32_t wide, Made* made, int32_t threads) {
  Ref<Csr> found;
  Tally tally;
  const int64_t status = csr_of(*record, wide != 0, threads, &found, &tally);
  *made = Made{};
  made->builds = tally.builds, made->hits = tally.hits;
  if (status != kFine) return status;
  made->data = found->indptr.data, made->chunks = found->chunks.data;
  made->sorted = found->found.sorted, made->max_degree = found->found.max_degree;
  made->num_chunks = found->found.num_chunks;
  return kFine;
}

extern "C" int64_t gw_record_flat(const RecordRef* record, int32_t wide, Made* made, int32_t threads) {
  Array found;
  Tally tally;
  const int64_t status = flat_of(*record, wide != 0, threads, &found, &tally);
  *made = Made{found.data, nullptr, 0, 0, 0, tally.builds, tally.hits, 0};
  return status;
}

extern "C" int64_t gw_record_perm(const RecordRef* record, int32_t wide, Made* made, int32_t threads) {
  Array found;
  Tally tally;
  const int64_t status = perm_of(*record, wide != 0, threads, &found, &tally);
  *made = Made{found.data, nullptr, 0, 0, 0, tally.builds, tally.hits, 0};
  return status;
}

extern "C" int64_t gw_record_column(const RecordRef* record, const RecordRef* other, int32_t wide, Made* made,
                                    int32_t threads) {
  Array found;
  Tally tally;
  bool at_other = false;
  const int64_t status = column_of(*record, *other, wide != 0, threads, &found, &at_other, &tally);
  *made = Made{found.data, nullptr, 0, 0, 0, tally.builds, tally.hits, at_other};
  return status;
}
