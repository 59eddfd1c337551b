// Attention of each query to all keys of its list and head, which PyTorch computes by one fused call.
//
// A task is a tile of queries of one head. It takes a panel of keys after the other. Their scores become weights relative
// to the largest score so far, and sums so far are scaled when a larger one comes (Milakov and Gimelshein, Online
// normalizer calculation for softmax, 2018). So nothing of the size of all pairs is stored.
//
// This text follows that of values.cpp.

#include <graphweave/elementary.h>
#include <graphweave/folds.h>
#include <graphweave/lanes.h>

namespace {

constexpr int64_t kQueries = 32;  // of a tile
constexpr int kPanel = 64;        // keys whose scores stand in memory at once

// One head of one list: rows with contiguous features. `mask` is added to scores; null where there is none.
template <typename T>
struct Head {
  const T *q, *k, *v, *mask;
  T* out;
  int64_t of_q, of_k, of_v, of_out;  // from row to row
  int64_t of_mask, of_mask_key;      // from query to query, and from key to key
  int64_t queries, keys, width, width_of_values;
  T scale;
};

// The memory of one task: transposed keys, some columns of values, scores, and for each group of J columns of the values
// the sums of all rows.
template <typename T>
struct PanelMemory {
  T *keys, *values, *scores, *sums;
  static int64_t size(int64_t width, int64_t columns) {
    return (width + kQueries) * kPanel + (kPanel + kQueries) * columns;
  }
  PanelMemory(T* at, int64_t width, int64_t columns)
      : keys(at), values(keys + width * kPanel), scores(values + kPanel * columns), sums(scores + kQueries * kPanel) {}
};

// Replaces the scores of a query by weights, and returns what older sums must be multiplied with.
template <typename T>
T weigh(T* scores, int64_t keys, T* largest, T* sum) {
  constexpr int kWidth = gw_bytes_of_vector / static_cast<int>(sizeof(T));
  typedef gw_vec<T, kWidth> Lanes;
  constexpr T kLowest = -static_cast<T>(__builtin_inff());
  std::fill(scores + keys, scores + kPanel, kLowest);
  Lanes top = gw_const<Lanes>(*largest);
  for (int c = 0; c < kPanel; c += kWidth) top = gw_larger(top, gw_load<kWidth>(scores + c));
  const T found = gw_across(top, gw_fold_max());
  if (found == kLowest) return std::fill(scores, scores + kPanel, T(0)), T(1);  // no key so far
  Lanes sums{};
  for (int c = 0; c < kPanel; c += kWidth) {
    const Lanes e = gw_exp(gw_load<kWidth>(scores + c) - gw_const<Lanes>(found));
    gw_store<kWidth>(scores + c, e);
    sums = sums + e;
  }
  const T older = std::exp(*largest - found);
  *largest = found, *sum = *sum * older + gw_across(sums, gw_fold_sum());
  return older;
}

template <int J, typename T>
void attend_tile(const Head<T>& head, int64_t first, int64_t rows, const PanelMemory<T>& memory) {
  T largest[kQueries], sum[kQueries] = {};
  std::fill(largest, largest + rows, -static_cast<T>(__builtin_inff()));
  const int64_t groups = (head.width_of_values + J - 1) / J;
  std::fill(memory.sums, memory.sums + groups * kQueries * J, T(0));
  for (int64_t begin = 0; begin < head.keys; begin += kPanel) {
    const int64_t keys = std::min<int64_t>(kPanel, head.keys - begin);
    std::fill(memory.keys, memory.keys + head.width * kPanel, T(0));
    for (int64_t c = 0; c < keys; ++c)
      for (int64_t d = 0; d < head.width; ++d) memory.keys[d * kPanel + c] = head.k[(begin + c) * head.of_k + d];
    const T* const q = head.q + first * head.of_q;
    gw_product<kPanel, T>(
        gw_plain<kPanel, T>{memory.scores, q, head.of_q, 1, memory.keys, head.width, memory.scores, false}, rows,
        false);
    T older[kQueries];
    for (int64_t r = 0; r < rows; ++r) {
      T* const scores = memory.scores + r * kPanel;
      for (int64_t c = 0; c < keys; ++c) scores[c] *= head.scale;
      if (head.mask) {
        const T* const added = head.mask + (first + r) * head.of_mask + begin * head.of_mask_key;
        for (int64_t c = 0; c < keys; ++c) scores[c] += added[c * head.of_mask_key];
      }
      older[r] = weigh(scores, keys, largest + r, sum + r);
    }
    for (int64_t g = 0; g < groups; ++g) {
      T* const sums = memory.sums + g * kQueries * J;
      const int64_t columns = std::min<int64_t>(J, head.width_of_values - g * J);
      std::fill(memory.values, memory.values + kPanel * J, T(0));
      for (int64_t c = 0; c < keys; ++c)
        std::memcpy(memory.values + c * J, head.v + (begin + c) * head.of_v + g * J,
                    static_cast<size_t>(columns) * sizeof(T));
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < J; ++j) sums[r * J + j] *= older[r];
      gw_product<J, T>(gw_plain<J, T>{sums, memory.scores, kPanel, 1, memory.values, keys, sums, false}, rows, true);
    }
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < head.width_of_values; ++j)
      head.out[(first + r) * head.of_out + j] =
          sum[r] == 0 ? T(0) : memory.sums[(j / J * kQueries + r) * J + j % J] / sum[r];
}

