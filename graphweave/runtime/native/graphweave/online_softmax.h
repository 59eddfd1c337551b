// Sums of exp(x - reference) whose reference grows, of an online softmax.
#pragma once

#include <graphweave/elementary.h>
#include <graphweave/pointwise.h>

// what makes sums of exp(x - reference) sums of exp(x - value), where that is larger; -1 for sums to start again
template <class V>
GW_INLINE V gw_factor(V reference, V value) {
  const V again = gw_const<V>(-1), begun = gw_exp(reference - value);
  const V factor = gw_select(reference == gw_const<V>(-INFINITY), again, begun);
  return gw_select(value <= reference, gw_const<V>(1), factor);
}
template <class V>
GW_INLINE V gw_rescaled(V sum, V factor) {
  return gw_select(factor < V{}, V{}, sum * factor);
}
