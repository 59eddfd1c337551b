// What every kernel reads: the standard headers that generated text needs, and how small functions are declared.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

// A call would keep the loop around it from becoming vector code.
#define GW_INLINE static inline __attribute__((always_inline, unused))
#define GW_INLINE_MEMBER __attribute__((always_inline))
// Products are large: one copy of each serves a kernel.
#define GW_APART static __attribute__((noinline, unused))
