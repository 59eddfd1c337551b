// What every kernel includes: the standard headers that generated text needs, constants, and macros that declare small
// functions.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

constexpr float gw_infinity = __builtin_inff(), gw_nan = __builtin_nanf("");

// Small functions are inlined, since a call would keep the loop around it from being vectorised.
#define GW_INLINE static inline __attribute__((always_inline, unused))
#define GW_INLINE_MEMBER __attribute__((always_inline))
// Products are large, so a kernel has one copy of each.
#define GW_APART static __attribute__((noinline, unused))
