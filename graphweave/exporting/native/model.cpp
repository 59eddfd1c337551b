// An exported model behind the functions of the public header.
//
// This text follows those of the runtime's segments, of values.cpp, threads.cpp and weights.cpp, and of what is
// generated for the model: `kInputs`, `kOutputs` and `kWeights` with their counts, `kNumSegments`, `kNumKept`,
// `kNumSizes`, and `kSeed`, the position of the input that is a seed, or -1. Behind it follow the functions of each form, which are generated too, and interface.cpp.

namespace {
struct Form;
}

struct gw_model {
  List<Segment*> segments;
  List<Value> weights;
  List<Value> prepared;  // what the forms compute of the weights alone
  mutable Pool pool;

  ~gw_model() {
    for (Segment* const segment : segments) delete segment;
  }
};

// What depends on the graph alone: the sizes of the run that made it, values, and segments bound to the graph.
struct gw_graph {
  const Form* form = nullptr;
  int64_t sizes[kNumSizes + 1] = {};
  Value kept[kNumKept + 1];
  int64_t numbers[kNumKept + 1] = {};
  Ref<Bound> bound[kNumSegments + 1];
};

namespace {

// A run of the model. With `fills`, it makes what `graph` keeps; else it takes that from there, if there is one.
struct Followed : Run {
  const gw_model& model;
  gw_graph* graph;
  bool fills;
};

void expect_size(Run& run, int64_t size, int64_t expected, int32_t argument, int32_t dim) {
  if (size != expected)
    run.fail(GW_WRONG_ARGUMENT, argument, "%s: expected %lld in dim %d, by the other inputs (got %lld)",
             kInputs[argument].name, static_cast<long long>(expected), dim, static_cast<long long>(size));
}

GW_COLD void wrong_sizes(Run& run, const char* condition) {
  run.fail(GW_WRONG_ARGUMENT, -1, "the model was exported for sizes with %s", condition);
}

// A form of the model: programs of one model differ by the sizes that they are for.
struct Form {
  void (*make_segments)(gw_model& model);
  void (*prepare)(Run& run, const List<Value>& weights, List<Value>& prepared);
  void (*read_sizes)(Run& run, const Value* in, int64_t* sizes);
  void (*follow)(Followed& run, const Value* in, const int64_t* sizes, Value* made);
};

// Whether a segment could not be bound to a graph, which is told.
bool refused(Followed& run, int64_t status, const Failure& failure, const char* const* names, const Segment& segment,
             const int64_t* rows, const Value* indices) {
  const char* const name = failure.at >= 0 ? names[failure.at] : "";
  switch (status) {
    case kDone:
      return false;
    case kNotRow: {
      const auto& map = segment.maps[failure.at];
      const int64_t count = rows_of(rows, map.first), first = map.second ? -count : 0;
      const Value& index = indices[failure.at];
      const int64_t at = failure.position * index.strides[0];
      const int64_t value = index.dtype == GW_INT64 ? reinterpret_cast<const int64_t*>(index.data)[at]
                                                    : reinterpret_cast<const int32_t*>(index.data)[at];
      run.error->position = failure.position, run.error->value = value;
      run.error->first = first, run.error->behind = count;
      run.fail(GW_OUT_OF_RANGE, -1, "%s holds %lld at position %lld, expected %lld..%lld", name,
               static_cast<long long>(value), static_cast<long long>(failure.position), static_cast<long long>(first),
               static_cast<long long>(count - 1));
      return true;
    }
    case kUnequal:
      run.fail(GW_WRONG_ARGUMENT, -1, "%s and %s have different lengths. Give one value of each for every edge.", name,
               names[failure.position]);
      return true;
    case kTooMany:
      run.fail(GW_TOO_LARGE, -1, "more than 2^31 - 1 rows or edges. Divide the graph.");
      return true;
    case kWritten:
      run.fail(GW_WRONG_ARGUMENT, -1, "%s was written to while it was read", name);
      return true;
    default:
      run.fail(GW_NO_MEMORY, -1, "no memory for what is made of %s", *name ? name : "the graph");
      return true;
  }
}

Ref<Bound> bound_to(Followed& run, size_t at, const int64_t* rows, const Value* indices, const char* const* names) {
  if (run.graph && !run.fills) return run.graph->bound[at];
  Segment& segment = *run.model.segments[at];
  const size_t count = segment.maps.size();
  List<Seen> seen(count);
  List<RecordRef> records;
  List<RecordRef*> given;
  for (size_t m = 0; m < count; ++m) {
    const Value& index = indices[m];
    seen[m] = Seen{nullptr, nullptr, 0, index.data, index.sizes[0], index.strides[0], index.dtype == GW_INT64};
    RecordRef record;
    for (size_t n = 0; n < m && !record; ++n)
      if (seen[n] == seen[m] && segment.maps[n] == segment.maps[m]) record = records[n];
    records.push_back(record ? record
                             : new_record(seen[m], rows_of(rows, segment.maps[m].first), segment.maps[m].second));
  }
  for (RecordRef& record : records) given.push_back(&record);
  Failure failure{-1, -1, 0, 0, 0, 0, 0};
  Ref<Bound> bound;
  const int64_t status = find_bound(&segment, rows, seen, nullptr, given.data(), run.threads, &bound, &failure);
  if (refused(run, status, failure, names, segment, rows, indices)) return nullptr;
  if (run.graph) run.graph->bound[at] = bound;
  return bound;
}

// Runs the kernels of a segment. `values` are what is read and then what is written.
// Those that are read must have as many rows as are `expected`, or have none (-1).
void run_segment(Followed& run, size_t at, const int64_t* rows, const int64_t* expected, const Value* indices,
                 const char* const* names, Value* values) {
  if (run.failed) return;
  const Segment& segment = *run.model.segments[at];
  const Ref<Bound> bound = bound_to(run, at, rows, indices, names);
  if (run.failed) return;
  const size_t count = static_cast<size_t>(segment.num_reads + segment.num_writes);
  List<char*> places;
  for (size_t v = 0; v < count; ++v) {
    if (v < static_cast<size_t>(segment.num_reads)) {
      values[v] = dense(run, values[v]);
      if (expected[v] >= 0 && (values[v].dims == 0 || values[v].sizes[0] != expected[v]))
        return run.fail(GW_WRONG_ARGUMENT, -1, "a value has %lld rows where %lld are read. Give inputs that fit.",
                        static_cast<long long>(values[v].dims ? values[v].sizes[0] : 0),
                        static_cast<long long>(expected[v]));
    }
    places.push_back(values[v].data);
  }
  const Memory inside(bound->nbytes), scratch(bound->scratch);
  if (!inside.data || !scratch.data) run.fail(GW_NO_MEMORY, -1, "no memory for values between kernels");
  if (run.failed) return;
  Failure failure{-1, -1, 0, 0, 0, 0, 0};
  const int64_t status = run_bound(segment, *bound, places.data(), static_cast<char*>(inside.data),
                                   static_cast<char*>(scratch.data), run.threads, &failure);
  if (status != kDone) run.fail(GW_NO_MEMORY, -1, "no memory for a kernel");
}

// The value of an argument, with its size in each dim checked against the model's.
Value input_of(Run& run, const gw_tensor& given, int32_t at) {
  const gw_value_info& info = kInputs[at];
  Value made;
  if (given.dtype != info.dtype || given.ndim != info.ndim) {
    run.fail(GW_WRONG_ARGUMENT, at, "%s: expected %s with %d dims (got %s with %d)", info.name, name_of(info.dtype),
             info.ndim, name_of(given.dtype), given.ndim);
    return made;
  }
  if (given.ndim && !given.sizes) return run.fail(GW_WRONG_ARGUMENT, at, "%s: its sizes are NULL", info.name), made;
  for (int32_t d = 0; d < info.ndim; ++d)
    if (given.sizes[d] < 0 || (info.sizes[d] >= 0 && given.sizes[d] != info.sizes[d])) {
      run.fail(GW_WRONG_ARGUMENT, at, "%s: expected %lld in dim %d (got %lld)", info.name,
               static_cast<long long>(std::max<int64_t>(info.sizes[d], 0)), d, static_cast<long long>(given.sizes[d]));
      return made;
    }
  made = shaped(given.dtype, given.sizes, given.ndim);
  if (given.strides) std::copy(given.strides, given.strides + given.ndim, made.strides);
  made.data = static_cast<char*>(const_cast<void*>(given.data));
  if (!given.data && numel_of(made)) run.fail(GW_WRONG_ARGUMENT, at, "%s: its data is NULL", info.name);
  return made;
}

void give(Run& run, const Value& value, gw_output& output, int32_t at) {
  const int64_t nbytes = numel_of(value) * itemsize_of(value.dtype);
  output.dtype = value.dtype, output.ndim = value.dims;
  std::copy(value.sizes, value.sizes + value.dims, output.sizes);
  if (output.data && output.nbytes < nbytes)
    return run.fail(GW_TOO_SMALL, at, "%s needs %lld bytes (got %lld). Give that many, or NULL.", kOutputs[at].name,
                    static_cast<long long>(nbytes), static_cast<long long>(output.nbytes));
  if (!output.data) {
    output.data = std::malloc(static_cast<size_t>(std::max<int64_t>(nbytes, 1)));
    if (!output.data) return run.fail(GW_NO_MEMORY, at, "no memory for %s", kOutputs[at].name);
  }
  output.nbytes = nbytes;
  Value to = shaped(value.dtype, value.sizes, value.dims);
  to.data = static_cast<char*>(output.data);
  copy_into(value, to);
}

}  // namespace
