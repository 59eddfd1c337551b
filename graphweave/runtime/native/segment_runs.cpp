// Segments at work: finding what is known of a graph, running kernels, and what other programs call.
//
// This text follows that of segments.cpp.

#include <graphweave/transpose.h>

namespace {

template <class T>
void turn(char* to, const char* from, int64_t rows, int64_t columns) {
  gw_transpose_rows(reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from), rows, columns);
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

// Is told of each kernel, by its position, before it runs (0) and after (1).
typedef void Watch(int64_t kernel, int32_t ended);

int64_t run_bound(const Segment& segment, const Bound& bound, char* const* values, char* inside, char* scratch,
                  int32_t threads, Failure* failure, Watch* watch = nullptr) {
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
    if (watch) watch(static_cast<int64_t>(s), 0);
    for (const auto& zero : step.zeros) std::memset(place(zero.to) + zero.begin, 0, static_cast<size_t>(zero.nbytes));
    void* ptrs[step.pointers.size() + 1];
    for (size_t i = 0; i < step.pointers.size(); ++i) ptrs[i] = place(step.pointers[i]);
    Kernel* const kernel = segment.steps[s].kernel;
    if ((!step.skipped && kernel(ptrs, step.sizes.data(), step.chunks, step.num_chunks, threads)) ||
        (step.divided && !step.divided->run(ptrs, scratch, threads))) {
      if (watch) watch(static_cast<int64_t>(s), 1);
      failure->at = static_cast<int64_t>(s);
      failure->position = -1;
      return kNoRoom;
    }
    failure->launches += !step.skipped;
    if (step.divided) ++failure->divided, failure->launches += step.divided->kernels->kernels.size();
    for (const Fill& fill : step.fills)
      for (int64_t i = 0; i < fill.count; ++i)
        std::memcpy(place(fill.to) + i * fill.itemsize, &fill.bits, static_cast<size_t>(fill.itemsize));
    if (watch) watch(static_cast<int64_t>(s), 1);
  }
  return kDone;
}

List<int64_t> inside_of(const Segment& segment, const int64_t* rows, int64_t* nbytes) {
  List<int64_t> out;
  *nbytes = 0;
  for (const auto& values : segment.inside) {
    out.push_back(*nbytes);
    int64_t size = 0;
    for (const auto& value : values) size = std::max(size, value.first * rows_of(rows, value.second));
    *nbytes += aligned(size);
  }
  return out;
}

bool is_same(Bound& bound, const int64_t* rows, const List<Seen>& seen) {
  const auto uses = [&](const void* storage) {
    return std::any_of(seen.begin(), seen.end(), [&](const Seen& one) { return one.storage == storage; });
  };
  if (!is_unedited(&bound.edits, uses) || !std::equal(bound.rows.begin(), bound.rows.end(), rows)) return false;
  for (size_t m = 0; m < seen.size(); ++m)
    if (bound.records[m]->dropped || !(bound.records[m]->seen == seen[m])) return false;
  return true;
}

// A hash of the values of an index.
uint64_t hash_of(const Index& index) {
  uint64_t lanes[4] = {1, 2, 3, 4};
  for (int64_t e = 0; e < index.count; ++e) {
    uint64_t& lane = lanes[e & 3];
    lane = (lane ^ static_cast<uint64_t>(value_at(index, e))) * 0x9E3779B97F4A7C15u;
    lane ^= lane >> 29;
  }
  uint64_t hash = static_cast<uint64_t>(index.count) + static_cast<uint64_t>(index.rows);
  for (const uint64_t lane : lanes) hash = (hash ^ lane) * 0xD6E8FEB86659FD93u;
  return hash;
}

