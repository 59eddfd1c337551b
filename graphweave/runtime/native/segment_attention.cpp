// Attention of rows to the rows of their own segment, of any number of heads, and its derivative.
//
// A task is one head of one segment. It takes a block of queries after the other: their scores with all keys of the
// segment stand in a buffer that stays in the cache, and become weights and then results there. So nothing of the size
// of all pairs is stored. The derivative computes the weights again from the logarithm of their sum.
//
// Numbers may be added to the scores: a tensor of numbers for all pairs of places, rows of a table that a code of each
// pair chooses, and numbers of the edges of a graph. Pairs may be hidden: another number then takes the place of their
// score. Weights may be dropped; which ones is a function of a seed.
//
// The text begins with three lines that say the type of the numbers (`Number`) and the widths of keys and values
// (`kKeys`, `kValues`), so that products are unrolled.

#include <graphweave/elementary.h>
#include <graphweave/folds.h>
#include <graphweave/lanes.h>
#include <graphweave/parallel.h>
#include <graphweave/products.h>
#include <graphweave/random.h>
#include <graphweave/transpose.h>

#include <algorithm>
#include <new>

namespace {

constexpr int kWidth = gw_bytes_of_vector / (int)sizeof(Number);
constexpr int64_t kBlockBytes = 16 << 10;  // of the scores of a block of queries
constexpr int64_t kMaxBlock = 32, kMinBlock = 4;
constexpr int64_t kTasksAtOnce = 8;  // that a thread takes from the loop
constexpr int kDrawn = 16;           // keys whose random numbers are drawn at once: 8 blocks of two words
typedef gw_vec<Number, kWidth> Lanes;

// Rows of one head: row i of head h begins at data + i * row + h * head, and its elements are contiguous.
struct Rows {
  Number* data;
  int64_t row, head;
  Number* of(int64_t first, int64_t h) const { return data + first * row + h * head; }
};

// One element for each segment, head, and pair of places of a query and a key; null where there are none.
template <class T>
struct OfPairs {
  T* data;
  int64_t segment, head, query, key;
  T* of(int64_t s, int64_t h, int64_t i) const { return data + s * segment + h * head + i * query; }
};

// Numbers for edges from queries to keys, [edges, heads], grouped by query; `numbers` is null without edges.
struct Edges {
  const int32_t* ends;   // row pointers of the queries
  const int32_t* keys;   // the key of the edge at each position
  const int32_t* order;  // the edge at each position; null if it has the same number
  const Number* numbers;
  Number* grad;  // null if it is not wanted
  int64_t edge(int64_t at) const { return order ? order[at] : at; }
};

struct Call {
  Rows q, k, v, out;
  Number* lse;  // [rows of q, heads]: the logarithm of the sum of the exponentials of a query's scores
  Rows grad, q_grad, k_grad, v_grad;
  const int64_t *q_ends, *k_ends;  // row pointers of the segments
  int64_t segments, heads;
  int64_t longest;  // segments of more keys are left to the caller
  double scale;
  OfPairs<const Number> bias;
  OfPairs<Number> bias_grad;
  OfPairs<const int64_t> codes;  // the rows of `table`, [rows_of_table, heads], that are added
  const Number* table;
  Number* table_grad;  // [parts, rows_of_table, heads], zeros at first
  int64_t rows_of_table;
  Edges edges;
  OfPairs<const bool> hidden;
  double fill;        // the scores of hidden pairs
  int64_t undefined;  // whether the weights of a query whose scores are all -inf are NaN, as by a softmax, and not 0
  int64_t parts;      // of the segments; a task is one head of the segments of a part
  int64_t seed;
  double dropped;                                                           // the share of weights that are dropped
  int64_t left;                                                             // set to 1 if an edge leaves its segment
  int64_t first_of(int64_t part) const { return part * segments / parts; }  // the first segment of a part
  bool has_terms() const { return bias.data || codes.data || edges.numbers || hidden.data; }
};

// Operand of a product: element k of row i is a[i * ai + k * ak], row k of the matrix is b + k * bk, row i of the
// result is out + i * oi.
struct Strided {
  Number* out;
  int64_t oi;
  const Number* a;
  int64_t ai, ak;
  const Number* b;
  int64_t bk;
  int64_t count;
  static constexpr bool streams = false;
  GW_INLINE_MEMBER Number left(int64_t i, int64_t k) const { return a[i * ai + k * ak]; }
  GW_INLINE_MEMBER const Number* right(int64_t k) const { return b + k * bk; }
  GW_INLINE_MEMBER Number* to(int64_t i) const { return out + i * oi; }
  GW_INLINE_MEMBER const Number* begun(int64_t i) const { return to(i); }
  GW_INLINE_MEMBER Strided below(int64_t i) const { return {out + i * oi, oi, a + i * ai, ai, ak, b, bk, count}; }
  GW_INLINE_MEMBER void ahead(int64_t, int64_t) const {}
};

// The product for `columns` columns, whole vectors of them.
GW_APART void score(const Strided& op, int64_t rows, int64_t columns) {
  constexpr int64_t most = gw_vectors * kWidth;
  int64_t at = 0;
  for (; at + most <= columns; at += most)
    gw_rows<gw_vectors, kWidth, Number>(op, rows, at, (gw_vectors - 1) * kWidth, false);
  switch ((columns - at) / kWidth) {
#define GW_COLUMNS(C)                                                                                         \
  case C:                                                                                                     \
    if constexpr (C < gw_vectors) gw_rows<C, kWidth, Number>(op, rows, at, (C - 1) * (int64_t)kWidth, false); \
    break;
    GW_COLUMNS(1) GW_COLUMNS(2) GW_COLUMNS(3)
#undef GW_COLUMNS
  }
}

template <int J>
GW_APART void weigh(const Strided& op, int64_t rows, bool add) {
  gw_product<J, Number>(op, rows, add);
}

// to[c * columns + i] = element c of row i; columns from `count` on are 0.
template <int J>
void transpose(Number* to, int64_t columns, const Number* from, int64_t stride, int64_t count) {
  constexpr int whole = J / 8 * 8;
  const int64_t rows = count / 8 * 8;
  for (int64_t i = 0; i < rows; i += 8)
    for (int c = 0; c < whole; c += 8) gw_transpose8(to + c * columns + i, columns, from + i * stride + c, stride);
  for (int c = 0; c < J; ++c) {
    Number* const row = to + c * columns;
    for (int64_t i = c < whole ? rows : 0; i < count; ++i) row[i] = from[i * stride + c];
    for (int64_t i = count; i < columns; ++i) row[i] = 0;
  }
}

// The sum of a[c] * b[c].
template <int J>
GW_INLINE Number dot(const Number* a, const Number* b) {
  Number sum = 0;
  gw_over<J, sizeof(Number)>([&](auto lanes, int64_t c) GW_BODY {
    constexpr int W = decltype(lanes)::lanes, K = decltype(lanes)::there;
    sum += gw_across(gw_load<W, K>(a + c) * gw_load<W, K>(b + c), gw_fold_sum());
  });
  return sum;
}

// Replaces scores by exp(scale * score - largest), 0 from `count` on, of which the largest exponential is 1 and which
// have this sum. Where all scores are -inf, all are 0, and `sum` is 1; or all are NaN, if they are `undefined`.
GW_INLINE void exponentials(Number* scores, int64_t count, int64_t columns, Number scale, bool undefined,
                            Number* largest, Number* sum) {
  std::fill(scores + count, scores + columns, scores[0]);  // which changes no maximum
  Lanes top = gw_const<Lanes>(-gw_infinity);
  for (int64_t c = 0; c < columns; c += kWidth) {
    const Lanes scaled = gw_load<kWidth>(scores + c) * gw_const<Lanes>(scale);
    gw_store<kWidth>(scores + c, scaled);
    top = gw_larger(top, scaled);
  }
  *largest = gw_across(top, gw_fold_max());
  const bool none = *largest == -gw_infinity && !undefined;
  if (none) *largest = 0;
  std::fill(scores + count, scores + columns, -gw_infinity);
  Lanes sums{};
  for (int64_t c = 0; c < columns; c += kWidth) {
    const Lanes e = gw_exp(gw_load<kWidth>(scores + c) - gw_const<Lanes>(*largest));
    gw_store<kWidth>(scores + c, e);
    sums = sums + e;
  }
  *sum = none ? 1 : gw_across(sums, gw_fold_sum());
}

// The memory of one task. `keys` and `values` are transposed.
struct Scratch {
  Number *keys, *values, *scores, *slopes;
};

struct Task {
  Call& call;
  int64_t segment, h, first, rows, key, count, columns, block;
  Number* table_grad;  // [rows_of_table, heads], of the part of the segment; null if it is not wanted
  Task(Call& c, int64_t s, int64_t head, int64_t part)
      : call(c),
        segment(s),
        h(head),
        first(c.q_ends[segment]),
        rows(c.q_ends[segment + 1] - first),
        key(c.k_ends[segment]),
        count(c.k_ends[segment + 1] - key),
        columns(padded(count)),
        block(block_of(columns)),
        table_grad(c.table_grad ? c.table_grad + part * c.rows_of_table * c.heads : nullptr) {}
  static int64_t padded(int64_t count) { return (count + kWidth - 1) / kWidth * kWidth; }
  static int64_t block_of(int64_t columns) {
    const int64_t fit = kBlockBytes / (int64_t)sizeof(Number) / std::max<int64_t>(columns, 1);
    return std::min(kMaxBlock, std::max(kMinBlock, fit));
  }
  bool left_out() const { return rows > 0 && count > call.longest; }

