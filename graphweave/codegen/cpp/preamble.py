"""C++ helper functions, printed only into kernels that use them.

The elementary functions are branch-free so that the compiler vectorises them over lanes (the standard library's are
calls). Polynomials interpolate at Chebyshev nodes. Errors: gw_exp and gw_log 2 ulp, gw_tanh 3 ulp, gw_log1p and
gw_sigmoid 4 ulp; gw_sigmoid gives 0 where its value is denormal.
"""

from __future__ import annotations

from graphweave.codegen.cpp.products import BLOCK, GRAM, MATMUL
from graphweave.codegen.cpp.stream import STREAM

_EXP_F32 = """
// 2^n * e^r with x = n ln 2 + r; overflows to inf, underflows gradually, keeps NaN
GW_INLINE float gw_exp(float x) {
  const float capped = x > 89.0f ? 89.0f : x;
  const float y = capped < -105.0f ? -105.0f : capped;
  const float shifted = gw_madd(y, 1.44269504f, 12582912.0f);  // the nearest integer sits in the low bits
  const float n = shifted - 12582912.0f;
  const float r = gw_madd(n, 2.12194440e-4f, gw_madd(n, -0.693359375f, y));
  float p = 0.00139269266f;
  p = gw_madd(p, r, 0.00836377387f);
  p = gw_madd(p, r, 0.0416665501f);
  p = gw_madd(p, r, 0.166665734f);
  p = gw_madd(p, r, 0.5f);
  p = gw_madd(p * r, r, r) + 1.0f;
  const int32_t exponent = gw_bits(shifted) - 0x4b400000;
  const int32_t half = exponent >> 1;
  return p * gw_float((half + 127) << 23) * gw_float((exponent - half + 127) << 23);
}"""

_EXP_F64 = """
GW_INLINE double gw_exp(double x) {
  const double capped = x > 710.0 ? 710.0 : x;
  const double y = capped < -746.0 ? -746.0 : capped;
  const double shifted = gw_madd(y, 1.4426950408889634, 6755399441055744.0);
  const double n = shifted - 6755399441055744.0;
  const double r = gw_madd(n, -1.90821492927058770002e-10, gw_madd(n, -0.693147180369123816490, y));
  double p = 2.5101346928350339e-08;
  p = gw_madd(p, r, 2.7621338669142925e-07);
  p = gw_madd(p, r, 2.7557266418612302e-06);
  p = gw_madd(p, r, 2.4801518641395993e-05);
  p = gw_madd(p, r, 0.00019841269864380513);
  p = gw_madd(p, r, 0.0013888888918939168);
  p = gw_madd(p, r, 0.0083333333333297926);
  p = gw_madd(p, r, 0.041666666666620639);
  p = gw_madd(p, r, 0.16666666666666669);
  p = gw_madd(p, r, 0.5);
  p = gw_madd(p * r, r, r) + 1.0;
  const int64_t exponent = gw_bits(shifted) - INT64_C(0x4338000000000000);
  const int64_t half = exponent >> 1;
  return p * gw_double((half + 1023) << 52) * gw_double((exponent - half + 1023) << 52);
}"""

_LOG_F32 = """
GW_INLINE float gw_log(float x) {
  const bool tiny = x < 1.17549435e-38f;  // denormals are scaled into the normal range
  const int32_t bits = gw_bits(tiny ? x * 8388608.0f : x) - 0x3f3504f3;
  const float n = (float)(bits >> 23) - (tiny ? 23.0f : 0.0f);
  const float f = gw_float((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  float p = 0.0696770115f;
  p = gw_madd(p, f, -0.114795894f);
  p = gw_madd(p, f, 0.116866671f);
  p = gw_madd(p, f, -0.12425776f);
  p = gw_madd(p, f, 0.142489532f);
  p = gw_madd(p, f, -0.166677961f);
  p = gw_madd(p, f, 0.200007184f);
  p = gw_madd(p, f, -0.24999997f);
  p = gw_madd(p, f, 0.333333312f);
  const float square = f * f;
  const float y = ((p * f * square - n * 2.12194440e-4f) - 0.5f * square) + f + n * 0.693359375f;
  const float finite = x < INFINITY ? y : x;  // inf and NaN are their own logarithms
  return x > 0.0f ? finite : (x == 0.0f ? -INFINITY : (x != x ? x : NAN));
}"""

_LOG1P_F32 = """
GW_INLINE float gw_log1p(float x) {
  const float u = 1.0f + x;
  const float y = gw_log(u) * (x / (u - 1.0f));  // corrects the rounding of u
  return u == 1.0f ? x : (u < INFINITY ? y : u);
}"""

