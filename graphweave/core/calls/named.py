"""Calls that the compiler writes itself, or looks for by name: each constant is the name of an overload."""

from __future__ import annotations

ARANGE = "aten.arange.default"
ARANGE_OF_STEPS = "aten.arange.start_step"
ASSERT_SIZE = "aten._assert_scalar.default"
ASSERT_TENSOR = "aten._assert_async.msg"
CLONE = "aten.clone.default"
ITEM = "aten._local_scalar_dense.default"
RANDOM_INTEGERS = "aten.randint.default"
RESHAPE = "aten.reshape.default"
SELECT = "aten.select.int"
SIZE = "aten.sym_size.int"
SLICE = "aten.slice.Tensor"
SLICE_GRADIENT = "aten.slice_backward.default"
TENSOR_OF_SIZE = "aten.scalar_tensor.default"