  // Scores of n queries from i on with all keys. They are scaled only where something is added to them.
  void find_scores(const Scratch& s, int64_t i, int64_t n) const {
    score({s.scores, columns, call.q.of(first + i, h), call.q.row, 1, s.keys, columns, kKeys}, n, columns);
    if (!call.has_terms()) return;
    multiply(s.scores, n * columns);
    for (int64_t r = 0; r < n; ++r) add_terms(i + r, s.scores + r * columns);
  }
  Number scale_left() const { return call.has_terms() ? 1 : (Number)call.scale; }

  void forward(const Scratch& s) const {
    if (count == 0) return forward_of_nothing();
    transpose<kKeys>(s.keys, columns, call.k.of(key, h), call.k.row, count);
    for (int64_t i = 0; i < rows; i += block) {
      const int64_t n = std::min(block, rows - i);
      Number largest[kMaxBlock], sums[kMaxBlock] = {};
      find_scores(s, i, n);
      for (int64_t r = 0; r < n; ++r)
        exponentials(s.scores + r * columns, count, columns, scale_left(), call.undefined, largest + r, sums + r);
      if (call.dropped > 0)
        for (int64_t r = 0; r < n; ++r) drop_weights(i + r, s.scores + r * columns);
      Number* const out = call.out.of(first + i, h);
      weigh<kValues>({out, call.out.row, s.scores, columns, 1, call.v.of(key, h), call.v.row, count}, n, false);
      for (int64_t r = 0; r < n; ++r) {
        const Number share = 1 / sums[r];
        for (int c = 0; c < kValues; ++c) out[r * call.out.row + c] *= share;
      }
      for (int64_t r = 0; r < n; r += kWidth) gw_store<kWidth>(sums + r, gw_log(gw_load<kWidth>(sums + r)));
      Number* const lse = call.lse + (first + i) * call.heads + h;
      for (int64_t r = 0; r < n; ++r) lse[r * call.heads] = largest[r] + sums[r];
    }
  }

