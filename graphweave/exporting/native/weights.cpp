// The weights of an exported model, read from a safetensors file: 8 bytes with the length of a header, a header in JSON
// with the dtype, the shape and the place of each tensor, and the tensors.

namespace {

struct WeightInfo {
  const char* name;
  int32_t dtype, dims;
  int64_t sizes[GW_MAX_DIMS];
};

// Reads the JSON of a header, which has objects, lists, texts and whole numbers. `ok` becomes false at the first
// character that does not belong there.
struct Header {
  const char *at, *end;
  bool ok = true;

  void skip_blanks() {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) ++at;
  }
  bool take(char wanted) {
    skip_blanks();
    if (at < end && *at == wanted) return ++at, true;
    return false;
  }
  void expect(char wanted) { ok = ok && take(wanted); }

  // A text, of which names with escapes keep the character behind each backslash.
  List<char> text() {
    List<char> found;
    expect('"');
    while (ok && at < end && *at != '"') {
      if (*at == '\\' && ++at == end) break;
      found.push_back(*at++);
    }
    expect('"');
    found.push_back('\0');
    return found;
  }
  int64_t number() {
    skip_blanks();
    int64_t found = 0;
    const char* const first = at;
    for (; at < end && *at >= '0' && *at <= '9'; ++at)
      if (__builtin_mul_overflow(found, 10, &found) || __builtin_add_overflow(found, *at - '0', &found)) ok = false;
    ok = ok && at != first;
    return found;
  }
  List<int64_t> numbers() {
    List<int64_t> found;
    expect('[');
    if (take(']')) return found;
    do found.push_back(number());
    while (ok && take(','));
    expect(']');
    return found;
  }
  // Calls body(key) for each entry of an object; the body reads the value.
  template <typename Body>
  void each_entry(const Body& body) {
    expect('{');
    if (!ok || take('}')) return;
    do {
      const List<char> key = text();
      expect(':');
      if (ok) body(key.data());
    } while (ok && take(','));
    expect('}');
  }
};

int32_t dtype_named(const char* name) {
  static const char* const kNames[] = {"F32", "F64", "I32", "I64", "I16", "I8", "U8", "BOOL", "F16", "BF16"};
  for (int32_t dtype = 0; dtype < 10; ++dtype)
    if (std::strcmp(name, kNames[dtype]) == 0) return dtype;
  return -1;
}

struct Found {
  int32_t dtype = -1;
  List<int64_t> sizes, place;
};

Found read_entry(Header& header) {
  Found found;
  header.each_entry([&](const char* key) {
    if (std::strcmp(key, "dtype") == 0)
      found.dtype = dtype_named(header.text().data());
    else if (std::strcmp(key, "shape") == 0)
      found.sizes = header.numbers();
    else if (std::strcmp(key, "data_offsets") == 0)
      found.place = header.numbers();
    else
      header.ok = false;
  });
  return found;
}

// A whole file, or null.
Ref<Memory> read_file(const char* path) {
  std::FILE* const file = std::fopen(path, "rb");
  if (!file) return nullptr;
  Ref<Memory> made;
  if (std::fseek(file, 0, SEEK_END) == 0) {
    const long size = std::ftell(file);
    if (size >= 0 && std::fseek(file, 0, SEEK_SET) == 0) {
      made = shared<Memory>(static_cast<int64_t>(size));
      if (!made->data || std::fread(made->data, 1, static_cast<size_t>(size), file) != static_cast<size_t>(size))
        made = nullptr;
    }
  }
  std::fclose(file);
  return made;
}

// The weights `wanted` of a file, whose memory they keep.
List<Value> read_weights(Run& run, const char* path, const WeightInfo* wanted, int32_t count) {
  List<Value> made(static_cast<size_t>(count));
  List<bool> seen;
  for (int32_t i = 0; i < count; ++i) seen.push_back(false);
  const Ref<Memory> file = read_file(path);
  if (!file) return run.fail(GW_WRONG_FILE, -1, "%s cannot be read. Give the path of a safetensors file.", path), made;
  uint64_t length = 0;
  if (file->nbytes >= 8) std::memcpy(&length, file->data, 8);
  const char* const text = static_cast<const char*>(file->data) + 8;
  const bool whole = file->nbytes >= 8 && length <= static_cast<uint64_t>(file->nbytes - 8);
  Header header{text, text + (whole ? length : 0), whole};
  const char* const values = text + (whole ? length : 0);
  const int64_t nbytes = whole ? file->nbytes - 8 - static_cast<int64_t>(length) : 0;
  header.each_entry([&](const char* key) {
    if (std::strcmp(key, "__metadata__") == 0) return header.each_entry([&](const char*) { header.text(); });
    const Found found = read_entry(header);
    int32_t at = 0;
    while (at < count && std::strcmp(key, wanted[at].name) != 0) ++at;
    if (!header.ok || at == count) return;  // a weight that the model does not use
    const WeightInfo& info = wanted[at];
    Value value = shaped(info.dtype, info.sizes, info.dims);
    if (found.dtype != info.dtype || found.sizes.size() != static_cast<size_t>(info.dims) ||
        !std::equal(found.sizes.begin(), found.sizes.end(), info.sizes))
      return run.fail(GW_WRONG_FILE, -1, "%s: weight %s has another dtype or shape than the model's (%s, %d dims)",
                      path, key, name_of(info.dtype), info.dims);
    const int64_t size = numel_of(value) * itemsize_of(info.dtype);
    header.ok = found.place.size() == 2 && found.place[0] >= 0 && found.place[1] <= nbytes &&
                found.place[1] - found.place[0] == size;
    if (!header.ok) return;
    // A file need not keep to the alignment of its numbers.
    const bool fits = reinterpret_cast<uintptr_t>(values + found.place[0]) % 8 == 0;
    value.held = fits ? file : shared<Memory>(size);
    value.data = fits ? const_cast<char*>(values) + found.place[0] : static_cast<char*>(value.held->data);
    if (!value.data) return run.fail(GW_NO_MEMORY, -1, "no memory for the weights in %s", path);
    if (!fits) std::memcpy(value.data, values + found.place[0], static_cast<size_t>(size));
    made[at] = value, seen[at] = true;
  });
  if (!run.failed && !header.ok)
    run.fail(GW_WRONG_FILE, -1, "%s is not a whole safetensors file. Write it again.", path);
  for (int32_t i = 0; i < count && !run.failed; ++i)
    if (!seen[i]) run.fail(GW_WRONG_FILE, -1, "%s has no weight %s, which the model needs", path, wanted[i].name);
  return made;
}

}  // namespace
