// Rescales sums of exp(x - reference) when the reference of an online softmax grows.
#pragma once

#include <graphweave/elementary.h>
#include <graphweave/pointwise.h>

// The factor that turns sums of exp(x - reference) into sums of exp(x - value), if `value` is larger than the
// reference. It is -1 if the sums have to start again.
template <class V>
GW_INLINE V gw_factor(V reference, V value) {
  const V again = gw_const<V>(-1), begun = gw_exp(reference - value);
  const V factor = gw_select(reference == gw_const<V>(-gw_infinity), again, begun);
  return gw_select(value <= reference, gw_const<V>(1), factor);
}
template <class V>
GW_INLINE V gw_rescaled(V sum, V factor) {
  return gw_select(factor < V{}, V{}, sum * factor);
}
