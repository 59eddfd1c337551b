// Folds over lanes: reductions of `omp simd` loops, and sums by halves.
#pragma once

#include <graphweave/pointwise.h>

#pragma omp declare reduction(gw_max:float : omp_out = gw_max(omp_out, omp_in)) initializer(omp_priv = -INFINITY)
#pragma omp declare reduction(gw_max:double : omp_out = gw_max(omp_out, omp_in)) initializer(omp_priv = -INFINITY)
#pragma omp declare reduction(gw_min:float : omp_out = gw_min(omp_out, omp_in)) initializer(omp_priv = INFINITY)
#pragma omp declare reduction(gw_min:double : omp_out = gw_min(omp_out, omp_in)) initializer(omp_priv = INFINITY)

// gw_tree16(p), gw_tree8(p), gw_tree4(p): the sum of so many numbers, aligned as a vector of them. The second half is
// added to the first, until one number is left: each step is one vector addition.
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
template <class T>
struct gw_halves {
  typedef T two __attribute__((vector_size(2 * sizeof(T))));
  typedef T four __attribute__((vector_size(4 * sizeof(T)), may_alias));
  typedef T eight __attribute__((vector_size(8 * sizeof(T)), may_alias));
  typedef T sixteen __attribute__((vector_size(16 * sizeof(T)), may_alias));
  GW_INLINE_MEMBER static T of4(const four& x) {
    const two y = __builtin_shufflevector(x, x, 0, 1) + __builtin_shufflevector(x, x, 2, 3);
    return y[0] + y[1];
  }
  GW_INLINE_MEMBER static T of8(const eight& x) {
    return of4(four(__builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7)));
  }
  GW_INLINE_MEMBER static T of16(const sixteen& x) {
    return of8(eight(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15)));
  }
};
template <class T>
GW_INLINE T gw_tree4(T* p) {
  return gw_halves<T>::of4(*(const typename gw_halves<T>::four*)p);
}
template <class T>
GW_INLINE T gw_tree8(T* p) {
  return gw_halves<T>::of8(*(const typename gw_halves<T>::eight*)p);
}
template <class T>
GW_INLINE T gw_tree16(T* p) {
  return gw_halves<T>::of16(*(const typename gw_halves<T>::sixteen*)p);
}
#else
template <class T, int N>
GW_INLINE T gw_tree(T* p) {
  if constexpr (N == 1) {
    return p[0];
  } else {
    for (int i = 0; i < N / 2; ++i) p[i] += p[i + N / 2];
    return gw_tree<T, N / 2>(p);
  }
}
template <class T>
GW_INLINE T gw_tree4(T* p) {
  return gw_tree<T, 4>(p);
}
template <class T>
GW_INLINE T gw_tree8(T* p) {
  return gw_tree<T, 8>(p);
}
template <class T>
GW_INLINE T gw_tree16(T* p) {
  return gw_tree<T, 16>(p);
}
#endif
