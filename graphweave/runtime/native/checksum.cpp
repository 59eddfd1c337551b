// Checksums of a tensor's memory, which reveal edits that PyTorch has not seen.
//
// Memory is read in pieces of 256 bytes, or of 32 elements if these are not contiguous. Piece i belongs to part i %
// parts. Every part has its own sum, so that each check can read a single part, another one each time.

#include <graphweave/parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kPiece = 256;     // bytes
constexpr int64_t kElements = 32;   // number of elements of a piece that is not contiguous
constexpr int64_t kMostParts = 64;  // the largest number of parts
constexpr int64_t kStep = 29;  // odd, so that it visits each of 2^n parts; near parts are visited far apart in time
constexpr int64_t kSerialBytes = 1 << 18;  // in bytes; below this, threads do not pay off

}  // namespace

// The structure `_Sums` of unseen_edits.py. Strides are in bytes.
struct Sums {
  const char* data;
  int64_t item, rows, row_stride, cols, col_stride;
  int64_t parts;  // a power of two
  int64_t turn;   // number of checks so far
  uint64_t sums[kMostParts];
};

namespace {

// Mixes each word with its position, so that exchanging words changes the sum.
inline uint64_t mixed(uint64_t word, uint64_t position) {
  uint64_t x = word + position * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
  return x ^ (x >> 32);
}

uint64_t sum_of_bytes(const char* data, int64_t count, uint64_t position) {
  uint64_t sum = 0;
  int64_t at = 0;
  for (; at + 8 <= count; at += 8) {
    uint64_t word;
    std::memcpy(&word, data + at, 8);
    sum += mixed(word, position + static_cast<uint64_t>(at / 8));
  }
  if (at < count) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, static_cast<size_t>(count - at));
    sum += mixed(word, position + static_cast<uint64_t>(at / 8));
  }
  return sum;
}

uint64_t sum_of_elements(const char* data, int64_t item, int64_t stride, int64_t count, uint64_t position) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, data + i * stride, static_cast<size_t>(item));
    sum += mixed(word, position + static_cast<uint64_t>(i));
  }
  return sum;
}

struct Pieces {
  bool together;   // whether the elements of a row are contiguous
  int64_t length;  // of a row, in bytes if together, else in elements
  int64_t size;    // of a piece, in the same unit
  int64_t per_row;
  int64_t count;
};

Pieces pieces_of(const Sums& s) {
  const bool together = s.col_stride == s.item || s.cols == 1;
  const int64_t length = together ? s.cols * s.item : s.cols, size = together ? kPiece : kElements;
  const int64_t per_row = (length + size - 1) / size;
  return {together, length, size, per_row, per_row * s.rows};
}

uint64_t sum_of_piece(const Sums& s, const Pieces& p, int64_t piece) {
  const int64_t row = p.per_row == p.count ? 0 : piece / p.per_row, begin = (piece - row * p.per_row) * p.size;
  const int64_t count = std::min(p.size, p.length - begin);
  const char* from = s.data + row * s.row_stride;
  const uint64_t position = static_cast<uint64_t>(piece * kPiece);
  if (p.together) return sum_of_bytes(from + begin, count, position);
  return sum_of_elements(from + begin * s.col_stride, s.item, s.col_stride, count, position);
}

uint64_t sum_of_part(const Sums& s, const Pieces& p, int64_t which) {
  uint64_t sum = 0;
  for (int64_t piece = which; piece < p.count; piece += s.parts) sum += sum_of_piece(s, p, piece);
  return sum;
}

int32_t threads_for(const Sums& s, int32_t threads) {
  return s.rows * s.cols * s.item < kSerialBytes ? 1 : std::max<int32_t>(threads, 1);
}

}  // namespace

// Computes the sum of every part.
extern "C" void gw_sum(Sums* s, int32_t threads) {
  const Pieces p = pieces_of(*s);
  gw_parallel(s->parts, threads_for(*s, threads),
              [&](int64_t which, int32_t) { s->sums[which] = sum_of_part(*s, p, which); });
}

// The sum of all memory. Each thread reads memory that lies together.
extern "C" uint64_t gw_whole_sum(const Sums* s, int32_t threads) {
  const Pieces p = pieces_of(*s);
  const int32_t sharing = threads_for(*s, threads);
  uint64_t sum = 0;
  gw_parallel_ranges(p.count, p.count / sharing + 1, sharing, [&](int64_t first, int64_t last, int32_t) {
    uint64_t mine = 0;
    for (int64_t piece = first; piece < last; ++piece) mine += sum_of_piece(*s, p, piece);
    __atomic_fetch_add(&sum, mine, __ATOMIC_RELAXED);
  });
  return sum;
}

// Whether memory still has the sum of the part that is to be checked next.
extern "C" int32_t gw_next_is_same(Sums* s) {
  const int64_t which = (__atomic_fetch_add(&s->turn, 1, __ATOMIC_RELAXED) * kStep) & (s->parts - 1);
  return sum_of_part(*s, pieces_of(*s), which) == s->sums[which];
}
