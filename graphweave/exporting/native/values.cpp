// Values of an exported model, and the calls between its kernels.
//
// This text follows those of containers.cpp and of the public header. Calls never fail one by one: the first error of a
// run stays in its `Run`, later calls give empty values, and generated text looks at the error where it must.

#include <graphweave/bfloat16.h>
#include <graphweave/products.h>
#if defined(__FLT16_MANT_DIG__)
#include <graphweave/float16.h>
#endif

#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace {

struct Value {
  Ref<Memory> held;  // null for memory of the caller, or of the weights
  char* data = nullptr;
  int32_t dtype = GW_FLOAT32, dims = 0;
  int64_t sizes[GW_MAX_DIMS] = {}, strides[GW_MAX_DIMS] = {};
};

int64_t itemsize_of(int32_t dtype) {
  constexpr int64_t kBytes[] = {4, 8, 4, 8, 2, 1, 1, 1, 2, 2};
  return kBytes[dtype];
}

const char* name_of(int32_t dtype) {
  static const char* const kNames[] = {"float32", "float64", "int32", "int64",   "int16",
                                       "int8",    "uint8",   "bool",  "float16", "bfloat16"};
  return dtype >= 0 && dtype < 10 ? kNames[dtype] : "an unknown dtype";
}

int64_t numel_of(const Value& x) {
  int64_t count = 1;
  for (int32_t d = 0; d < x.dims; ++d) count *= x.sizes[d];
  return count;
}

struct Run {
  gw_error* error;
  int32_t threads;
  bool failed = false;
  int64_t seed = 0;  // of random numbers, by the caller

  // Keeps the first error of a run.
  __attribute__((format(printf, 4, 5))) GW_COLD void fail(int32_t status, int32_t argument, const char* format, ...) {
    if (failed) return;
    failed = true;
    error->status = status, error->argument = argument;
    va_list parts;
    va_start(parts, format);
    std::vsnprintf(error->message, sizeof error->message, format, parts);
    va_end(parts);
  }
};

void set_dense(Value& x) {
  int64_t stride = 1;
  for (int32_t d = x.dims; d-- > 0;) {
    x.strides[d] = stride;
    stride *= std::max<int64_t>(x.sizes[d], 1);
  }
}

bool is_dense(const Value& x) {
  int64_t stride = 1;
  for (int32_t d = x.dims; d-- > 0;) {
    if (x.sizes[d] == 0) return true;
    if (x.sizes[d] != 1 && x.strides[d] != stride) return false;
    stride *= x.sizes[d];
  }
  return true;
}

Value shaped(int32_t dtype, const int64_t* sizes, int32_t dims) {
  Value made;
  made.dtype = dtype, made.dims = dims;
  std::copy(sizes, sizes + dims, made.sizes);
  set_dense(made);
  return made;
}

Value empty(Run& run, int32_t dtype, const int64_t* sizes, int32_t dims) {
  Value made = shaped(dtype, sizes, dims);
  int64_t nbytes = itemsize_of(dtype);
  for (int32_t d = 0; d < dims; ++d)
    if (sizes[d] < 0 || __builtin_mul_overflow(nbytes, sizes[d], &nbytes)) {
      run.fail(GW_TOO_LARGE, -1, "a value of more bytes than 64 bits can count. Run a smaller graph.");
      return made;
    }
  made.held = shared<Memory>(nbytes);
  made.data = static_cast<char*>(made.held->data);
  if (!made.data) run.fail(GW_NO_MEMORY, -1, "no memory for a value of %lld bytes", static_cast<long long>(nbytes));
  return made;
}

template <int32_t kDims>
Value empty(Run& run, int32_t dtype, const int64_t (&sizes)[kDims]) {
  return empty(run, dtype, sizes, kDims);
}

Value empty(Run& run, int32_t dtype) { return empty(run, dtype, nullptr, 0); }

// Calls body(offset of x, offset of y) in elements for each element, in the order of rows.
template <typename Body>
void each_pair(const Value& x, const Value& y, const Body& body) {
  const int64_t count = numel_of(x);
  int64_t at[GW_MAX_DIMS] = {}, of_x = 0, of_y = 0;
  for (int64_t i = 0; i < count; ++i) {
    body(of_x, of_y);
    for (int32_t d = x.dims; d-- > 0;) {
      of_x += x.strides[d], of_y += y.strides[d];
      if (++at[d] < x.sizes[d]) break;
      of_x -= x.strides[d] * x.sizes[d], of_y -= y.strides[d] * x.sizes[d];
      at[d] = 0;
    }
  }
}

template <typename T>
void copy_elements(const Value& from, Value& to) {
  const T* const source = reinterpret_cast<const T*>(from.data);
  T* const target = reinterpret_cast<T*>(to.data);
  each_pair(from, to, [&](int64_t a, int64_t b) { target[b] = source[a]; });
}

// Copies values of the same sizes and dtype.
void copy_into(const Value& from, Value& to) {
  if (is_dense(from) && is_dense(to)) {
    if (const int64_t count = numel_of(from)) std::memcpy(to.data, from.data, count * itemsize_of(from.dtype));
    return;
  }
  switch (itemsize_of(from.dtype)) {
    case 8:
      return copy_elements<int64_t>(from, to);
    case 4:
      return copy_elements<int32_t>(from, to);
    case 2:
      return copy_elements<int16_t>(from, to);
    default:
      return copy_elements<int8_t>(from, to);
  }
}

