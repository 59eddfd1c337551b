// Pointwise operators, for numbers and vectors, that C++ does not have in a form without branches that keeps NaN.
#pragma once

#include <graphweave/lane_values.h>

// NaN wins, as in torch. Of two equal numbers, such as 0.0 and -0.0, the first is the result: clamp(-0.0, 0.0) is -0.0.
template <class V>
GW_INLINE V gw_max(V a, V b) {
  return gw_select(b != b, b, gw_larger(b, a));
}
template <class V>
GW_INLINE V gw_min(V a, V b) {
  return gw_select(b != b, b, gw_smaller(b, a));
}
template <class V>
GW_INLINE V gw_relu(V x) {
  return gw_larger(V{}, x);
}
template <class V>
GW_INLINE V gw_sign(V x) {
  const V one = gw_const<V>(1);
  return (V)(gw_select(x > V{}, one, V{}) - gw_select(x < V{}, one, V{}));
}
// The smallest integer is its own absolute value.
template <class V>
GW_INLINE V gw_abs(V x) {
  if constexpr (std::is_floating_point_v<V>)
    return gw_library::fabs(x);
  else if constexpr (std::is_arithmetic_v<V>)
    return x < V(0) ? (V)(0 - (uint64_t)x) : x;
  else if constexpr (std::is_floating_point_v<gw_element<V>>)
    return gw_with_sign(x, V{});
  else
    return gw_select(x < V{}, gw_difference(V{}, x), x);
}
template <class V>
GW_INLINE V gw_squared(V x) {
  return x * x;
}
template <class V>
GW_INLINE V gw_cubed(V x) {
  return x * x * x;
}
