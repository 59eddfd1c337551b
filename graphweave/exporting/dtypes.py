"""Element types by the codes and names of the C interface and of safetensors."""

from __future__ import annotations

import torch

from graphweave.core.types import DType
from graphweave.ir.message.aten import DTYPE_OF

DTYPE_CODE: dict[DType, str] = {
    DType.f32: "GW_FLOAT32", DType.f64: "GW_FLOAT64", DType.i32: "GW_INT32", DType.i64: "GW_INT64",
    DType.i16: "GW_INT16", DType.i8: "GW_INT8", DType.u8: "GW_UINT8", DType.bool: "GW_BOOL", DType.f16: "GW_FLOAT16",
    DType.bf16: "GW_BFLOAT16",
}  # fmt: skip
"""The C interface's code of each element type, in the order of their numbers."""

NUMBER_OF: dict[DType, int] = {dtype: number for number, dtype in enumerate(DTYPE_CODE)}

SAFETENSORS: dict[DType, str] = {
    DType.f32: "F32", DType.f64: "F64", DType.i32: "I32", DType.i64: "I64", DType.i16: "I16", DType.i8: "I8",
    DType.u8: "U8", DType.bool: "BOOL", DType.f16: "F16", DType.bf16: "BF16",
}  # fmt: skip
"""Its name in a safetensors file."""


def code_of(dtype: torch.dtype) -> str:
    return DTYPE_CODE[DTYPE_OF[dtype]]