// The seed of one call that draws: those of two calls, or of two runs, have nothing to do with each other.
Value seed_of(Run& run, int64_t call) {
  Value made = empty(run, GW_INT64, nullptr, 0);
  if (run.failed) return made;
  uint64_t mixed = static_cast<uint64_t>(run.seed) + static_cast<uint64_t>(call) * 0x9E3779B97F4A7C15u;
  for (const uint64_t factor : {0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu}) mixed = (mixed ^ (mixed >> 30)) * factor;
  mixed = (mixed ^ (mixed >> 31)) >> 1;
  std::memcpy(made.data, &mixed, sizeof mixed);
  return made;
}

Value dense(Run& run, const Value& x) {
  if (run.failed || is_dense(x)) return x;
  Value made = empty(run, x.dtype, x.sizes, x.dims);
  if (!run.failed) copy_into(x, made);
  return made;
}

// ---------------------------------------------------------------- views

Value reshaped(Run& run, const Value& x, const int64_t* sizes, int32_t dims) {
  Value made = dense(run, x);
  made.dims = dims;
  std::copy(sizes, sizes + dims, made.sizes);
  set_dense(made);
  if (!run.failed && numel_of(made) != numel_of(x))
    run.fail(GW_WRONG_ARGUMENT, -1, "%lld numbers cannot be seen as %lld. Give inputs whose sizes fit each other.",
             static_cast<long long>(numel_of(x)), static_cast<long long>(numel_of(made)));
  return made;
}

Value expanded(const Value& x, const int64_t* sizes, int32_t dims) {
  Value made = x;
  made.dims = dims;
  for (int32_t d = 0; d < dims; ++d) {
    const int32_t own = d - (dims - x.dims);
    made.sizes[d] = sizes[d] < 0 ? x.sizes[own] : sizes[d];
    made.strides[d] = own < 0 || (x.sizes[own] == 1 && made.sizes[d] != 1) ? 0 : x.strides[own];
  }
  return made;
}

Value permuted(const Value& x, const int32_t* order) {
  Value made = x;
  for (int32_t d = 0; d < x.dims; ++d) made.sizes[d] = x.sizes[order[d]], made.strides[d] = x.strides[order[d]];
  return made;
}

Value sliced(const Value& x, int32_t dim, int64_t start, int64_t stop, int64_t step) {
  Value made = x;
  const int64_t size = x.sizes[dim];
  if (start < 0) start += size;
  if (stop < 0) stop += size;
  start = std::min(std::max<int64_t>(start, 0), size);
  stop = std::min(std::max(stop, start), size);
  made.data += start * x.strides[dim] * itemsize_of(x.dtype);
  made.sizes[dim] = (stop - start + step - 1) / step;
  made.strides[dim] *= step;
  return made;
}

// x backwards along the dims that are listed.
template <int32_t kLength>
Value flipped(const Value& x, const int32_t (&dims)[kLength]) {
  Value made = x;
  for (const int32_t d : dims) {
    if (x.sizes[d] > 0) made.data += (x.sizes[d] - 1) * x.strides[d] * itemsize_of(x.dtype);
    made.strides[d] = -x.strides[d];
  }
  return made;
}

Value without_dim(const Value& x, int32_t dim) {
  Value made = x;
  --made.dims;
  for (int32_t d = dim; d < made.dims; ++d) made.sizes[d] = x.sizes[d + 1], made.strides[d] = x.strides[d + 1];
  return made;
}

Value selected(Run& run, const Value& x, int32_t dim, int64_t at) {
  const int64_t size = x.sizes[dim];
  if (at < -size || at >= size) {
    run.fail(GW_WRONG_ARGUMENT, -1, "position %lld of a dim of %lld is read. Give inputs whose sizes fit each other.",
             static_cast<long long>(at), static_cast<long long>(size));
    return x;
  }
  Value made = x;
  made.data += (at < 0 ? at + size : at) * x.strides[dim] * itemsize_of(x.dtype);
  return without_dim(made, dim);
}

Value unsqueezed(const Value& x, int32_t dim) {
  Value made = x;
  ++made.dims;
  for (int32_t d = made.dims - 1; d > dim; --d) made.sizes[d] = x.sizes[d - 1], made.strides[d] = x.strides[d - 1];
  made.sizes[dim] = 1;
  made.strides[dim] = dim < x.dims ? x.sizes[dim] * x.strides[dim] : 1;
  return made;
}

// ---------------------------------------------------------------- elements

bool is_half(int32_t dtype) { return dtype == GW_FLOAT16 || dtype == GW_BFLOAT16; }

// Calls body(T()) for the C++ type of a dtype that has arithmetic. Numbers of half precision are computed as floats.
template <typename Body>
void of_type(int32_t dtype, const Body& body) {
  switch (dtype) {
    case GW_FLOAT32:
      return body(float());
    case GW_FLOAT64:
      return body(double());
    case GW_INT32:
      return body(int32_t());
    case GW_INT64:
      return body(int64_t());
    case GW_INT16:
      return body(int16_t());
    case GW_INT8:
      return body(int8_t());
    case GW_UINT8:
      return body(uint8_t());
    default:
      return body(bool());
  }
}