  // With weights p, results o and their gradient g, the gradient of a score is p (m g v - g o), where m is what the
  // weight was multiplied with by dropout.
  void backward(const Scratch& s) const {
    if (count == 0) return fill_zeros<kKeys>(call.q_grad, first, rows);
    if (rows == 0) {
      fill_zeros<kKeys>(call.k_grad, key, count);
      return fill_zeros<kValues>(call.v_grad, key, count);
    }
    transpose<kKeys>(s.keys, columns, call.k.of(key, h), call.k.row, count);
    transpose<kValues>(s.values, columns, call.v.of(key, h), call.v.row, count);
    for (int64_t i = 0; i < rows; i += block) {
      const int64_t n = std::min(block, rows - i);
      const Number* const grad = call.grad.of(first + i, h);
      find_scores(s, i, n);
      score({s.slopes, columns, grad, call.grad.row, 1, s.values, columns, kValues}, n, columns);
      for (int64_t r = 0; r < n; ++r) find_slopes(s, i + r, s.scores + r * columns, s.slopes + r * columns);
      if (call.has_terms()) {
        for (int64_t r = 0; r < n; ++r) keep_slopes(i + r, s.slopes + r * columns);
        multiply(s.slopes, n * columns);
      }
      weigh<kKeys>(
          {call.q_grad.of(first + i, h), call.q_grad.row, s.slopes, columns, 1, call.k.of(key, h), call.k.row, count},
          n, false);
      weigh<kKeys>(
          {call.k_grad.of(key, h), call.k_grad.row, s.slopes, 1, columns, call.q.of(first + i, h), call.q.row, n},
          count, i > 0);
      weigh<kValues>({call.v_grad.of(key, h), call.v_grad.row, s.scores, 1, columns, grad, call.grad.row, n}, count,
                     i > 0);
    }
  }

private:
  // Replaces scores by weights, and products of the gradient with values by gradients of the scores, which are scaled
  // except where something was added to them.
  void find_slopes(const Scratch& s, int64_t i, Number* scores, Number* slopes) const {
    const Number lse = call.lse[(first + i) * call.heads + h];
    const Number *const out = call.out.of(first + i, h), *const grad = call.grad.of(first + i, h);
    const Lanes scale = gw_const<Lanes>(scale_left()), mean = gw_const<Lanes>(dot<kValues>(out, grad));
    over_kept_shares(i, [&](int64_t c, Lanes kept) GW_BODY {
      const Lanes weights = gw_exp(gw_load<kWidth>(scores + c) * scale - gw_const<Lanes>(lse));
      gw_store<kWidth>(scores + c, weights * kept);
      gw_store<kWidth>(slopes + c, weights * (gw_load<kWidth>(slopes + c) * kept - mean) * scale);
    });
    if (call.hidden.data) fill_hidden(i, slopes, 0);
  }

