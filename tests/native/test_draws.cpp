// Choices are in range, repeat themselves for the same key and row, differ for others, and favour nobody.
#include <graphweave/draws.h>

#include <map>
#include <set>

#include "check.h"

namespace {

// Whether each of the counts lies within six standard deviations of the same expectation.
bool even(const std::vector<int64_t>& counts, int64_t total) {
  const double share = 1.0 / (double)counts.size();
  const double spread = std::sqrt((double)total * share * (1 - share));
  for (const int64_t count : counts)
    if (std::abs((double)count - (double)total * share) > 6 * spread) return false;
  return true;
}

void below() {
  std::vector<int64_t> counts(7);
  gw_draws draws{11, 3};
  for (int i = 0; i < 70000; ++i) {
    const int64_t drawn = draws.below(7);
    CHECK(0 <= drawn && drawn < 7, "%lld of 7", (long long)drawn);
    ++counts[drawn];
  }
  CHECK(even(counts, 70000), "seven numbers are drawn equally often");

  const int64_t most = std::numeric_limits<int64_t>::max();
  bool high = false;
  for (int i = 0; i < 64; ++i) {
    const int64_t drawn = draws.below(most);
    CHECK(0 <= drawn && drawn < most, "%lld", (long long)drawn);
    high = high || drawn > most / 2;
    CHECK(draws.below(1) == 0, "one number alone");
  }
  CHECK(high, "large ranges reach their upper half");
}

void keys() {
  gw_draws one{5, 9}, same{5, 9}, other_row{5, 10}, other_key{gw_folded(5, 1), 9};
  int rows = 0, drawn_alike = 0;
  for (int i = 0; i < 100; ++i) {
    const int64_t number = one.below(1 << 30);
    CHECK(number == same.below(1 << 30), "the same key and row draw the same");
    rows += number == other_row.below(1 << 30);
    drawn_alike += number == other_key.below(1 << 30);
  }
  CHECK(rows < 3 && drawn_alike < 3, "other rows and keys draw other numbers");
  CHECK(gw_folded(5, 1) != gw_folded(5, 2) && gw_folded(5, 1) != gw_folded(6, 1), "folded keys differ");
}

// Around 24 the set changes from a list to a table, and a set is used again for other numbers.
void sets() {
  gw_small_set seen;
  for (const int64_t most : {1, 24, 25, 1000, 3}) {
    seen.reset(most);
    for (int64_t i = 0; i < most; ++i) CHECK(seen.insert(i << 40), "%lld is new", (long long)i);
    for (int64_t i = 0; i < most; ++i) CHECK(!seen.insert(i << 40), "%lld is known", (long long)i);
  }
}

void chosen() {
  gw_small_set seen;
  for (const auto& [count, wanted] : {std::pair<int64_t, int64_t>{1, 1}, {5, 0}, {40, 40}, {1000, 24}, {1000, 900}}) {
    Numbers<int64_t> out(wanted);
    gw_draws draws{7, count};
    gw_choose(draws, seen, count, wanted, out.get());
    for (int64_t i = 0; i < wanted; ++i) {
      CHECK(0 <= out[i] && out[i] < count, "%lld of %lld", (long long)out[i], (long long)count);
      CHECK(i == 0 || out[i - 1] < out[i], "distinct and in rising order");
    }
  }

  std::map<std::set<int64_t>, int64_t> sets;
  for (int64_t row = 0; row < 40000; ++row) {
    int64_t out[3];
    gw_draws draws{13, row};
    gw_choose(draws, seen, 6, 3, out);
    ++sets[{out[0], out[1], out[2]}];
  }
  std::vector<int64_t> counts;
  for (const auto& [set, count] : sets) counts.push_back(count);
  CHECK(counts.size() == 20 && even(counts, 40000), "all twenty sets are chosen equally often");
}

}  // namespace

int main() {
  below();
  keys();
  sets();
  chosen();
}