Value converted(Run& run, const Value& x, int32_t dtype);

template <typename T>
Value filled(Run& run, int32_t dtype, T number, const int64_t* sizes, int32_t dims) {
  if (is_half(dtype)) return converted(run, filled(run, GW_FLOAT32, number, sizes, dims), dtype);
  Value made = empty(run, dtype, sizes, dims);
  if (run.failed) return made;
  of_type(dtype, [&](auto zero) {
    typedef decltype(zero) Element;
    auto* const out = reinterpret_cast<Element*>(made.data);
    std::fill(out, out + numel_of(made), static_cast<Element>(number));
  });
  return made;
}

Value counting(Run& run, int32_t dtype, int64_t start, int64_t stop, int64_t step) {
  const int64_t sizes[] = {step > 0 ? std::max<int64_t>(0, (stop - start + step - 1) / step)
                                    : std::max<int64_t>(0, (start - stop - step - 1) / -step)};
  Value made = empty(run, dtype, sizes, 1);
  if (run.failed) return made;
  of_type(dtype, [&](auto zero) {
    typedef decltype(zero) Element;
    auto* const out = reinterpret_cast<Element*>(made.data);
    for (int64_t i = 0; i < sizes[0]; ++i) out[i] = static_cast<Element>(start + i * step);
  });
  return made;
}

template <typename From, typename To>
void convert_elements(const Value& x, Value& made) {
  const auto* const source = reinterpret_cast<const From*>(x.data);
  auto* const target = reinterpret_cast<To*>(made.data);
  each_pair(x, made, [&](int64_t a, int64_t b) { target[b] = static_cast<To>(source[a]); });
}

// Converts between floats and a type of half precision.
template <typename Half>
void convert_halves(const Value& x, Value& made) {
  is_half(x.dtype) ? convert_elements<Half, float>(x, made) : convert_elements<float, Half>(x, made);
}

Value converted(Run& run, const Value& x, int32_t dtype) {
  if (x.dtype == dtype) return x;
  const bool halves = is_half(x.dtype) || is_half(dtype);
  if (halves && x.dtype != GW_FLOAT32 && dtype != GW_FLOAT32)
    return converted(run, converted(run, x, GW_FLOAT32), dtype);
  Value made = empty(run, dtype, x.sizes, x.dims);
  if (run.failed) return made;
  if (x.dtype == GW_BFLOAT16 || dtype == GW_BFLOAT16) {
    convert_halves<gw_bf16>(x, made);
  } else if (halves) {
#if defined(__FLT16_MANT_DIG__)
    convert_halves<gw_f16>(x, made);
#else
    run.fail(GW_WRONG_ARGUMENT, -1, "the compiler that built this library has no float16");
#endif
  } else {
    of_type(x.dtype, [&](auto from) {
      of_type(dtype, [&](auto to) { convert_elements<decltype(from), decltype(to)>(x, made); });
    });
  }
  return made;
}

// Numbers of half precision as floats; other numbers as they are.
Value widened(Run& run, const Value& x) { return is_half(x.dtype) ? converted(run, x, GW_FLOAT32) : x; }

// The sizes of two values side by side, with dims of 1 stretched.
bool broadcast(Run& run, const Value& x, const Value& y, int64_t* sizes, int32_t* dims) {
  *dims = std::max(x.dims, y.dims);
  for (int32_t d = 0; d < *dims; ++d) {
    const int32_t at_x = d - (*dims - x.dims), at_y = d - (*dims - y.dims);
    const int64_t of_x = at_x < 0 ? 1 : x.sizes[at_x], of_y = at_y < 0 ? 1 : y.sizes[at_y];
    sizes[d] = of_x == 1 ? of_y : of_x;
    if (of_y != 1 && of_y != sizes[d]) {
      run.fail(GW_WRONG_ARGUMENT, -1, "values of %lld and %lld rows meet. Give inputs whose sizes fit each other.",
               static_cast<long long>(of_x), static_cast<long long>(of_y));
      return false;
    }
  }
  return true;
}

// op(x, y) for each element, both of one dtype; `dtype` is that of the result.
template <typename Op>
Value combined(Run& run, const Value& x, const Value& y, int32_t dtype, const Op& op) {
  if (is_half(dtype)) return converted(run, combined(run, x, y, GW_FLOAT32, op), dtype);
  if (is_half(x.dtype)) return combined(run, widened(run, x), widened(run, y), dtype, op);
  int64_t sizes[GW_MAX_DIMS];
  int32_t dims;
  if (run.failed || !broadcast(run, x, y, sizes, &dims)) return x;
  Value made = empty(run, dtype, sizes, dims);
  if (run.failed) return made;
  const Value wide_x = expanded(x, sizes, dims), wide_y = expanded(y, sizes, dims);
  of_type(x.dtype, [&](auto of) {
    typedef decltype(of) T;
    typedef decltype(op(T(), T())) Result;
    const auto *const a = reinterpret_cast<const T*>(x.data), *const b = reinterpret_cast<const T*>(y.data);
    of_type(dtype, [&](auto to) {
      typedef decltype(to) To;
      auto* out = reinterpret_cast<To*>(made.data);
      each_pair(wide_x, wide_y,
                [&](int64_t i, int64_t j) { *out++ = static_cast<To>(static_cast<Result>(op(a[i], b[j]))); });
    });
  });
  return made;
}

int64_t number_in(const Value& x) {
  int64_t found = 0;
  of_type(x.dtype, [&](auto of) { found = static_cast<int64_t>(*reinterpret_cast<const decltype(of)*>(x.data)); });
  return found;
}

// Fails for the first number of an index that is not in first..behind-1.
void check_numbers(Run& run, const Value& wide, int64_t first, int64_t behind, const char* name) {
  if (run.failed) return;
  const auto* const at = reinterpret_cast<const int64_t*>(wide.data);
  const int64_t count = numel_of(wide);
  // Several numbers are compared at once: one of the differences is negative for a number that is out of range, also
  // where the other one is too large for 64 bits.
  uint64_t differences = 0;
  const uint64_t low = static_cast<uint64_t>(first), high = static_cast<uint64_t>(behind - 1);
  for (int64_t i = 0; i < count; ++i)
    differences |= (static_cast<uint64_t>(at[i]) - low) | (high - static_cast<uint64_t>(at[i]));
  for (int64_t i = 0; differences >> 63 && !run.failed; ++i)
    if (at[i] < first || at[i] >= behind) {
      run.error->position = i, run.error->value = at[i], run.error->first = first, run.error->behind = behind;
      run.fail(GW_OUT_OF_RANGE, -1, "%s holds %lld at position %lld, expected %lld..%lld", name,
               static_cast<long long>(at[i]), static_cast<long long>(i), static_cast<long long>(first),
               static_cast<long long>(behind - 1));
    }
}

// ---------------------------------------------------------------- rows

Value joined(Run& run, const Value* xs, int32_t count, int32_t dim) {
  Value made = xs[0];
  for (int32_t i = 1; i < count; ++i) {
    made.sizes[dim] += xs[i].sizes[dim];
    for (int32_t d = 0; d < made.dims; ++d)
      if (d != dim && xs[i].sizes[d] != made.sizes[d]) {
        run.fail(GW_WRONG_ARGUMENT, -1, "values of sizes %lld and %lld are put together. Give inputs whose sizes fit.",
                 static_cast<long long>(made.sizes[d]), static_cast<long long>(xs[i].sizes[d]));
        return made;
      }
  }
  made = empty(run, made.dtype, made.sizes, made.dims);
  if (run.failed) return made;
  int64_t at = 0;
  for (int32_t i = 0; i < count; ++i) {
    Value part = sliced(made, dim, at, at + xs[i].sizes[dim], 1);
    copy_into(xs[i], part);
    at += xs[i].sizes[dim];
  }
  return made;
}

// x[index] along the first dim. Negative numbers count from the end if `wraps`.
Value rows_at(Run& run, const Value& x, const Value& index, bool wraps, const char* name) {
  int64_t sizes[GW_MAX_DIMS];
  const int32_t dims = x.dims - 1 + index.dims;
  std::copy(index.sizes, index.sizes + index.dims, sizes);
  std::copy(x.sizes + 1, x.sizes + x.dims, sizes + index.dims);
  Value made = empty(run, x.dtype, sizes, dims);
  if (run.failed) return made;
  const Value source = dense(run, x), wide = dense(run, converted(run, index, GW_INT64));
  if (run.failed) return made;
  const int64_t rows = x.sizes[0], count = numel_of(wide);
  const int64_t nbytes = rows || count ? numel_of(made) / std::max<int64_t>(count, 1) * itemsize_of(x.dtype) : 0;
  const auto* const at = reinterpret_cast<const int64_t*>(wide.data);
  check_numbers(run, wide, wraps ? -rows : 0, rows, name);
  if (run.failed) return made;
  const auto copy_rows = [&](auto size) {  // a size that the compiler knows makes a copy one instruction
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = at[i] < 0 ? at[i] + rows : at[i];
      std::memcpy(made.data + i * nbytes, source.data + row * nbytes, static_cast<size_t>(size));
    }
  };
  switch (nbytes) {
    case 8:
      copy_rows(std::integral_constant<int64_t, 8>());
      break;
    case 4:
      copy_rows(std::integral_constant<int64_t, 4>());
      break;
    default:
      copy_rows(nbytes);
  }
  return made;
}

// A copy of x in which the rows at `index` are those of `rows`, or all the single one that it has. Negative numbers count
// from the end if `wraps`.
Value with_rows(Run& run, const Value& x, const Value& index, const Value& rows, bool wraps, const char* name) {
  Value made = empty(run, x.dtype, x.sizes, x.dims);
  const Value wide = dense(run, converted(run, index, GW_INT64)), from = dense(run, rows);
  if (run.failed) return made;
  copy_into(x, made);
  check_numbers(run, wide, wraps ? -x.sizes[0] : 0, x.sizes[0], name);
  if (run.failed) return made;
  const int64_t count = numel_of(wide), row = x.sizes[0] ? numel_of(x) / x.sizes[0] : 0, given = numel_of(from);
  if (count && given != row && given != count * row)
    return run.fail(GW_WRONG_ARGUMENT, -1, "%s has %lld rows where others are written", name,
                    static_cast<long long>(count)),
           made;
  const int64_t nbytes = row * itemsize_of(x.dtype), next = given == row ? 0 : nbytes;
  const auto* const at = reinterpret_cast<const int64_t*>(wide.data);
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(made.data + (at[i] < 0 ? at[i] + x.sizes[0] : at[i]) * nbytes, from.data + i * next,
                static_cast<size_t>(nbytes));
  return made;
}

// A copy of x in which each number of `from` stands at its index along one dim, or is put there by op(old, new). `from`
// has the sizes of the index, or more.
template <typename Op>
Value scattered(Run& run, const Value& x, int32_t dim, const Value& index, const Value& from, const char* name,
                const Op& op) {
  if (is_half(x.dtype))
    return converted(run, scattered(run, widened(run, x), dim, index, widened(run, from), name, op), x.dtype);
  Value made = empty(run, x.dtype, x.sizes, x.dims);
  const Value wide = dense(run, converted(run, index, GW_INT64));
  if (run.failed) return made;
  copy_into(x, made);
  check_numbers(run, wide, 0, x.sizes[dim], name);
  Value read = from, to = made;
  for (int32_t d = 0; d < x.dims; ++d) {
    if (wide.sizes[d] > read.sizes[d] || (d != dim && wide.sizes[d] > x.sizes[d]))
      run.fail(GW_WRONG_ARGUMENT, -1, "%s has %lld rows along dim %d where fewer are written", name,
               static_cast<long long>(wide.sizes[d]), d);
    read.sizes[d] = to.sizes[d] = wide.sizes[d];
  }
  if (run.failed) return made;
  const int64_t step = to.strides[dim];
  to.strides[dim] = 0;
  of_type(x.dtype, [&](auto of) {
    typedef decltype(of) T;
    const auto* const numbers = reinterpret_cast<const T*>(read.data);
    const auto* at = reinterpret_cast<const int64_t*>(wide.data);
    auto* const out = reinterpret_cast<T*>(made.data);
    each_pair(read, to, [&](int64_t a, int64_t b) {
      T& place = out[b + *at++ * step];
      place = static_cast<T>(op(place, numbers[a]));
    });
  });
  return made;
}

// A copy of x in which `part` stands in place of a slice.
Value with_slice(Run& run, const Value& x, const Value& part, int32_t dim, int64_t start, int64_t stop, int64_t step) {
  Value made = empty(run, x.dtype, x.sizes, x.dims);
  if (run.failed) return made;
  copy_into(x, made);
  Value place = sliced(made, dim, start, stop, step);
  if (part.dims != place.dims || !std::equal(part.sizes, part.sizes + part.dims, place.sizes))
    return run.fail(GW_WRONG_ARGUMENT, -1, "a part of %lld rows is written over %lld",
                    static_cast<long long>(part.sizes[dim]), static_cast<long long>(place.sizes[dim])),
           made;
  copy_into(part, place);
  return made;
}

// ---------------------------------------------------------------- as generated text calls them

template <int32_t kLength>
using Sizes = const int64_t (&)[kLength];

// Operators on bits, which generated text applies to numbers of any type; there are none of floating point.
template <typename T>
T and_bits(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(a & b);
  return a;
}
template <typename T>
T or_bits(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(a | b);
  return a;
}
template <typename T>
T not_bits(T a) {
  if constexpr (std::is_same_v<T, bool>) return !a;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(~a);
  return a;
}

int64_t floor_div(int64_t a, int64_t b) { return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0)); }
int64_t modulo(int64_t a, int64_t b) { return b == 0 ? 0 : a - floor_div(a, b) * b; }
int64_t largest(int64_t a, int64_t b) { return a < b ? b : a; }
int64_t smallest(int64_t a, int64_t b) { return b < a ? b : a; }

// Puts the size that -1 stands for in its place.
template <int32_t kLength>
Value reshaped_to(Run& run, const Value& x, Sizes<kLength> sizes, int32_t dims) {
  int64_t known = 1, full[kLength];
  for (int32_t d = 0; d < dims; ++d) known *= sizes[d] < 0 ? 1 : sizes[d];
  for (int32_t d = 0; d < dims; ++d) full[d] = sizes[d] < 0 ? floor_div(numel_of(x), known) : sizes[d];
  return reshaped(run, x, full, dims);
}

template <int32_t kLength>
Value expanded_to(const Value& x, Sizes<kLength> sizes, int32_t dims) {
  return expanded(x, sizes, dims);
}

// x repeated so many times along each dim. A dim in front of those of x is new.
template <int32_t kLength>
Value repeated(Run& run, const Value& x, Sizes<kLength> times, int32_t dims) {
  Value made = x;
  while (made.dims < dims) made = unsqueezed(made, 0);
  for (int32_t d = 0; d < dims && !run.failed; ++d) {
    if (times[d] == 1) continue;
    int64_t sizes[GW_MAX_DIMS];
    std::copy(made.sizes, made.sizes + dims, sizes);
    sizes[d] *= std::max<int64_t>(times[d], 0);
    Value wide = empty(run, x.dtype, sizes, dims);
    for (int64_t i = 0; i < times[d] && !run.failed; ++i) {
      Value part = sliced(wide, d, i * made.sizes[d], (i + 1) * made.sizes[d], 1);
      copy_into(made, part);
    }
    made = wide;
  }
  return made;
}

template <int32_t kLength>
Value permuted_by(const Value& x, const int32_t (&order)[kLength]) {
  return permuted(x, order);
}

template <int32_t kLength>
Value joined_of(Run& run, const Value (&xs)[kLength], int32_t dim) {
  return joined(run, xs, kLength, dim);
}

template <typename T, int32_t kLength>
Value filled_with(Run& run, int32_t dtype, T number, Sizes<kLength> sizes, int32_t dims) {
  return filled(run, dtype, number, sizes, dims);
}

template <typename T>
Value filled_like(Run& run, int32_t dtype, T number, const Value& x) {
  return filled(run, dtype, number, x.sizes, x.dims);
}

// The positions at which a mask of one dim is true.
Value places_of(Run& run, const Value& mask) {
  const Value held = dense(run, mask);
  const int64_t room[] = {numel_of(held)};
  Value made = empty(run, GW_INT64, room);
  if (run.failed) return made;
  const auto* const is_true = reinterpret_cast<const uint8_t*>(held.data);
  auto* const out = reinterpret_cast<int64_t*>(made.data);
  int64_t found = 0;  // each position is written behind those that were found, and counts if it is one of them
  for (int64_t i = 0; i < room[0]; ++i) out[found] = i, found += is_true[i] != 0;
  made.sizes[0] = found;
  return made;
}

Value chosen(Run& run, const Value& condition, const Value& yes, const Value& no) {
  int64_t sizes[GW_MAX_DIMS], all[GW_MAX_DIMS];
  int32_t dims, all_dims;
  if (run.failed || !broadcast(run, yes, no, sizes, &dims)) return yes;
  const Value both = expanded(yes, sizes, dims);
  if (!broadcast(run, both, condition, all, &all_dims)) return yes;
  const Value wide = dense(run, expanded(condition, all, all_dims)), a = dense(run, expanded(yes, all, all_dims)),
              b = dense(run, expanded(no, all, all_dims));
  Value made = empty(run, yes.dtype, all, all_dims);
  if (run.failed) return made;
  const int64_t nbytes = itemsize_of(made.dtype);
  for (int64_t i = 0, count = numel_of(made); i < count; ++i)
    std::memcpy(made.data + i * nbytes, (wide.data[i] ? a.data : b.data) + i * nbytes, static_cast<size_t>(nbytes));
  return made;
}

// All elements folded into one, from the first on. Of no elements it is 0 if there may be none.
template <typename Op>
Value reduced(Run& run, const Value& x, bool may_be_empty, const Op& op) {
  if (is_half(x.dtype)) return converted(run, reduced(run, widened(run, x), may_be_empty, op), x.dtype);
  Value made = empty(run, x.dtype);
  const Value held = dense(run, x);
  const int64_t count = numel_of(held);
  if (count == 0 && !may_be_empty)
    run.fail(GW_WRONG_ARGUMENT, -1, "the largest or smallest of no numbers is asked for. Give an input with rows.");
  if (run.failed) return made;
  of_type(x.dtype, [&](auto of) {
    typedef decltype(of) T;
    const auto* const in = reinterpret_cast<const T*>(held.data);
    T found = count ? in[0] : T(0);
    for (int64_t i = 1; i < count; ++i) found = static_cast<T>(op(found, in[i]));
    *reinterpret_cast<T*>(made.data) = found;
  });
  return made;
}

constexpr int kRowsOfTile = 64;

// to[r * width + c] = sum over k of x[r, k] * panel[k, c], for at most kRowsOfTile rows and the first columns of J.
template <int J, typename T>
void times_panel(const T* x, int64_t rows, int64_t inner, const T* panel, T* to, int64_t columns, int64_t width) {
  alignas(64) T tile[kRowsOfTile * J];
  gw_product<J, T>(gw_plain<J, T>{tile, x, inner, 1, panel, inner, tile, false}, rows, false);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * width, tile + r * J, static_cast<size_t>(columns) * sizeof(T));
}

template <int J, typename T>
void times_matrix(Run& run, const Value& x, const Value& y, Value& out) {
  const int64_t inner = y.sizes[0], width = y.sizes[1];
  const T* const matrix = reinterpret_cast<const T*>(y.data);
  const Memory packed(inner * J * static_cast<int64_t>(sizeof(T)));
  auto* const panel = static_cast<T*>(packed.data);
  if (!panel) return run.fail(GW_NO_MEMORY, -1, "no memory for a part of a matrix");
  for (int64_t first = 0; first < width; first += J) {
    const int64_t columns = std::min<int64_t>(J, width - first);
    std::fill(panel, panel + inner * J, T(0));
    for (int64_t k = 0; k < inner; ++k)
      std::memcpy(panel + k * J, matrix + k * width + first, static_cast<size_t>(columns) * sizeof(T));
    const T* const from = reinterpret_cast<const T*>(x.data);
    T* const to = reinterpret_cast<T*>(out.data) + first;
    gw_parallel_ranges(x.sizes[0], kRowsOfTile, run.threads, [&](int64_t begin, int64_t last, int32_t) {
      times_panel<J, T>(from + begin * inner, last - begin, inner, panel, to + begin * width, columns, width);
    });
  }
}

