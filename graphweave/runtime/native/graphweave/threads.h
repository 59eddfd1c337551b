// The number of the running thread, since kernels keep scratch memory for each thread.
#pragma once

#include <graphweave/base.h>
#ifdef _OPENMP
#include <omp.h>
#endif

GW_INLINE int gw_thread() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}