  void multiply(Number* numbers, int64_t count_of_them) const {
    for (int64_t c = 0; c < count_of_them; c += kWidth)
      gw_store<kWidth>(numbers + c, gw_load<kWidth>(numbers + c) * gw_const<Lanes>((Number)call.scale));
  }

  void add_terms(int64_t i, Number* scores) const {
    if (call.bias.data) {
      const Number* const bias = call.bias.of(segment, h, i);
      if (call.bias.key == 1)
        for (int64_t c = 0; c < count; ++c) scores[c] += bias[c];
      else
        for (int64_t c = 0; c < count; ++c) scores[c] += bias[c * call.bias.key];
    }
    if (call.codes.data) {
      const int64_t* const codes = call.codes.of(segment, h, i);
      for (int64_t c = 0; c < count; ++c) scores[c] += call.table[codes[c * call.codes.key] * call.heads + h];
    }
    over_edges(i, [&](int64_t c, int64_t at) { scores[c] += call.edges.numbers[at]; });
    if (call.hidden.data) fill_hidden(i, scores, (Number)call.fill);
  }

  void fill_hidden(int64_t i, Number* numbers, Number fill) const {
    const bool* const hidden = call.hidden.of(segment, h, i);
    for (int64_t c = 0; c < count; ++c) numbers[c] = hidden[c * call.hidden.key] ? fill : numbers[c];
  }

  // Keeps the gradients of what was added to the scores of query i.
  void keep_slopes(int64_t i, const Number* slopes) const {
    if (call.bias_grad.data) {
      Number* const grad = call.bias_grad.of(segment, h, i);
      for (int64_t c = 0; c < count; ++c) grad[c * call.bias_grad.key] += slopes[c];
    }
    if (table_grad) {
      const int64_t* const codes = call.codes.of(segment, h, i);
      for (int64_t c = 0; c < count; ++c) table_grad[codes[c * call.codes.key] * call.heads + h] += slopes[c];
    }
    if (call.edges.grad) over_edges(i, [&](int64_t c, int64_t at) { call.edges.grad[at] = slopes[c]; });
  }

  // Calls f(place of the key, place of the edge's number) for each edge of query i.
  template <class F>
  void over_edges(int64_t i, F f) const {
    const Edges& e = call.edges;
    if (e.numbers == nullptr) return;
    for (int64_t at = e.ends[first + i]; at < e.ends[first + i + 1]; ++at) {
      const int64_t c = e.keys[at] - key;
      if (c >= 0 && c < count)
        f(c, e.edge(at) * call.heads + h);
      else
        __atomic_store_n(&call.left, 1, __ATOMIC_RELAXED);
    }
  }

  void drop_weights(int64_t i, Number* weights) const {
    over_kept_shares(
        i, [&](int64_t c, Lanes kept) GW_BODY { gw_store<kWidth>(weights + c, gw_load<kWidth>(weights + c) * kept); });
  }