// Writes the product of two dense matrices to `made`.
void multiply(Run& run, const Value& x, const Value& y, Value& made) {
  if (x.dtype == GW_FLOAT32) {
    made.sizes[1] > 16 ? times_matrix<64, float>(run, x, y, made) : times_matrix<16, float>(run, x, y, made);
  } else if (x.dtype == GW_FLOAT64) {
    made.sizes[1] > 8 ? times_matrix<32, double>(run, x, y, made) : times_matrix<8, double>(run, x, y, made);
  } else {
    run.fail(GW_WRONG_ARGUMENT, -1, "a product of %s between kernels", name_of(x.dtype));
  }
}

// The product of two matrices, for those that are wider than a kernel takes, or have few rows; of two lists of matrices,
// the product of each pair.
Value product(Run& run, const Value& a, const Value& b) {
  if (is_half(a.dtype)) return converted(run, product(run, widened(run, a), widened(run, b)), a.dtype);
  const int32_t row = a.dims - 2, column = a.dims - 1;
  if (a.sizes[column] != b.sizes[row])
    run.fail(GW_WRONG_ARGUMENT, -1, "matrices of %lld columns and %lld rows meet. Give inputs that fit each other.",
             static_cast<long long>(a.sizes[column]), static_cast<long long>(b.sizes[row]));
  if (row && a.sizes[0] != b.sizes[0])
    run.fail(GW_WRONG_ARGUMENT, -1, "lists of %lld and %lld matrices meet. Give inputs that fit each other.",
             static_cast<long long>(a.sizes[0]), static_cast<long long>(b.sizes[0]));
  int64_t sizes[GW_MAX_DIMS];
  std::copy(a.sizes, a.sizes + column, sizes);
  sizes[column] = b.sizes[column];
  const Value left = dense(run, a), right = dense(run, b);
  Value made = empty(run, a.dtype, sizes, a.dims);
  for (int64_t i = 0, count = row ? sizes[0] : 1; i < count && !run.failed; ++i) {
    Value part = row ? selected(run, made, 0, i) : made;
    multiply(run, row ? selected(run, left, 0, i) : left, row ? selected(run, right, 0, i) : right, part);
  }
  return made;
}

constexpr int32_t kNothing = -1;

// The elements along `dims` folded, from `start` or else from the first one on.
template <typename Start, int32_t kLength, typename Op>
Value folded(Run& run, const Value& x, const int32_t (&dims)[kLength], bool keep, Start start, const Op& op) {
  if (is_half(x.dtype)) return converted(run, folded(run, widened(run, x), dims, keep, start, op), x.dtype);
  Value to = x;
  bool gone[GW_MAX_DIMS] = {};
  for (const int32_t d : dims) to.sizes[d] = 1, gone[d] = true;
  to = empty(run, x.dtype, to.sizes, x.dims);
  if (run.failed) return to;
  Value spread = to;
  for (int32_t d = 0; d < x.dims; ++d) {
    spread.sizes[d] = x.sizes[d];
    if (gone[d]) spread.strides[d] = 0;
  }
  of_type(x.dtype, [&](auto of) {
    typedef decltype(of) T;
    const auto* const in = reinterpret_cast<const T*>(x.data);
    auto* const out = reinterpret_cast<T*>(to.data);
    const Value seen = filled(run, GW_BOOL, start != kNothing, to.sizes, to.dims);
    if (run.failed) return;
    std::fill(out, out + numel_of(to), static_cast<T>(start));
    each_pair(x, spread, [&](int64_t a, int64_t b) {
      out[b] = seen.data[b] ? static_cast<T>(op(out[b], in[a])) : in[a];
      seen.data[b] = 1;
    });
  });
  for (int32_t d = x.dims; !keep && d-- > 0;)
    if (gone[d]) to = without_dim(to, d);
  return to;
}

// The rows of x folded into one, which is `none` if there are none.
template <typename Start, typename None, typename Op>
Value total(Run& run, const Value& x, Start start, None none, const Op& op) {
  return x.sizes[0] == 0 ? filled(run, x.dtype, none, x.sizes + 1, x.dims - 1) : folded(run, x, {0}, false, start, op);
}

// The condition that a line of the model sets on sizes.
void require(Run& run, bool holds, const char* line) {
  if (!holds) run.fail(GW_WRONG_ARGUMENT, -1, "the inputs do not fit what %s expects of their sizes", line);
}

// ---------------------------------------------------------------- indices

Value in_64_bits(Run& run, const Value& index) { return dense(run, converted(run, index, GW_INT64)); }

