"""Products in Triton's interpreter that are the same bits in every tile, as a device's are.

NumPy's matrix products round differently for other numbers of rows, on some processors. The gradient of a maximum finds
its message by computing it again, in a tile of another size: there it found none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter


def install() -> None:
    """Makes the interpreter sum float32 products in float64 and round once, from now on."""
    plain = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        if not a.data.dtype == b.data.dtype == d.data.dtype == np.float32:
            return plain(self, a, b, d, *how)
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(np.float32)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot
