// Orders of rows, and running sums over them, by the functions of the runtime.
//
// This text follows those of values.cpp, and of the runtime's orders.cpp and running_sums.cpp in namespaces of these names.

namespace {

// Keys of rows, one number a row each, as the runtime reads them.
struct Keys {
  List<Value> held;
  List<orders::Key> codes;

  Keys(Run& run, std::initializer_list<Value> keys, const bool* descending) {
    for (const Value& key : keys) {
      const bool half = key.dtype == GW_FLOAT16 || key.dtype == GW_BFLOAT16;
      held.push_back(half ? converted(run, key, GW_FLOAT32) : key);
    }
    for (size_t k = 0; k < held.size() && !run.failed; ++k) {
      constexpr orders::Kind kKinds[] = {orders::kF32, orders::kF64, orders::kI32, orders::kI64,
                                         orders::kI16, orders::kI8,  orders::kU8,  orders::kU8};
      const bool falls = descending && descending[k];
      codes.push_back(orders::Key{held[k].data, held[k].strides[0], kKinds[held[k].dtype], falls});
    }
  }

  // The rows by the first key, rows with equal ones by the second, and so on.
  Value order(Run& run) const {
    const int64_t count = held[0].sizes[0];
    Value made = empty(run, GW_INT64, &count, 1);
    if (!run.failed && orders::gw_order(codes.data(), static_cast<int64_t>(codes.size()), count,
                                        reinterpret_cast<int64_t*>(made.data), run.threads))
      run.fail(GW_NO_MEMORY, -1, "no memory to sort %lld rows", static_cast<long long>(count));
    return made;
  }
};

Value order_of(Run& run, std::initializer_list<Value> keys, std::initializer_list<bool> descending) {
  return Keys(run, keys, descending.begin()).order(run);
}

// The rows that differ in some key, in one list: how many there are, the place of each row among them, and their keys,
// key by key.
Value distinct_of(Run& run, std::initializer_list<Value> given) {
  const Keys keys(run, given, nullptr);
  const Value order = keys.order(run);
  if (run.failed) return order;
  const int64_t count = order.sizes[0], num_keys = static_cast<int64_t>(keys.held.size());
  const int64_t room[] = {1 + count * (1 + num_keys)};
  Value made = empty(run, GW_INT64, room), firsts = empty(run, GW_INT64, order.sizes, 1);
  if (run.failed) return made;
  auto* const out = reinterpret_cast<int64_t*>(made.data);
  out[0] = orders::gw_distinct(keys.codes.data(), num_keys, count, reinterpret_cast<const int64_t*>(order.data),
                               out + 1, reinterpret_cast<int64_t*>(firsts.data), run.threads);
  if (out[0] < 0) return run.fail(GW_NO_MEMORY, -1, "no memory to sort %lld rows", static_cast<long long>(count)), made;
  const Value first = sliced(firsts, 0, 0, out[0], 1);
  for (int64_t k = 0; k < num_keys && !run.failed; ++k) {
    const Value column =
        converted(run, rows_at(run, keys.held[static_cast<size_t>(k)], first, false, "rows"), GW_INT64);
    Value place = sliced(made, 0, 1 + count + k * out[0], 1 + count + (k + 1) * out[0], 1);
    if (!run.failed) copy_into(column, place);
  }
  return made;
}

int64_t count_of_distinct(const Value& x) { return x.data ? *reinterpret_cast<const int64_t*>(x.data) : 0; }

// The place of each row among the different ones, which have so many keys.
Value row_of_distinct(const Value& x, int64_t num_keys) {
  return sliced(x, 0, 1, 1 + (x.sizes[0] - 1) / (1 + num_keys), 1);
}

Value key_of_distinct(const Value& x, int64_t num_keys, int64_t key) {
  const int64_t begin = 1 + (x.sizes[0] - 1) / (1 + num_keys) + key * count_of_distinct(x);
  return sliced(x, 0, begin, begin + count_of_distinct(x), 1);
}

// The sum of each row and of all rows before it, or with `reverse` behind it.
Value running_sum(Run& run, const Value& given, bool reverse) {
  const Value x = dense(run, given);
  Value made = empty(run, x.dtype, x.sizes, x.dims);
  if (run.failed || numel_of(x) == 0) return made;
  const int64_t rows = x.sizes[0], width = numel_of(x) / rows;
  const auto add_up = [&](auto function, auto* numbers) {
    return function(numbers, reinterpret_cast<decltype(numbers)>(made.data), rows, width, reverse, run.threads);
  };
  const int32_t status = x.dtype == GW_FLOAT64 ? add_up(running_sums::gw_running_f64, reinterpret_cast<double*>(x.data))
                         : x.dtype == GW_FLOAT32
                             ? add_up(running_sums::gw_running_f32, reinterpret_cast<float*>(x.data))
                             : add_up(running_sums::gw_running_i64, reinterpret_cast<int64_t*>(x.data));
  if (status) run.fail(GW_NO_MEMORY, -1, "no memory for the sums of %lld rows", static_cast<long long>(rows));
  return made;
}

}  // namespace
