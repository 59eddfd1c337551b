// The state of tensors from which something was computed: whether they are still the same is told without Python.
//
// This text follows those of checksum.cpp, formats.cpp and records.cpp. Any thread may compare: marks do not change once
// they are made, except for the part of a checksum that is compared next and the count of edits.

namespace {

constexpr int64_t kMostDims = 8;
constexpr int64_t kWholeBytes = 32 << 10;  // the first two of `_PARTS` in unseen_edits.py: memory that each check reads
constexpr int64_t kSmallBytes = 256 << 10;  // in whole, and the largest of which it reads one part in four

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
  int32_t dtype, device;
  int64_t *sizes, *strides;
  void* data;
  if (layout.device(tensor, &device) || device != layout.cpu || layout.dim(tensor, &mark->dim) ||
      mark->dim > kMostDims || layout.dtype(tensor, &dtype) || layout.sizes(tensor, &sizes) ||
      layout.strides(tensor, &strides) || layout.data(tensor, &data))
    return false;
  read_place(tensor, &mark->storage, &mark->counter, &mark->version);
  if (!mark->counter) return false;
  mark->data = data;
  mark->dtype = dtype;
  std::copy(sizes, sizes + mark->dim, mark->sizes);
  std::copy(strides, strides + mark->dim, mark->strides);
  return true;
}

// The rectangle of memory that a tensor covers. False for one that covers none, or a large one.
bool rectangle(const Mark& mark, int64_t itemsize, Sums* out) {
  *out = Sums{};
  int64_t rows = 1, row_stride = 0, cols = 1, col_stride = 1, found = 0, before = INT64_MAX;
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
  if (itemsize > 8 || rows * cols * itemsize > kSmallBytes) return false;
  out->data = static_cast<const char*>(mark.data);
  out->item = itemsize;
  out->rows = rows, out->row_stride = row_stride * itemsize;
  out->cols = cols, out->col_stride = col_stride * itemsize;
  out->parts = rows * cols * itemsize > kWholeBytes ? 4 : 1;
  return true;
}

struct Result {
  const void* tensor;  // its implementation, which the caller keeps
  Mark mark;
};

struct Marks {
  List<bool> is_tensor;   // one for each input
  List<int64_t> numbers;  // the inputs that are numbers
  List<Mark> tensors;
  List<Sums> own;    // of small tensors
  List<Sums*> sums;  // one for each tensor, or null
  List<Ref<Alias>> aliases;
  List<Result> results;
  uint64_t edits = 0;
};

}  // namespace

// What the calls of one program have in common, and hashes of the small inputs that it has had lately.
struct Inputs {
  List<bool> is_tensor, watched;  // one for each input
  List<int64_t> itemsizes;        // one for each tensor
  uint64_t seen[kOnce] = {};
  size_t next = 0;
  Sharing sharing;
};

extern "C" Inputs* gw_inputs_new(int64_t count, const uint8_t* is_tensor, const uint8_t* watched,
                                 const int64_t* itemsizes) {
  auto* const made = new Inputs;
  for (int64_t i = 0; i < count; ++i) {
    made->is_tensor.push_back(is_tensor[i] != 0);
    made->watched.push_back(watched[i] != 0);
    if (is_tensor[i]) made->itemsizes.push_back(*itemsizes++);
  }
  return made;
}

extern "C" void gw_inputs_free(Inputs* inputs) { delete inputs; }

// What others had kept for inputs that were seen before was found.
extern "C" void gw_inputs_found(Inputs* inputs) {
  const Held held(lock);
  inputs->sharing.found();
}

namespace {

// Reads all of a small tensor, and mixes what it reads into the hash. False for a large one.
bool read_whole(const Mark& mark, int64_t itemsize, List<Sums>* own, Sums** sums, uint64_t* hash) {
  int64_t numel = 1;
  for (int64_t d = 0; d < mark.dim; ++d) {
    numel *= mark.sizes[d];
    *hash = mixed(*hash, static_cast<uint64_t>(mark.sizes[d]) + 1);
  }
  own->emplace_back();
  if (!numel) return true;
  *sums = &own->back();
  if (!rectangle(mark, itemsize, *sums)) return false;
  gw_sum(*sums, 1);
  for (int64_t part = 0; part < (*sums)->parts; ++part) *hash = mixed(*hash, (*sums)->sums[part]);
  (*sums)->turn = static_cast<int64_t>(*hash & 0xFFFF);  // the part that is compared first
  return true;
}

}  // namespace

// Marks of inputs: implementations of tensors, and numbers. Without `given`, only of small ones whose like was not seen
// lately, or that are not worth sharing; with it, an address of sums for each tensor, or 0. With `look`, those that are watched are compared with their
// sums. Null for other inputs, and for a tensor without a version counter or elsewhere than on the CPU.
extern "C" Marks* gw_marks_new(Inputs* of, const int64_t* inputs, Sums* const* given, int32_t look) {
  Ref<Marks> made = shared<Marks>();
  made->is_tensor = of->is_tensor;
  made->own.reserve(of->itemsizes.size());
  uint64_t hash = 1;
  for (size_t i = 0; i < of->is_tensor.size(); ++i) {
    if (!of->is_tensor[i]) {
      made->numbers.push_back(inputs[i]);
      hash = mixed(hash, static_cast<uint64_t>(inputs[i]) + 1);
      continue;
    }
    const size_t tensor = made->tensors.size();
    Mark mark;
    if (!read_mark(inputs + i, &mark)) return nullptr;
    Sums* sums = nullptr;
    if (given)
      sums = given[tensor];
    else if (!read_whole(mark, of->itemsizes[tensor], &made->own, &sums, &hash))
      return nullptr;
    made->tensors.push_back(mark);
    made->sums.push_back(look && of->watched[i] ? sums : nullptr);
  }
  {
    const Held held(lock);
    made->edits = edited.count;
    if (!given) {
      if (std::find(of->seen, of->seen + kOnce, hash) != of->seen + kOnce && of->sharing.pays()) return nullptr;
      of->seen[of->next++ % kOnce] = hash;
    }
  }
  for (size_t i = 0; i < of->is_tensor.size(); ++i)
    if (of->is_tensor[i]) {
      made->aliases.push_back(alias_of(inputs + i));
      if (!made->aliases.back()) return nullptr;
    }
  return made.release();
}

extern "C" void gw_marks_free(Marks* marks) { Ref<Marks> freed(marks); }

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
extern "C" int64_t gw_marks_hold(Marks* marks, const int64_t* inputs) {
  {
    const Held held(lock);
    const auto uses = [&](const void* storage) {
      const auto in = [&](const Mark& mark) { return mark.storage == storage; };
      return std::any_of(marks->tensors.begin(), marks->tensors.end(), in);
    };
    if (!is_unedited(&marks->edits, uses)) return -1;
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
