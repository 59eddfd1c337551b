"""Counter-based uniform random numbers: a function of a seed and a position, so they are recomputed instead of stored.

The generator is Philox-2x32 of ten rounds, the cheapest of its family that passes every battery of TestU01 (Salmon,
Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The key is the low half of the seed. The
counter is the position, whose high half is mixed with the high half of the seed. `runtime/native/graphweave/random.h`
is the same in C++.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

ROUNDS = 10
MULTIPLIER = 0xD256D193
"""Factor of the first word of the counter in each round."""

WEYL = 0x9E3779B9
"""Added to the key after each round."""

_LOW = 0xFFFFFFFF


def philox(counter: tuple[Any, Any], key: object) -> tuple[object, object]:
    """Two random 32-bit words; all arguments and results are int64 tensors of numbers below 2^32."""
    a, b = counter
    for i in range(ROUNDS):
        product = aten.mul.Tensor(a, MULTIPLIER)  # modulo 2^64, signed: the bits are those of the unsigned product
        bumped = _low(aten.add.Tensor(key, i * WEYL))
        a, b = _xor(_xor(_high(product), bumped), b), _low(product)
    return a, b


def uniform(seed: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1) of `dtype` (float32: 24 random bits, float64: 53). The arguments are int64 tensors, which are
    broadcast."""
    first, second = philox((_low(position), _xor(_high(position), _high(seed))), _low(seed))
    if dtype is torch.float32:
        bits = aten.bitwise_right_shift.Tensor_Scalar(first, 8)
        return aten.mul.Tensor(aten._to_copy.default(bits, dtype=dtype), 2.0**-24)
    high = aten.mul.Tensor(first, 1 << 21)
    bits = aten.add.Tensor(high, aten.bitwise_right_shift.Tensor_Scalar(second, 11))
    return aten.mul.Tensor(aten._to_copy.default(bits, dtype=dtype), 2.0**-53)


def _low(x: Tensor) -> Tensor:
    return aten.bitwise_and.Scalar(x, _LOW)


def _high(x: Tensor) -> Tensor:
    return _low(aten.bitwise_right_shift.Tensor_Scalar(x, 32))


def _xor(x: Tensor, y: Tensor) -> Tensor:
    return aten.bitwise_xor.Tensor(x, y)
