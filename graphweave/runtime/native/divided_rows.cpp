// The kernels of divided rows, which run after the kernel that leaves these rows out (see lower/divide.py).
//
// This text follows that of row_pieces.cpp.

namespace {

typedef int32_t Kernel(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                       int32_t num_threads);

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

// Reads numbers that Python has packed: a list is preceded by its length.
struct Reader {
  const int64_t* at;
  int64_t next() { return *at++; }
  template <typename Body>
  void each(Body body) {
    for (int64_t n = next(); n > 0; --n) body();
  }
  List<int64_t> list() {
    List<int64_t> out;
    each([&] { out.push_back(next()); });
    return out;
  }
};

// The kernels of one step. Their numbers come from `DividedRows.numbers` in execute/cpp_divided.py.
struct Divided {
  enum Over : int64_t { pieces, slots, edges };

  struct Scratch {
    int64_t over, nbytes;  // rows, and bytes of one
  };

  struct Total {
    enum Type : int64_t { f64, f32, i64, i32, i16, i8, u8, boolean } type;
    enum Fold : int64_t { sum, mul, max, min } fold;
    int64_t given, count;  // position among the arguments of the step's kernel, and numbers of it

    int64_t nbytes() const {
      constexpr int64_t kBytes[] = {8, 4, 8, 4, 2, 1, 1, 1};
      return count * kBytes[type];
    }
  };

  struct Pointer {
    enum Kind : int64_t { given, table, scratch, total } kind;
    int64_t at;
  };

  struct One {
    Kernel* kernel;
    int64_t over, num_sizes;
    List<int64_t> totals;
    List<Pointer> pointers;
  };

  int64_t most_chunks;
  List<Scratch> scratch;
  List<Total> totals;
  List<One> kernels;
};

Divided make_divided(Reader from) {
  Divided made;
  made.most_chunks = from.next();
  from.each([&] {
    const int64_t over = from.next();
    made.scratch.push_back({over, from.next()});
  });
  from.each([&] {
    const auto type = static_cast<Divided::Total::Type>(from.next());
    const auto fold = static_cast<Divided::Total::Fold>(from.next());
    const int64_t given = from.next();
    made.totals.push_back({type, fold, given, from.next()});
  });
  from.each([&] {
    Divided::One& one = made.kernels.emplace_back();
    one.kernel = reinterpret_cast<Kernel*>(from.next());
    one.over = from.next(), one.num_sizes = from.next();
    one.totals = from.list();
    from.each([&] {
      const auto kind = static_cast<Divided::Pointer::Kind>(from.next());
      one.pointers.push_back({kind, from.next()});
    });
  });
  return made;
}

// Adds up as PyTorch does: numbers wrap, and NaN is larger and smaller than any number.
template <typename T>
T fold_two(Divided::Total::Fold fold, T a, T b) {
  typedef std::conditional_t<std::is_floating_point_v<T>, T, uint64_t> Wide;
  switch (fold) {
    case Divided::Total::sum:
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    case Divided::Total::mul:
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    case Divided::Total::max:
      return a != a || a > b ? a : b;
    default:
      return a != a || a < b ? a : b;
  }
}

template <typename T>
void fold_into(const Divided::Total& total, void* into, const void* part) {
  auto* const out = static_cast<T*>(into);
  const auto* const more = static_cast<const T*>(part);
  for (int64_t i = 0; i < total.count; ++i) out[i] = fold_two(total.fold, out[i], more[i]);
}

void fold_total(const Divided::Total& total, void* into, const void* part) {
  switch (total.type) {
    case Divided::Total::f64:
      return fold_into<double>(total, into, part);
    case Divided::Total::f32:
      return fold_into<float>(total, into, part);
    case Divided::Total::i64:
      return fold_into<int64_t>(total, into, part);
    case Divided::Total::i32:
      return fold_into<int32_t>(total, into, part);
    case Divided::Total::i16:
      return fold_into<int16_t>(total, into, part);
    case Divided::Total::i8:
      return fold_into<int8_t>(total, into, part);
    case Divided::Total::u8:
      return fold_into<uint8_t>(total, into, part);
    case Divided::Total::boolean:
      return fold_into<bool>(total, into, part);
  }
}

// The kernels on one graph: what they read of it, and where their scratch memory begins.
struct BoundDivided {
  Ref<const Divided> kernels;
  PieceTables tables;
  List<int64_t> chunks[2];  // of pieces and of slots
  List<int64_t> scratch, parts;
  int64_t nbytes = 0;

  BoundDivided(Ref<const Divided> of, const PieceTables& on) : kernels(std::move(of)), tables(on) {
    const int64_t rows[] = {tables.num_pieces, tables.num_slots, tables.num_edges};
    for (int over = 0; over < 2; ++over) {  // as `uniform_chunks` and `equal_rows` make them
      const int64_t count = std::max<int64_t>(1, std::min(rows[over], kernels->most_chunks));
      for (int64_t c = 0; c <= count; ++c) chunks[over].push_back(rows[over] * c / count);
    }
    const auto place = [&](List<int64_t>& at, int64_t size) {
      at.push_back(nbytes);
      nbytes += aligned(size);
    };
    for (const auto& one : kernels->scratch) place(scratch, rows[one.over] * one.nbytes);
    for (const auto& total : kernels->totals) place(parts, total.nbytes());
  }

  // `given` are the arguments of the kernel that has left these rows out. False if a kernel had no memory.
  bool run(void* const* given, char* memory, int32_t threads) const {
    for (const Divided::One& one : kernels->kernels) {
      void* ptrs[one.pointers.size() + 1];
      for (size_t i = 0; i < one.pointers.size(); ++i) {
        const Divided::Pointer& p = one.pointers[i];
        ptrs[i] = p.kind == Divided::Pointer::given     ? given[p.at]
                  : p.kind == Divided::Pointer::table   ? tables.of[p.at]
                  : p.kind == Divided::Pointer::scratch ? memory + scratch[p.at]
                                                        : memory + parts[p.at];
      }
      // These kernels read only the first size. They have no stashes, which would need the largest degrees.
      List<int64_t> sizes(static_cast<size_t>(one.num_sizes));
      sizes[0] = one.over == Divided::pieces ? tables.num_pieces : tables.num_slots;
      const auto& bounds = chunks[one.over];
      if (one.kernel(ptrs, sizes.data(), bounds.data(), static_cast<int64_t>(bounds.size()) - 1, threads)) return false;
      for (const int64_t total : one.totals) {
        const Divided::Total& of = kernels->totals[total];
        fold_total(of, given[of.given], memory + parts[total]);
      }
    }
    return true;
  }
};

}  // namespace
