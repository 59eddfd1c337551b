// Stable orders of rows by several keys, the rows that differ, and those that a mask chooses.
//
// An order is a radix sort: the numbers of the rows are sorted by one byte of a key after the other, from the last byte
// of the last key on. A byte that all rows have in common takes no pass, so a key of few values, such as the graph to
// which a node belongs, is one counting sort. No result depends on the number of threads.

#include <graphweave/parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace {

constexpr int64_t kSerial = 1 << 15;  // below this many rows other threads cost more than they save
constexpr int kMaxBlocks = 64;        // of rows, each with counts of its own
constexpr int kValues = 256;          // of a byte
constexpr int kBytes = 8;             // of a code

enum Kind : int32_t { kF64, kF32, kI64, kI32, kI16, kI8, kU8 };

struct Key {
  const void* data;
  int64_t stride;  // in elements
  int32_t kind;
  int32_t descending;
};

int64_t block_begin(int64_t count, int64_t block, int64_t blocks) {
  return static_cast<int64_t>(static_cast<__int128>(count) * block / blocks);
}

template <typename Body>
void in_blocks(int64_t count, int64_t blocks, int32_t threads, const Body& body) {
  gw_parallel(blocks, threads,
              [&](int64_t b, int32_t) { body(b, block_begin(count, b, blocks), block_begin(count, b + 1, blocks)); });
}

// Whole numbers in the order of the floats whose bits are given. Both zeros are equal, and so are all NaN, which are
// larger than any number.
template <typename Float, typename Bits>
uint64_t code_of_float(Float value) {
  constexpr Bits sign = Bits(1) << (sizeof(Bits) * 8 - 1);
  if (value != value) return Bits(~Bits(0));
  if (value == 0) return sign;
  Bits bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & sign ? Bits(~bits) : Bits(bits | sign);
}

template <typename Int, typename Bits>
uint64_t code_of_int(Int value) {
  return Bits(static_cast<Bits>(value) ^ (Bits(1) << (sizeof(Bits) * 8 - 1)));
}

// Calls body(code) with the function that gives the code of a row: codes are ordered as rows are.
template <typename Body>
void with_codes(const Key& key, const Body& body) {
  const uint64_t flip = key.descending ? ~uint64_t(0) : 0;
  const auto of = [&](auto zero, auto code) {
    const auto* const data = static_cast<const decltype(zero)*>(key.data);
    body([=, stride = key.stride](int64_t row) { return code(data[row * stride]) ^ flip; });
  };
  switch (key.kind) {
    case kF64:
      return of(double{}, [](double v) { return code_of_float<double, uint64_t>(v); });
    case kF32:
      return of(float{}, [](float v) { return code_of_float<float, uint32_t>(v); });
    case kI64:
      return of(int64_t{}, [](int64_t v) { return code_of_int<int64_t, uint64_t>(v); });
    case kI32:
      return of(int32_t{}, [](int32_t v) { return code_of_int<int32_t, uint32_t>(v); });
    case kI16:
      return of(int16_t{}, [](int16_t v) { return code_of_int<int16_t, uint16_t>(v); });
    case kI8:
      return of(int8_t{}, [](int8_t v) { return code_of_int<int8_t, uint8_t>(v); });
    default:
      return of(uint8_t{}, [](uint8_t v) { return uint64_t(v); });
  }
}

struct Rows {
  uint64_t* codes;
  int64_t* numbers;
};

struct Counts {
  int64_t of[kValues];
};

template <typename T>
struct Room {
  T* const data;  // null without memory

  explicit Room(int64_t count) : data(new (std::nothrow) T[count]) {}
  ~Room() { delete[] data; }
};

// Which bytes differ among `codes`; none if they are in order already.
uint64_t differing_bytes(const uint64_t* codes, int64_t count, int64_t blocks, int32_t threads) {
  uint64_t differing = 0;
  int32_t unordered = 0;
  in_blocks(count, blocks, threads, [&](int64_t, int64_t begin, int64_t end) {
    uint64_t mine = 0;
    bool rising = true;
    for (int64_t i = std::max<int64_t>(begin, 1); i < end; ++i) {
      mine |= codes[i] ^ codes[0];
      rising &= codes[i - 1] <= codes[i];
    }
    __atomic_fetch_or(&differing, mine, __ATOMIC_RELAXED);
    if (!rising) __atomic_store_n(&unordered, 1, __ATOMIC_RELAXED);
  });
  return unordered ? differing : 0;
}