_TANH_F32 = """
GW_INLINE float gw_tanh(float x) {
  const float a = x < 0.0f ? -x : x;
  const float t = x * x;
  float p = -0.00609670822f;
  p = gw_madd(p, t, 0.0209971737f);
  p = gw_madd(p, t, -0.053850908f);
  p = gw_madd(p, t, 0.133327697f);
  p = gw_madd(p, t, -0.333333289f);
  const float far = 1.0f - 2.0f / (gw_exp(2.0f * a) + 1.0f);
  return a < 0.625f ? gw_madd(p * t, x, x) : (x < 0.0f ? -far : far);
}"""

_MADD = """
// a * b + c, rounded once where the machine can: written out, since the compiler fuses none (runtime/toolchain.py)
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
GW_INLINE float gw_madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GW_INLINE double gw_madd(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
GW_INLINE float gw_madd(float a, float b, float c) { return a * b + c; }
GW_INLINE double gw_madd(double a, double b, double c) { return a * b + c; }
#endif"""

_BITS = """
GW_INLINE int32_t gw_bits(float x) { int32_t bits; memcpy(&bits, &x, sizeof bits); return bits; }
GW_INLINE int64_t gw_bits(double x) { int64_t bits; memcpy(&bits, &x, sizeof bits); return bits; }
GW_INLINE float gw_float(int32_t bits) { float x; memcpy(&x, &bits, sizeof x); return x; }
GW_INLINE double gw_double(int64_t bits) { double x; memcpy(&x, &bits, sizeof x); return x; }"""

_MULTIPLIER, _WEYL = 0xD256D193, 0x9E3779B9  # of Philox-2x32, as in ir/philox.py

_PHILOX = f"""
GW_INLINE void gw_philox_round(uint32_t& a, uint32_t& b, uint32_t key) {{
  const uint64_t product = (uint64_t)a * {hex(_MULTIPLIER)}u;
  a = (uint32_t)(product >> 32) ^ key ^ b;
  b = (uint32_t)product;
}}
// Philox-2x32-10; the rounds are written out so that a loop over lanes around them vectorises
GW_INLINE uint32_t gw_philox(int64_t seed, int64_t position, uint32_t& b) {{
  const uint32_t key = (uint32_t)seed;
  uint32_t a = (uint32_t)position;
  b = (uint32_t)((uint64_t)position >> 32) ^ (uint32_t)((uint64_t)seed >> 32);
{"".join(f"  gw_philox_round(a, b, key + {hex(i * _WEYL & 0xFFFFFFFF)}u);" + chr(10) for i in range(10))}\
  return a;
}}"""

_UNIFORM_F32 = """
GW_INLINE float gw_uniform_f32(int64_t seed, int64_t position) {
  uint32_t b;
  return (float)(int32_t)(gw_philox(seed, position, b) >> 8) * 5.9604644775390625e-08f;
}"""

_UNIFORM_F64 = """
GW_INLINE double gw_uniform_f64(int64_t seed, int64_t position) {
  uint32_t b;
  const uint32_t a = gw_philox(seed, position, b);
  return (double)(int64_t)(((uint64_t)a << 21) + (b >> 11)) * 1.1102230246251565e-16;
}"""

_F16 = """
#if !defined(__FLT16_MANT_DIG__)
#error "half precision needs a compiler with _Float16 (GCC 12, clang 15)"
#endif
typedef _Float16 gw_f16;"""

_BF16 = """
// the upper half of a float, rounded to even
struct gw_bf16 {
  uint16_t bits;
  gw_bf16() = default;
  explicit inline gw_bf16(float x) {
    const uint32_t b = (uint32_t)gw_bits(x);
    bits = (b & 0x7fffffffu) > 0x7f800000u ? (uint16_t)((b >> 16) | 0x40u)
                                           : (uint16_t)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
  }
  inline operator float() const { return gw_float((int32_t)((uint32_t)bits << 16)); }
};"""

_RAISE = """
// what makes sums of exp(x - reference) sums of exp(x - value), where that is larger; -1 for sums to start again
template <class T> GW_INLINE T gw_factor(T reference, T value) {
  const T factor = reference == -INFINITY ? T(-1) : gw_exp(reference - value);
  return value <= reference ? T(1) : factor;
}
template <class T> GW_INLINE T gw_rescaled(T sum, T factor) { return factor < T(0) ? T(0) : sum * factor; }"""

_TEMPLATES = {
    # NaN wins, as in torch
    "gw_max": "template <class T> GW_INLINE T gw_max(T a, T b) { return (a > b) | (a != a) ? a : b; }",
    "gw_min": "template <class T> GW_INLINE T gw_min(T a, T b) { return (a < b) | (a != a) ? a : b; }",
    "gw_select": "template <class T> GW_INLINE T gw_select(bool c, T a, T b) { return c ? a : b; }",
    "gw_relu": "template <class T> GW_INLINE T gw_relu(T x) { return x < T(0) ? T(0) : x; }",
    "gw_sign": "template <class T> GW_INLINE T gw_sign(T x) { return (T)((x > T(0)) - (x < T(0))); }",
    "gw_abs": "template <class T> GW_INLINE T gw_abs(T x) { return x < T(0) ? (T)(0 - (uint64_t)x) : x; }",  # integers
}


