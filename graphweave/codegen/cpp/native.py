"""The package's C++ headers, as generated text uses them: it includes them by name, and calls what is in them.

They lie in `runtime/native/graphweave/`; the compiler is told where by `runtime/headers.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from graphweave.core.types import DType

Header: TypeAlias = Literal[
    "base", "bfloat16", "elementary", "float16", "folds", "half_products", "lanes", "numbers", "online_softmax",
    "pointwise", "prefetch", "products", "random", "row_products", "streaming", "threads", "typed_scatter",
]  # fmt: skip

HALVES: dict[DType, Header] = {DType.f16: "float16", DType.bf16: "bfloat16"}


def includes(headers: Iterable[Header]) -> str:
    return "".join(f"#include <graphweave/{header}.h>\n" for header in sorted(set(headers)))


def kernel_of(name: str, header: Header, function: str, template: Iterable[object], sizes: Iterable[str] = ()) -> str:
    """The text of a kernel that is one call of a header's function, `function<template>(ptrs, sizes, chunks, ...)`."""
    arguments = ", ".join(("ptrs", *sizes, "chunks", "num_chunks", "num_threads"))
    return (
        f"{includes((header,))}\n"
        f'extern "C" int32_t {name}(\n'
        "    void* const* ptrs, [[maybe_unused]] const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,\n"
        "    int32_t num_threads) {\n"
        f"  return {function}<{', '.join(_spelled(value) for value in template)}>({arguments});\n"
        "}\n"
    )


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