// Sorts by the byte of each code that begins at bit `shift`. Rows with equal bytes keep their order.
void sort_by_byte(const Rows& from, const Rows& to, int64_t count, int shift, Counts* counts, int64_t blocks,
                  int32_t threads) {
  in_blocks(count, blocks, threads, [&](int64_t b, int64_t begin, int64_t end) {
    int64_t* const mine = counts[b].of;
    std::fill(mine, mine + kValues, 0);
    for (int64_t i = begin; i < end; ++i) ++mine[from.codes[i] >> shift & 0xff];
  });
  int64_t place = 0;
  for (int value = 0; value < kValues; ++value)
    for (int64_t b = 0; b < blocks; ++b) place += std::exchange(counts[b].of[value], place);
  in_blocks(count, blocks, threads, [&](int64_t b, int64_t begin, int64_t end) {
    int64_t* const next = counts[b].of;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = next[from.codes[i] >> shift & 0xff]++;
      to.codes[at] = from.codes[i];
      to.numbers[at] = from.numbers[i];
    }
  });
}

int64_t blocks_for(int64_t count, int32_t threads) {
  return count < kSerial ? 1 : std::clamp<int64_t>(threads, 1, kMaxBlocks);
}

}  // namespace

// out[p] = the row at place p, if rows are sorted by the first key, rows with equal ones by the second, and so on; rows
// with equal keys keep their order. Returns 0, or -1 without memory.
extern "C" int32_t gw_order(const Key* keys, int64_t num_keys, int64_t count, int64_t* out, int32_t threads) {
  const int64_t blocks = blocks_for(count, threads);
  const Room<uint64_t> codes(2 * count);
  const Room<int64_t> numbers(count);
  const Room<Counts> counts(blocks);
  if (!codes.data || !numbers.data || !counts.data) return -1;
  Rows now{codes.data, out}, next{codes.data + count, numbers.data};
  in_blocks(count, blocks, threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = i;
  });
  for (int64_t k = num_keys - 1; k >= 0; --k) {
    with_codes(keys[k], [&](const auto& code) {
      in_blocks(count, blocks, threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) now.codes[i] = code(now.numbers[i]);
      });
    });
    const uint64_t differing = differing_bytes(now.codes, count, blocks, threads);
    for (int byte = 0; byte < kBytes; ++byte) {
      if (!(differing >> (8 * byte) & 0xff)) continue;
      sort_by_byte(now, next, count, 8 * byte, counts.data, blocks, threads);
      std::swap(now, next);
    }
  }
  if (now.numbers != out) std::copy(now.numbers, now.numbers + count, out);
  return 0;
}

// Writes to ends[b], for each of `blocks` blocks of a mask, how many rows it chooses in that block and those before.
extern "C" void gw_count_chosen(const uint8_t* mask, int64_t count, int64_t* ends, int64_t blocks, int32_t threads) {
  in_blocks(count, blocks, threads, [&](int64_t b, int64_t begin, int64_t end) {
    int64_t chosen = 0;
    for (int64_t i = begin; i < end; ++i) chosen += mask[i];
    ends[b] = chosen;
  });
  for (int64_t b = 1; b < blocks; ++b) ends[b] += ends[b - 1];
}

// The rows that differ in some key, for rows in `order` (`gw_order`): rows[r] is the place of row r among them, and
// firsts[p] the first row at place p. Returns how many there are, or -1 without memory.
extern "C" int64_t gw_distinct(const Key* keys, int64_t num_keys, int64_t count, const int64_t* order, int64_t* rows,
                               int64_t* firsts, int32_t threads) {
  const int64_t blocks = blocks_for(count, threads);
  const Room<uint8_t> begins(count);
  const Room<int64_t> ends(blocks);
  if (!begins.data || !ends.data) return -1;
  std::fill(begins.data, begins.data + count, 0);
  for (int64_t k = 0; k < num_keys; ++k)
    with_codes(keys[k], [&](const auto& code) {
      in_blocks(count, blocks, threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) begins.data[i] |= i == 0 || code(order[i]) != code(order[i - 1]);
      });
    });
  gw_count_chosen(begins.data, count, ends.data, blocks, threads);
  in_blocks(count, blocks, threads, [&](int64_t b, int64_t begin, int64_t end) {
    int64_t next = b ? ends.data[b - 1] : 0;
    for (int64_t i = begin; i < end; ++i) {
      if (begins.data[i]) firsts[next++] = order[i];
      rows[order[i]] = next - 1;
    }
  });
  return ends.data[blocks - 1];
}

// Writes the rows that a mask chooses to `out`, in order. `ends` are those of `gw_count_chosen`.
extern "C" void gw_list_chosen(const uint8_t* mask, int64_t count, const int64_t* ends, int64_t* out, int64_t blocks,
                               int32_t threads) {
  in_blocks(count, blocks, threads, [&](int64_t b, int64_t begin, int64_t end) {
    int64_t at = b ? ends[b - 1] : 0;
    const int64_t last = ends[b];
    for (int64_t i = begin; i < end && at < last; ++i) {
      out[at] = i;  // overwritten unless the mask chooses it
      at += mask[i];
    }
  });
}
