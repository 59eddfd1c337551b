// The state of tensors from which something was computed: whether they are still the same is told without Python.
//
// This text follows those of checksum.cpp, formats.cpp and records.cpp. Marks never change once they are made, except
// for the part of a checksum that is compared next, so any thread may compare.

namespace {

constexpr int64_t kMostDims = 8;
constexpr int64_t kWholeBytes = 32 << 10;  // the first of `_PARTS` in unseen_edits.py: such memory is read in whole

// What identifies the contents of a tensor of any shape, as long as an alias keeps its storage and counter.
struct Mark {
  const void* storage;
  const void* counter;
  int64_t version;
  const void* data;
  int64_t dim;
  int64_t dtype;
  int64_t sizes[kMostDims];
  int64_t strides[kMostDims];
};

bool read_mark(const void* tensor, Mark* mark) {
  *mark = Mark{};
  int32_t dtype;
  int64_t *sizes, *strides;
  void* data;
  if (layout.counter < 0 || layout.dim(tensor, &mark->dim) || mark->dim > kMostDims || layout.dtype(tensor, &dtype) ||
      layout.sizes(tensor, &sizes) || layout.strides(tensor, &strides) || layout.data(tensor, &data))
    return false;
  const char* const implementation = *static_cast<char* const*>(tensor);
  std::memcpy(&mark->storage, implementation + layout.storage, sizeof(void*));
  std::memcpy(&mark->counter, implementation + layout.counter, sizeof(void*));
  if (!mark->counter) return false;
  uint32_t version;
  std::memcpy(&version, static_cast<const char*>(mark->counter) + layout.version, sizeof version);
  mark->version = version;
  mark->data = data;
  mark->dtype = dtype;
  std::copy(sizes, sizes + mark->dim, mark->sizes);
  std::copy(strides, strides + mark->dim, mark->strides);
  return true;
}

// The rectangle of memory that a tensor covers, to be read in whole. False for one that covers none, or a large one.
bool rectangle(const Mark& mark, int64_t itemsize, Sums* out) {
  *out = Sums{};
  int64_t rows = 1, row_stride = 0, cols = 1, col_stride = 1, found = 0, before = std::numeric_limits<int64_t>::max();
  for (int64_t d = 0; d < mark.dim; ++d) {
    if (mark.sizes[d] == 0 || mark.strides[d] > before) return false;
    if (mark.sizes[d] == 1 || mark.strides[d] == 0) continue;
    before = mark.strides[d];
    if (found && col_stride == mark.sizes[d] * mark.strides[d]) {
      cols *= mark.sizes[d];
    } else {
      if (++found > 2) return false;
      rows = cols, row_stride = col_stride;
      cols = mark.sizes[d];
    }
    col_stride = mark.strides[d];
  }
  if (found < 2) rows = 1, row_stride = 0;
  if (itemsize > 8 || rows * cols * itemsize > kWholeBytes) return false;
  out->data = static_cast<const char*>(mark.data);
  out->item = itemsize;
  out->rows = rows, out->row_stride = row_stride * itemsize;
  out->cols = cols, out->col_stride = col_stride * itemsize;
  out->parts = 1;
  return true;
}

struct Marks {
  std::vector<bool> is_tensor;   // one for each input
  std::vector<int64_t> numbers;  // the inputs that are numbers
  std::vector<Mark> tensors;
  std::vector<Sums> own;    // of tensors that are read in whole
  std::vector<Sums*> sums;  // one for each tensor, or null
  std::vector<std::shared_ptr<void>> aliases;
  std::vector<std::pair<const void*, Mark>> results;  // implementations, which the caller keeps
  uint64_t edits = 0;
};

}  // namespace

// Marks of `count` inputs: implementations where `is_tensor`, else numbers. Tensors where `watched` must be small enough
// to be read in whole, with `itemsizes`; or `given` has an address of sums for each. A hash of what was read is written
// to `hash`. Null if there are none: a tensor without a version counter, or too large.
extern "C" Marks* gw_marks_new(const int64_t* inputs, int64_t count, const uint8_t* is_tensor, const uint8_t* watched,
                               const int64_t* itemsizes, Sums* const* given, uint64_t* hash) {
  auto made = std::make_unique<Marks>();
  made->own.reserve(static_cast<size_t>(count));
  *hash = 0;
  for (int64_t i = 0; i < count; ++i) {
    made->is_tensor.push_back(is_tensor[i] != 0);
    if (!is_tensor[i]) {
      made->numbers.push_back(inputs[i]);
      *hash = mixed(*hash, static_cast<uint64_t>(inputs[i]) + 1);
      continue;
    }
    Mark mark;
    if (!read_mark(inputs + i, &mark)) return nullptr;
    for (int64_t d = 0; d < mark.dim; ++d) *hash = mixed(*hash, static_cast<uint64_t>(mark.sizes[d]) + 1);
    Sums* sums = nullptr;
    if (given) {
      sums = given[made->tensors.size()];
    } else {
      int64_t numel = 1;
      for (int64_t d = 0; d < mark.dim; ++d) numel *= mark.sizes[d];
      made->own.emplace_back();
      if (numel) {
        sums = &made->own.back();
        if (!rectangle(mark, itemsizes[made->tensors.size()], sums)) return nullptr;
        gw_sum(sums, 1);
        *hash = mixed(*hash, sums->sums[0]);
      }
      if (!watched[i]) sums = nullptr;
    }
    auto alias = alias_of(inputs + i);
    if (!alias) return nullptr;
    made->tensors.push_back(mark);
    made->sums.push_back(sums);
    made->aliases.push_back(std::move(alias));
  }
  const std::lock_guard<std::mutex> held(*lock);
  made->edits = edits;
  return made.release();
}

extern "C" void gw_marks_free(Marks* marks) { delete marks; }

// Notes the state of what was computed, which the caller keeps. False for a tensor without a version counter.
extern "C" int32_t gw_marks_results(Marks* marks, const int64_t* tensors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    Mark mark;
    if (!read_mark(tensors + i, &mark)) return false;
    marks->results.emplace_back(reinterpret_cast<const void*>(tensors[i]), mark);
  }
  return true;
}

// 0 if these inputs are those that were marked, and neither they nor the results were edited; -1 if not. The number of
// a tensor, counted from 1, whose memory was edited in a way that PyTorch does not see.
extern "C" int64_t gw_marks_hold(const Marks* marks, const int64_t* inputs) {
  {
    const std::lock_guard<std::mutex> held(*lock);
    if (marks->edits != edits) return -1;
  }
  const auto is_same = [](const void* tensor, const Mark& mark) {
    Mark now;
    return read_mark(tensor, &now) && std::memcmp(&now, &mark, sizeof mark) == 0;
  };
  const int64_t* number = marks->numbers.data();
  const Mark* mark = marks->tensors.data();
  for (size_t i = 0; i < marks->is_tensor.size(); ++i)
    if (marks->is_tensor[i] ? !is_same(inputs + i, *mark++) : inputs[i] != *number++) return -1;
  for (const auto& [tensor, state] : marks->results)
    if (!is_same(&tensor, state)) return -1;
  for (size_t t = 0; t < marks->sums.size(); ++t)
    if (marks->sums[t] && !gw_next_is_same(marks->sums[t])) return static_cast<int64_t>(t) + 1;
  return 0;
}
