"""Functions that a kernel's text defines if it uses them. They keep NaN wherever torch does.

Triton's interpreter has no CUDA library. So functions that Triton itself lacks are written out here, and tests run the
text that a GPU runs. Errors of gw_expm1, gw_log1p and gw_tanh: 4 ulp; of gw_pow: one for each doubling of the power.
"""

from __future__ import annotations

_MULTIPLIER, _WEYL = 0xD256D193, 0x9E3779B9  # constants of Philox-2x32, as in ir/philox.py

_PHILOX = f'''
def gw_philox(seed, position):
    """Philox-2x32 of ten rounds: two words for each position (int64)."""
    key = (seed & 0xFFFFFFFF).to(tl.uint32)
    a = (position & 0xFFFFFFFF).to(tl.uint32)
    b = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32) ^ ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for i in tl.static_range(10):
        bumped = (key.to(tl.uint64) + tl.full([], i * {_WEYL} & 0xFFFFFFFF, tl.uint64)).to(tl.uint32)
        product = a.to(tl.uint64) * tl.full([], {_MULTIPLIER}, tl.uint64)
        a = (product >> 32).to(tl.uint32) ^ bumped ^ b
        b = product.to(tl.uint32)
    return a, b
'''

_INTERPRETED = """
# Triton's interpreter holds a bfloat16 as an integer, and would multiply these.
GW_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""

_FUNCTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "gw_max": ((), """
def gw_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""),
    "gw_min": ((), """
def gw_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""),
    "gw_fold_max": ((), """
def gw_fold_max(x, axis: tl.constexpr):
    has_nan = tl.max((x != x).to(tl.int32), axis=axis) != 0
    return tl.where(has_nan, float("nan"), tl.max(x, axis=axis))
"""),
    "gw_fold_min": ((), """
def gw_fold_min(x, axis: tl.constexpr):
    has_nan = tl.max((x != x).to(tl.int32), axis=axis) != 0
    return tl.where(has_nan, float("nan"), tl.min(x, axis=axis))
"""),
    "gw_product": ((), """
def gw_product(a, b):
    return a * b
"""),
    "gw_fold_mul": (("gw_product",), """
def gw_fold_mul(x, axis: tl.constexpr):
    return tl.reduce(x, axis, gw_product)
"""),
    "gw_relu": ((), """
def gw_relu(x):
    return tl.where(x < 0, tl.zeros_like(x), x)
"""),
    "gw_sign": ((), """
def gw_sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
"""),
    "gw_sigmoid": ((), """
def gw_sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
"""),
    "gw_expm1": ((), '''
def gw_expm1(x):
    """(e^x - 1) x / log(e^x): the errors of both cancel (Kahan)."""
    u = tl.exp(x)
    y = (u - 1.0) * (x / tl.log(u))
    return tl.where(u == 1.0, x, tl.where((u - 1.0 == -1.0) | (u == float("inf")), u - 1.0, y))
'''),
    "gw_log1p": ((), '''
def gw_log1p(x):
    """log(u) x / (u - 1) with u = 1 + x: corrects the rounding of u (Kahan)."""
    u = 1.0 + x
    y = tl.log(u) * (x / (u - 1.0))
    return tl.where(u == 1.0, x, tl.where(u < float("inf"), y, u))
'''),
    "gw_tanh": (("gw_expm1",), """
def gw_tanh(x):
    a = tl.abs(x)
    t = gw_expm1(-2.0 * a)
    y = -t / (2.0 + t)
    return tl.where(x == 0, x, tl.where(x < 0, -y, y))
"""),
    "gw_pow": ((), '''
def gw_pow(x, y):
    """|x|^y by logarithms; a negative x needs an integer y, whose parity is the sign."""
    size = tl.exp(y * tl.log(tl.abs(x)))
    odd = tl.abs(y - 2.0 * tl.floor(y * 0.5)) == 1.0
    negative = (x < 0) | ((x == 0) & (1.0 / x < 0))
    defined = (tl.floor(y) == y) | (x >= 0) | (x == float("-inf"))
    nonzero = tl.where(defined, tl.where(negative & odd, -size, size), float("nan"))
    return tl.where((y == 0) | (x == 1.0), tl.zeros_like(nonzero) + 1.0, nonzero)
'''),
    "gw_dot_half": ((), """
def gw_dot_half(x, y, total):
    if GW_INTERPRETED:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), total)
    return tl.dot(x, y, total, out_dtype=tl.float32)
"""),
    "gw_philox": ((), _PHILOX),
    "gw_uniform_f32": (("gw_philox",), """
def gw_uniform_f32(seed, position):
    a, b = gw_philox(seed, position)
    return (a >> 8).to(tl.float32) * 5.9604644775390625e-08
"""),
    "gw_uniform_f64": (("gw_philox",), """
def gw_uniform_f64(seed, position):
    a, b = gw_philox(seed, position)
    bits = (a.to(tl.int64) << 21) + (b >> 11).to(tl.int64)
    return bits.to(tl.float64) * 1.1102230246251565e-16
"""),
}  # fmt: skip


def preamble(used: set[str]) -> str:
    """Text of the functions in `used` and of those that they call."""
    needed: list[str] = []

    def need(name: str) -> None:
        if name not in needed:
            for other in _FUNCTIONS[name][0]:
                need(other)
            needed.append(name)

    for name in sorted(used):
        need(name)
    known = _INTERPRETED if "gw_dot_half" in needed else ""
    return known + "".join(f"\n\n@triton.jit{_FUNCTIONS[name][1]}" for name in needed)