  // Calls f(c, shares) for each vector of keys: what the weights of query i and the keys from place c on are multiplied
  // with, 0 where they are dropped.
  template <class F>
  GW_INLINE_MEMBER void over_kept_shares(int64_t i, F f) const {
    if (call.dropped == 0) {
      for (int64_t c = 0; c < columns; c += kWidth) f(c, gw_const<Lanes>(1));
      return;
    }
    const Lanes limit = gw_const<Lanes>((Number)(call.dropped * (1 << 24)));
    const Lanes share = gw_const<Lanes>((Number)(1 / (1 - call.dropped)));
    for (int64_t begin = 0; begin < columns; begin += kDrawn) {
      alignas(64) Number drawn[kDrawn];
      draw(i, begin, drawn);
      for (int64_t c = begin; c < std::min(columns, begin + kDrawn); c += kWidth)
        f(c, gw_select(gw_load<kWidth>(drawn + c - begin) < limit, Lanes{}, share));
    }
  }

  // Random numbers of 24 bits for query i and the keys from `begin` on, a multiple of kDrawn. Key begin + j takes word
  // j / 8 of block j % 8, whatever the width of vectors; no segment has 2^24 keys.
  void draw(int64_t i, int64_t begin, Number* drawn) const {
    constexpr int W = gw_bytes_of_vector / (int)sizeof(int64_t), kBlocks = kDrawn / 2;
    typedef gw_vec<int64_t, W> Positions;
    alignas(64) int64_t steps[W];
    for (int lane = 0; lane < W; ++lane) steps[lane] = lane;
    const int64_t at = (((first + i) * call.heads + h) << 24) + begin / 2;
    for (int block = 0; block < kBlocks; block += W) {
      const auto words = gw_philox(call.seed, gw_load<W>(steps) + gw_const<Positions>(at + block));
      gw_store<W>(drawn + block, gw_converted<Number>(gw_converted<int32_t>(words.a >> 8)));
      gw_store<W>(drawn + kBlocks + block, gw_converted<Number>(gw_converted<int32_t>(words.b >> 8)));
    }
  }

  void forward_of_nothing() const {
    fill_zeros<kValues>(call.out, first, rows);
    for (int64_t i = first; i < first + rows; ++i) call.lse[i * call.heads + h] = -gw_infinity;
  }

  template <int J>
  void fill_zeros(const Rows& of, int64_t from, int64_t n) const {
    for (int64_t i = from; i < from + n; ++i) std::fill_n(of.of(i, h), J, Number(0));
  }
};

// Runs all tasks. False if there is no memory.
bool run(Call& call, bool backward, int32_t threads) {
  int64_t columns = 0, scores = 0;
  for (int64_t s = 0; s < call.segments; ++s) {
    const Task task(call, s, 0, 0);
    if (task.left_out() || task.rows == 0) continue;
    columns = std::max(columns, task.columns);
    scores = std::max(scores, task.columns * std::min(task.block, task.rows));
  }
  const int64_t size = Task::padded((kKeys + kValues) * columns + 2 * scores);
  auto* const memory =
      static_cast<Number*>(::operator new(size * threads * sizeof(Number), std::align_val_t(64), std::nothrow));
  if (memory == nullptr) return false;
  gw_parallel_ranges(call.parts * call.heads, kTasksAtOnce, threads, [&](int64_t begin, int64_t end, int32_t thread) {
    Number* const own = memory + thread * size;
    const Scratch s{own, own + kKeys * columns, own + (kKeys + kValues) * columns,
                    own + (kKeys + kValues) * columns + scores};
    for (int64_t t = begin; t < end; ++t) {
      const int64_t part = t / call.heads, last = call.first_of(part + 1);
      for (int64_t segment = call.first_of(part); segment < last; ++segment) {
        const Task task(call, segment, t % call.heads, part);
        if (task.left_out()) continue;
        if (backward)
          task.backward(s);
        else
          task.forward(s);
      }
    }
  });
  ::operator delete(memory, std::align_val_t(64));
  return true;
}

}  // namespace

extern "C" {

// 0 when done, 1 if there is no memory, 2 if an edge leaves its segment.
__attribute__((visibility("default"))) int32_t gw_attend(Call* call, int32_t backward, int32_t threads) {
  if (!run(*call, backward != 0, threads)) return 1;
  return call->left ? 2 : 0;
}
}
