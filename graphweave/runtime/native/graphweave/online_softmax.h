// Sums of exp(x - reference) whose reference grows, of an online softmax.
#pragma once

#include <graphweave/elementary.h>
#include <graphweave/pointwise.h>

// what makes sums of exp(x - reference) sums of exp(x - value), where that is larger; -1 for sums to start again
template <class T>
GW_INLINE T gw_factor(T reference, T value) {
  const T factor = reference == -INFINITY ? T(-1) : gw_exp(reference - value);
  return value <= reference ? T(1) : factor;
}
template <class T>
GW_INLINE T gw_rescaled(T sum, T factor) {
  return factor < T(0) ? T(0) : sum * factor;
}
