"""The package's C++ headers that generated text may include.

They lie in `runtime/native/graphweave/`; `runtime/headers.py` tells the compiler where.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from graphweave.core.types import DType

Header: TypeAlias = Literal[
    "base", "bfloat16", "elementary", "float16", "folds", "half_products", "lanes", "numbers", "online_softmax",
    "parallel", "pointwise", "prefetch", "products", "random", "row_products", "streaming",
]  # fmt: skip

HALVES: dict[DType, Header] = {DType.f16: "float16", DType.bf16: "bfloat16"}


def includes(headers: Iterable[Header]) -> str:
    return "".join(f"#include <graphweave/{header}.h>\n" for header in sorted(set(headers)))