def _tree(ctype: str, width: int) -> str:
    """A sum of `width` numbers by halves: each step is one vector addition."""
    vectors, steps = [], []
    n, x = width, "x"
    while n > 2:
        n //= 2
        vectors.append(f"  typedef {ctype} v{n} __attribute__((vector_size({n} * sizeof({ctype}))));")
        low, high = ", ".join(map(str, range(n))), ", ".join(map(str, range(n, 2 * n)))
        pick = f"__builtin_shufflevector({x}, {x}, "
        steps.append(f"  const v{n} x{n} = {pick}{low}) + {pick}{high});")
        x = f"x{n}"
    load = f"  const v{width} x = *(const v{width}*)p;"
    whole = f"  typedef {ctype} v{width} __attribute__((vector_size({width} * sizeof({ctype})), may_alias));"
    halves = "\n".join(
        f"  for (int i = 0; i < {width >> s}; ++i) p[i] += p[i + {width >> s}];" for s in range(1, width.bit_length())
    )
    body = "\n".join([whole, *vectors, load, *steps, f"  return {x}[0] + {x}[1];"])
    return f"""
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
GW_INLINE {ctype} gw_tree{width}({ctype}* p) {{
{body}
}}
#else
GW_INLINE {ctype} gw_tree{width}({ctype}* p) {{
{halves}
  return p[0];
}}
#endif"""


_FUNCTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "bits": ((), _BITS),
    "gw_f16": ((), _F16),
    "gw_bf16": (("bits",), _BF16),
    "gw_philox": ((), _PHILOX),
    "gw_uniform_f32": (("gw_philox",), _UNIFORM_F32),
    "gw_uniform_f64": (("gw_philox",), _UNIFORM_F64),
    "gw_block": ((), BLOCK),
    "gw_matmul": (("gw_block",), MATMUL),
    "gw_gram": (("gw_block",), GRAM),
    "gw_stream": ((), STREAM),
    "gw_madd": ((), _MADD),
    "gw_exp_f32": (("bits", "gw_madd"), _EXP_F32),
    "gw_exp_f64": (("bits", "gw_madd"), _EXP_F64),
    "gw_log_f32": (("bits", "gw_madd"), _LOG_F32),
    "gw_log1p_f32": (("gw_log_f32",), _LOG1P_F32),
    "gw_tanh_f32": (("gw_exp_f32", "gw_madd"), _TANH_F32),
    "gw_sigmoid_f32": (
        ("gw_exp_f32",),
        "\nGW_INLINE float gw_sigmoid(float x) { return 1.0f / (1.0f + gw_exp(-x)); }",
    ),
    "gw_sigmoid_f64": (
        ("gw_exp_f64",),
        "\nGW_INLINE double gw_sigmoid(double x) { return 1.0 / (1.0 + gw_exp(-x)); }",
    ),
    "gw_raise_f32": (("gw_exp_f32", "gw_max"), _RAISE),
    "gw_raise_f64": (("gw_exp_f64", "gw_max"), _RAISE),
    **{name: ((), "\n" + text) for name, text in _TEMPLATES.items()},
    **{f"gw_tree_f32_{width}": ((), _tree("float", width)) for width in (16, 8)},
    **{f"gw_tree_f64_{width}": ((), _tree("double", width)) for width in (8, 4)},
    **{
        f"gw_fold_{fold}_{dtype}": (
            (f"gw_{fold}",),
            f"\n#pragma omp declare reduction(gw_{fold} : {ctype} : omp_out = gw_{fold}(omp_out, omp_in)) "
            f"initializer(omp_priv = {sign}INFINITY)",
        )
        for fold, sign in (("max", "-"), ("min", ""))
        for dtype, ctype in (("f32", "float"), ("f64", "double"))
    },
}


def preamble(used: set[str]) -> str:
    """Text of the functions in `used` (keys such as "gw_exp_f32", "gw_max") and of what they call; "" for none."""
    needed: list[str] = []

    def need(name: str) -> None:
        if name in needed:
            return
        for other in _FUNCTIONS[name][0]:
            need(other)
        needed.append(name)

    for name in sorted(used):
        need(name)
    if not needed:
        return ""
    head = "#define GW_INLINE static inline __attribute__((always_inline, unused))\n"
    return head + "".join(_FUNCTIONS[name][1].lstrip("\n") + "\n" for name in needed)