// A record that only this segment knows, as long as it keeps the graph: for a small index that it has not seen lately,
// such as that of a batch. A known one is worth a record that others find, if such records pay. The caller holds the lock.
RecordRef record_for_once(Segment& segment, size_t map, const Seen& seen, int64_t rows, const void* tensor,
                          List<uint64_t>* hashes) {
  if (!seen.counter || seen.count > kSmall) return nullptr;
  const RecordRef made = new_record(seen, rows, segment.maps[map].second);
  const uint64_t hash = hash_of(made->index);
  const bool known = std::find(segment.once, segment.once + kOnce, hash) != segment.once + kOnce;
  if (known && segment.sharing[map].pays()) return nullptr;
  made->alias = alias_of(tensor);
  if (!made->alias) return nullptr;
  if (!known) hashes->push_back(hash);
  return made;
}

// What is kept of the last graph, or made for this one. `given` are records by map, or null; `tensors` the indices.
int64_t find_bound(Segment* segment, const int64_t* rows, const List<Seen>& seen, const int64_t* tensors,
                   RecordRef* const* given, int32_t threads, Ref<Bound>* out, Failure* failure) {
  auto made = shared<Bound>();
  List<uint64_t> hashes;
  {
    const Held held(lock);
    if (segment->last && is_same(*segment->last, rows, seen)) {
      *out = segment->last;
      return kDone;
    }
    made->edits = edited.count;
    for (size_t m = 0; m < seen.size(); ++m) {
      const auto& map = segment->maps[m];
      const int64_t leads = rows_of(rows, map.first);
      RecordRef record = given ? *given[m] : find_record(seen[m], leads, map.second);
      Sharing& sharing = segment->sharing[m];
      if (record && given && !record->asked) record->asked = &sharing;
      if (record && !given && record->asked == &sharing) sharing.found();
      for (size_t n = 0; n < m && !record; ++n)  // the same tensor may come twice
        if (const RecordRef& other = made->records[n];
            other && seen[n] == seen[m] && other->index.rows == leads && other->index.wrap == map.second)
          record = other;
      if (!record) record = record_for_once(*segment, m, seen[m], leads, tensors + m, &hashes);
      if (record)
        record->used = true;
      else if (failure->at < 0)
        failure->at = static_cast<int64_t>(m);
      made->records.push_back(record);
    }
    if (failure->at >= 0) return kMissing;
    for (const uint64_t hash : hashes) segment->once[segment->next_once++ % kOnce] = hash;
  }
  made->rows.append(rows, rows + segment->num_spaces);
  made->inside = inside_of(*segment, rows, &made->nbytes);
  Binding binding{*segment, *made, threads, failure, {}, {}};
  const int64_t status = binding.bind();
  failure->builds = binding.tally.builds, failure->hits = binding.tally.hits;
  const auto is_shared = [](const RecordRef& record) { return !record->alias; };
  failure->grown = failure->builds && std::any_of(made->records.begin(), made->records.end(), is_shared);
  if (status != kDone) return status;
  *out = made;
  bool kept = true;
  for (const Seen& one : seen) kept &= one.counter != nullptr;
  if (kept) {
    const Held held(lock);
    made.swap(segment->last);  // what was kept before is freed after the lock is
  }
  return kDone;
}

}  // namespace

extern "C" Segment* gw_segment_new(const int64_t* numbers) { return make_segment(Reader{numbers}); }

extern "C" void gw_segment_free(Segment* segment) { delete segment; }

// Releases what is kept of the last graph.
extern "C" void gw_segment_forget(Segment* segment) {
  Ref<Bound> freed;
  const Held held(lock);
  freed.swap(segment->last);
}

