// Folds over lanes, from vectors to one number, and folds of arrays, element by element.
#pragma once

#include <graphweave/lanes.h>
#include <graphweave/pointwise.h>

struct gw_fold_sum {
  template <class V>
  GW_INLINE_MEMBER V operator()(V a, V b) const {
    if constexpr (std::is_floating_point_v<gw_element<V>>)
      return a + b;
    else
      return gw_sum(a, b);
  }
};
struct gw_fold_product {
  template <class V>
  GW_INLINE_MEMBER V operator()(V a, V b) const {
    if constexpr (std::is_floating_point_v<gw_element<V>>)
      return a * b;
    else
      return gw_product_of(a, b);
  }
};
struct gw_fold_max {
  template <class V>
  GW_INLINE_MEMBER V operator()(V a, V b) const {
    return gw_max(a, b);
  }
};
struct gw_fold_min {
  template <class V>
  GW_INLINE_MEMBER V operator()(V a, V b) const {
    return gw_min(a, b);
  }
};
// Folds of masks.
struct gw_fold_any {
  template <class V>
  GW_INLINE_MEMBER V operator()(V a, V b) const {
    return a | b;
  }
};
struct gw_fold_all {
  template <class V>
  GW_INLINE_MEMBER V operator()(V a, V b) const {
    return a & b;
  }
};

// Folds to one number: the second half is folded into the first until one number is left. Each step is one operation on
// vectors, and the order is the same for N vectors as for one vector that is N times as long.
template <class F, class V>
GW_INLINE gw_element<V> gw_across(V v, F fold) {
  if constexpr (gw_count<V> == 2)
    return fold(v[0], v[1]);
  else if constexpr (sizeof(V) == 16 && gw_count<V> == 4)
    return fold(fold(v[0], v[2]), fold(v[1], v[3]));
  else
    return gw_across(fold(gw_low(v), gw_high(v)), fold);
}
// The same for each lane of N vectors.
template <class F, class V, int N>
GW_INLINE V gw_fold_each(V (&parts)[N], F fold) {
  if constexpr (N == 1) {
    return parts[0];
  } else {
    V half[N / 2];
#pragma GCC unroll 16
    for (int i = 0; i < N / 2; ++i) half[i] = fold(parts[i], parts[i + N / 2]);
    return gw_fold_each(half, fold);
  }
}
template <class F, class V, int N>
GW_INLINE gw_element<V> gw_fold(V (&parts)[N], F fold) {
  return gw_across(gw_fold_each(parts, fold), fold);
}

// to[i] += from[i] for N elements, whatever their types.
template <int64_t N, class T, class From>
GW_INLINE void gw_add_to(T* to, const From* from) {
  for (int64_t i = 0; i < N; ++i) to[i] = static_cast<T>(to[i] + from[i]);
}
// to[i] = fold(to[i], from[i]) for N elements.
template <int64_t N, class F, class T>
GW_INLINE void gw_fold_into(T* to, const T* from, F fold) {
  constexpr int W = gw_lanes(N, sizeof(T) < 4 ? 4 : sizeof(T)), K = N % W;
  int64_t i = 0;
  for (; i + W <= N; i += W) gw_store<W>(to + i, fold(gw_load<W>(to + i), gw_load<W>(from + i)));
  if constexpr (K > 0) gw_store<W, K>(to + i, fold(gw_load<W, K>(to + i), gw_load<W, K>(from + i)));
}
