// Orders of rows, and running sums over them, by the functions of the runtime.
//
// This text follows those of values.cpp, and of the runtime's orders.cpp and running_sums.cpp in namespaces of these names.

namespace {

// The rows by the first key, rows with equal ones by the second, and so on. Keys have one number a row.
Value order_of(Run& run, std::initializer_list<Value> keys, std::initializer_list<bool> descending) {
  List<Value> held;
  List<orders::Key> codes;
  for (const Value& key : keys) {
    const bool half = key.dtype == GW_FLOAT16 || key.dtype == GW_BFLOAT16;
    held.push_back(half ? converted(run, key, GW_FLOAT32) : key);
  }
  if (run.failed) return Value();
  for (size_t k = 0; k < held.size(); ++k) {
    constexpr orders::Kind kKinds[] = {orders::kF32, orders::kF64, orders::kI32, orders::kI64,
                                       orders::kI16, orders::kI8,  orders::kU8,  orders::kU8};
    codes.push_back(orders::Key{held[k].data, held[k].strides[0], kKinds[held[k].dtype], descending.begin()[k]});
  }
  const int64_t count = held[0].sizes[0];
  Value made = empty(run, GW_INT64, &count, 1);
  if (!run.failed && orders::gw_order(codes.data(), static_cast<int64_t>(codes.size()), count,
                                      reinterpret_cast<int64_t*>(made.data), run.threads))
    run.fail(GW_NO_MEMORY, -1, "no memory to sort %lld rows", static_cast<long long>(count));
  return made;
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