// Writes, for each kernel, how many rows it computed and how many edges it was given in the last call. False if nothing is
// kept of that.
extern "C" int32_t gw_segment_computed(const Segment* segment, int64_t* out) {
  const Held held(lock);
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

// The kernels that compute divided rows of a step, of which other threads may have given some.
extern "C" void gw_segment_divided(Segment* segment, int64_t step, const int64_t* numbers) {
  auto made = shared<const Divided>(make_divided(Reader{numbers}));
  const Held held(lock);
  if (!segment->steps[step].divided) segment->steps[step].divided = std::move(made);
}

namespace {

// Finds or makes what is known of a graph. `rows` are followed by the implementations of the index tensors; `given` are
// records by map in place of those that would be found, or null.
int64_t bind_segment(Segment* segment, const int64_t* rows, RecordRef* const* given, int32_t threads, Ref<Bound>* bound,
                     Failure* failure) {
  const int64_t* const tensors = rows + segment->num_spaces;
  List<Seen> seen(segment->maps.size());
  for (size_t m = 0; m < seen.size(); ++m)
    if (!read_index(tensors + m, &seen[m])) return failure->at = static_cast<int64_t>(m), kNoIndex;
  return find_bound(segment, rows, seen, tensors, given, threads, bound, failure);
}

}  // namespace

// Runs a segment. `numbers` are the row counts, the implementations of the index tensors and of the values (reads, then
// writes), the address of the memory inside, the address and bytes of scratch memory, and, if `given`, records by map.
// `watch` may be null. Returns a `Status`.
extern "C" int64_t gw_segment_run(Segment* segment, const int64_t* numbers, int32_t given, int32_t threads,
                                  Failure* failure, Watch* watch) {
  *failure = Failure{-1, -1, 0, 0, 0, 0, 0};
  const int64_t* at = numbers + segment->num_spaces + segment->maps.size();
  const int64_t num_values = segment->num_reads + segment->num_writes;
  char* values[num_values + 1];
  for (int64_t v = 0; v < num_values; ++v, ++at) {
    void* data;
    bool contiguous = true;
    if (layout.data(at, &data) || (v < segment->num_reads && layout.contiguous(at, &contiguous)) || !contiguous)
      return failure->at = v, kGaps;
    values[v] = static_cast<char*>(data);
  }
  char *const inside = reinterpret_cast<char*>(at[0]), *const scratch = reinterpret_cast<char*>(at[1]);
  const int64_t nbytes = at[2];
  Ref<Bound> bound;
  RecordRef* const* const records_given = given ? reinterpret_cast<RecordRef* const*>(at + 3) : nullptr;
  const int64_t status = bind_segment(segment, numbers, records_given, threads, &bound, failure);
  if (status != kDone) return status;
  if (bound->scratch > nbytes) return failure->position = bound->scratch, kScratch;
  return run_bound(*segment, *bound, values, inside, scratch, threads, failure, watch);
}

// A segment on the one graph of a caller that has no tensors of PyTorch when it runs (JAX).
struct OnOneGraph {
  const Segment* segment;
  Ref<const Bound> bound;
};

// `numbers` are the row counts, the implementations of the index tensors, and, if `given`, records by map. The caller
// keeps the segment and the memory of its own indices until `gw_bound_free`. Returns a `Status`.
extern "C" int64_t gw_bound_new(Segment* segment, const int64_t* numbers, int32_t given, int32_t threads,
                                Failure* failure, OnOneGraph** made) {
  *failure = Failure{-1, -1, 0, 0, 0, 0, 0};
  const int64_t* const behind = numbers + segment->num_spaces + segment->maps.size();
  RecordRef* const* const records_given = given ? reinterpret_cast<RecordRef* const*>(behind) : nullptr;
  Ref<Bound> bound;
  const int64_t status = bind_segment(segment, numbers, records_given, threads, &bound, failure);
  if (status == kDone) *made = new OnOneGraph{segment, bound};
  return status;
}

extern "C" void gw_bound_free(OnOneGraph* of) { delete of; }

// The bytes that a run needs: of the values inside, followed by scratch memory.
extern "C" int64_t gw_bound_bytes(const OnOneGraph* of) { return of->bound->nbytes + of->bound->scratch; }

// Runs on `values`, what is read and then what is written. Returns -1, or the number of the kernel that had no memory.
extern "C" int64_t gw_bound_run(const OnOneGraph* of, char* const* values, char* inside, int32_t threads) {
  Failure failure{-1, -1, 0, 0, 0, 0, 0};
  run_bound(*of->segment, *of->bound, values, inside, inside + of->bound->nbytes, threads, &failure);
  return failure.at;
}
