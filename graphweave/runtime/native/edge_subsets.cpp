// Indices on some of the edges alone: those that one map sends to a row below a number.
//
// This text follows that of records.cpp; runtime/edge_subsets.py makes the same for the Python runner.

namespace {

constexpr size_t kSubsets = 16;  // of a record

// Drops the oldest of many, since limits may be others in each call. The caller holds the lock.
template <typename T, typename Dropped>
void keep_few(List<T>& of, Dropped dropped) {
  if (of.size() < kSubsets) return;
  dropped(of[0]);
  of.remove(of.begin());
}

// The edges that a map sends to a row below a number.
int64_t edges_below(const RecordRef& by, int64_t below, int32_t threads, Edges* out, Tally* tally) {
  {
    const Held held(lock);
    for (const Edges& edges : by->edges)
      if (edges.below == below) return *out = edges, kFine;
  }
  Ref<Csr> csr;
  if (const int64_t status = csr_of(by, false, threads, &csr, tally); status != kFine) return status;
  Edges made{below, static_cast<const int32_t*>(csr->indptr.data)[below], {}};
  if (!csr->found.sorted) {
    Array flat;
    if (const int64_t status = flat_of(by, false, threads, &flat, tally); status != kFine) return status;
    made.numbers = Array::of(made.count, 4);
    if (!made.numbers) return kNoMemory;
    const auto* const row = static_cast<const int32_t*>(flat.data);
    auto* const numbers = static_cast<int32_t*>(made.numbers.data);
    int64_t n = 0;
    for (int64_t e = 0; e < by->index.count && n < made.count; ++e)
      if (row[e] < below) numbers[n++] = static_cast<int32_t>(e);
    if (n != made.count) return kChanged;
  }
  const Held held(lock);
  keep_few(by->edges, [&](const Edges& old) { by->nbytes -= old.numbers ? old.count * 4 : 0; });
  by->edges.push_back(made);
  if (made.numbers) by->nbytes += made.count * 4;
  *out = made;
  return kFine;
}

// The index `of` on these edges alone.
int64_t subset_of(const RecordRef& by, const Edges& edges, const RecordRef& of, int32_t threads, RecordRef* out,
                  Tally* tally) {
  {
    const Held held(lock);
    for (const Subset& subset : by->subsets)
      if (subset.below == edges.below && subset.of.watches(of)) return *out = subset.rows, kFine;
  }
  auto made = shared<Record>();
  made->index = of->index;
  made->index.count = edges.count;
  if (edges.numbers) {
    Array flat;
    if (const int64_t status = flat_of(of, false, threads, &flat, tally); status != kFine) return status;
    made->values = Array::of(edges.count, 4);
    if (!made->values) return kNoMemory;
    const auto* const row = static_cast<const int32_t*>(flat.data);
    const auto* const numbers = static_cast<const int32_t*>(edges.numbers.data);
    auto* const values = static_cast<int32_t*>(made->values.data);
    for (int64_t n = 0; n < edges.count; ++n) values[n] = row[numbers[n]];
    made->index = Index{values, 1, edges.count, of->index.rows, false, false};
    made->own = true;
  }
  const Held held(lock);
  keep_few(by->subsets, [&](const Subset& old) { by->nbytes -= old.rows->own ? old.rows->index.count * 4 : 0; });
  by->subsets.push_back(Subset{Watcher<Record>(of), edges.below, made});
  if (edges.numbers) by->nbytes += edges.count * 4;
  *out = made;
  return kFine;
}

// The edge, counted among all edges, at each position of the CSR of a subset.
int64_t edges_at(const RecordRef& walked, const Edges& edges, int32_t threads, Array* out, Tally* tally) {
  if (const int64_t status = perm_of(walked, false, threads, out, tally); status != kFine || !edges.numbers)
    return status;
  Array made = Array::of(edges.count, 4);
  if (!made) return kNoMemory;
  const auto* const at = static_cast<const int32_t*>(out->data);
  const auto* const numbers = static_cast<const int32_t*>(edges.numbers.data);
  for (int64_t n = 0; n < edges.count; ++n) static_cast<int32_t*>(made.data)[n] = numbers[at[n]];
  *out = made;
  return kFine;
}

}  // namespace