template <int J, typename T>
void attend(Run& run, const Value& q, const Value& k, const Value& v, const Value& mask, double scale, Value& made) {
  const int64_t heads = q.sizes[1], queries = q.sizes[2], width = q.sizes[3], of_values = v.sizes[3];
  const int64_t tiles = (queries + kQueries - 1) / kQueries, columns = (of_values + J - 1) / J * J;
  const int64_t size = PanelMemory<T>::size(width, columns), threads = std::max<int32_t>(run.threads, 1);
  const Memory memory(size * threads * static_cast<int64_t>(sizeof(T)));
  if (!memory.data) return run.fail(GW_NO_MEMORY, -1, "no memory for the scores of an attention");
  const auto place = [](const Value& x, int64_t list, int64_t head) {
    return reinterpret_cast<T*>(x.data) + list * x.strides[0] + head * x.strides[1];
  };
  gw_parallel_ranges(q.sizes[0] * heads * tiles, 1, run.threads, [&](int64_t begin, int64_t end, int32_t thread) {
    const PanelMemory<T> own(static_cast<T*>(memory.data) + thread * size, width, columns);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tile = task % tiles, h = task / tiles % heads, list = task / tiles / heads, first = tile * kQueries;
      const Head<T> head{place(q, list, h),
                         place(k, list, h),
                         place(v, list, h),
                         mask.data ? place(mask, list, h) : nullptr,
                         place(made, list, h),
                         q.strides[2],
                         k.strides[2],
                         v.strides[2],
                         made.strides[2],
                         mask.strides[2],
                         mask.strides[3],
                         queries,
                         k.sizes[2],
                         width,
                         of_values,
                         static_cast<T>(scale)};
      attend_tile<J, T>(head, first, std::min(kQueries, queries - first), own);
    }
  });
}

// A value of lists, heads, rows and features, whose features are contiguous.
Value with_rows_of_features(Run& run, const Value& x) {
  return x.strides[3] == 1 || x.sizes[3] == 1 ? x : dense(run, x);
}

// The weighted sum of values for each query; 0 where a mask leaves no key. A mask without data adds nothing.
Value attended(Run& run, const Value& q, const Value& k, const Value& v, const Value& mask, double scale) {
  if (is_half(q.dtype))
    return converted(
        run,
        attended(run, widened(run, q), widened(run, k), widened(run, v), mask.data ? widened(run, mask) : mask, scale),
        q.dtype);
  const int64_t sizes[] = {q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]};
  const int64_t pairs[] = {q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]};
  if (!std::equal(k.sizes, k.sizes + 2, q.sizes) || !std::equal(v.sizes, v.sizes + 2, q.sizes) ||
      k.sizes[2] != v.sizes[2] || k.sizes[3] != q.sizes[3])
    run.fail(GW_WRONG_ARGUMENT, -1, "queries, keys and values of an attention differ in sizes. Give inputs that fit.");
  Value made = empty(run, q.dtype, sizes), added = mask;
  if (mask.data) {
    for (int32_t d = 0; d < mask.dims && !run.failed; ++d) {
      const int64_t size = mask.sizes[d], wanted = pairs[4 - mask.dims + d];
      if (size != 1 && size != wanted)
        run.fail(GW_WRONG_ARGUMENT, -1, "the mask of an attention does not fit its pairs");
    }
    added = expanded(mask, pairs, 4);
  }
  const Value rows_of_q = with_rows_of_features(run, q), rows_of_k = with_rows_of_features(run, k),
              rows_of_v = with_rows_of_features(run, v);
  if (run.failed || numel_of(made) == 0) return made;
  const auto compute = [&](auto of) {
    typedef decltype(of) T;
    constexpr int kNarrow = 64 / static_cast<int>(sizeof(T));
    v.sizes[3] > kNarrow ? attend<4 * kNarrow, T>(run, rows_of_q, rows_of_k, rows_of_v, added, scale, made)
                         : attend<kNarrow, T>(run, rows_of_q, rows_of_k, rows_of_v, added, scale, made);
  };
  q.dtype == GW_FLOAT64 ? compute(double()) : compute(float());
  return made;
}

}  // namespace
