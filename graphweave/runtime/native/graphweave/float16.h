// float16, for storage: it converts to float.
#pragma once

#if !defined(__FLT16_MANT_DIG__)
#error "half precision needs a compiler with _Float16 (GCC 12, clang 15)"
#endif
typedef _Float16 gw_f16;