// The rows of x folded into the rows that `index` names; those to which no row goes are `none`.
template <typename Start, typename None, typename Op>
Value pushed(Run& run, const Value& x, const Value& index, int64_t rows, Start start, None none, const Op& op,
             const char* name) {
  if (is_half(x.dtype))
    return converted(run, pushed(run, widened(run, x), index, rows, start, none, op, name), x.dtype);
  const Value wide = in_64_bits(run, index), held = dense(run, x);
  Value made = x;
  made.sizes[0] = rows;
  made = filled(run, x.dtype, none, made.sizes, x.dims);
  const int64_t flags[] = {rows};
  const Value seen = filled(run, GW_BOOL, false, flags, 1);
  if (run.failed) return made;
  check_numbers(run, wide, 0, rows, name);
  if (run.failed) return made;
  const int64_t count = x.sizes[0], width = count ? numel_of(x) / count : 0;
  const auto* const at = reinterpret_cast<const int64_t*>(wide.data);
  of_type(x.dtype, [&](auto of) {
    typedef decltype(of) T;
    const auto* const in = reinterpret_cast<const T*>(held.data);
    auto* const out = reinterpret_cast<T*>(made.data);
    for (int64_t r = 0; r < count; ++r) {
      T* const to = out + at[r] * width;
      const bool begins = !seen.data[at[r]];
      seen.data[at[r]] = 1;
      for (int64_t c = 0; c < width; ++c) {
        const T from = in[r * width + c];
        to[c] = !begins             ? static_cast<T>(op(to[c], from))
                : start == kNothing ? from
                                    : static_cast<T>(op(T(start), from));
      }
    }
  });
  return made;
}

void check_range(Run& run, const Value& index, int64_t size, const char* name) {
  const Value wide = in_64_bits(run, index);
  if (!run.failed) check_numbers(run, wide, 0, size, name);
}

// An index whose negative numbers count from the end if `wraps`, in which they are then not negative, plus `start`.
Value shifted(Run& run, const Value& index, int64_t rows, bool wraps, int64_t start) {
  const Value wide = in_64_bits(run, index);
  Value made = empty(run, GW_INT64, wide.sizes, wide.dims);
  if (run.failed) return made;
  const auto* const in = reinterpret_cast<const int64_t*>(wide.data);
  auto* const out = reinterpret_cast<int64_t*>(made.data);
  for (int64_t i = 0, count = numel_of(wide); i < count; ++i) out[i] = in[i] + (wraps && in[i] < 0 ? rows : 0) + start;
  return made;
}

Value map_of(Run& run, const Value& index, int64_t rows, bool wraps) { return shifted(run, index, rows, wraps, 0); }

Value shifted_index(Run& run, const Value& index, int64_t rows, bool wraps, int64_t start, const char* name) {
  const Value wide = in_64_bits(run, index);
  if (!run.failed) check_numbers(run, wide, wraps ? -rows : 0, rows, name);
  return run.failed ? wide : shifted(run, wide, rows, wraps, start);
}

// r -> r / (count / rows) for `count` numbers r.
Value equal_runs(Run& run, int64_t rows, int64_t count) {
  const int64_t sizes[] = {count}, length = rows > 0 ? count / rows : 0;
  Value made = empty(run, GW_INT64, sizes);
  if (run.failed) return made;
  auto* const out = reinterpret_cast<int64_t*>(made.data);
  for (int64_t r = 0; r < count; ++r) out[r] = length > 0 ? r / length : 0;
  return made;
}

// r -> r % rows for `count` numbers r.
Value rounds(Run& run, int64_t rows, int64_t count) {
  const int64_t sizes[] = {rows > 0 ? count / rows * rows : 0};
  Value made = empty(run, GW_INT64, sizes);
  if (run.failed) return made;
  auto* const out = reinterpret_cast<int64_t*>(made.data);
  for (int64_t r = 0; r < sizes[0]; ++r) out[r] = r % rows;
  return made;
}

// An index into the `rows` rows of one item, for all items, which have `count` numbers together.
Value each_item(Run& run, const Value& index, int64_t rows, int64_t count, const char* name) {
  const Value wide = in_64_bits(run, index);
  if (!run.failed) check_numbers(run, wide, 0, rows, name);
  const int64_t length = wide.sizes[0], items = length > 0 ? count / length : 0, sizes[] = {items * length};
  Value made = empty(run, GW_INT64, sizes);
  if (run.failed) return made;
  const auto* const in = reinterpret_cast<const int64_t*>(wide.data);
  auto* const out = reinterpret_cast<int64_t*>(made.data);
  for (int64_t i = 0; i < items; ++i)
    for (int64_t e = 0; e < length; ++e) out[i * length + e] = i * rows + in[e];
  return made;
}

template <int32_t kSegments, int32_t kParts>
Value rows_of_segments(Run& run, Sizes<kSegments> sizes, const int32_t (&at)[kParts]) {
  Value parts[kParts];
  for (int32_t k = 0; k < kParts; ++k) {
    int64_t start = 0;
    for (int32_t s = 0; s < at[k]; ++s) start += sizes[s];
    parts[k] = counting(run, GW_INT64, start, start + sizes[at[k]], 1);
  }
  return run.failed ? parts[0] : joined(run, parts, kParts, 0);
}

template <int32_t kSegments>
Value numbers_of_segments(Run& run, Sizes<kSegments> sizes, Sizes<kSegments> numbers) {
  Value parts[kSegments];
  for (int32_t k = 0; k < kSegments; ++k) parts[k] = filled(run, GW_INT64, numbers[k], &sizes[k], 1);
  return run.failed ? parts[0] : joined(run, parts, kSegments, 0);
}

}  // namespace
