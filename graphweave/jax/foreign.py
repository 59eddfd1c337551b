"""The primitive of JAX that runs a table of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from graphweave.core.errors import DataError
from graphweave.jax.native import TARGET, CallTable

kernels_p = Primitive("graphweave_kernels")
kernels_p.multiple_results = True

Shapes = tuple[tuple[tuple[int, ...], str], ...]
"""Shapes and dtypes of results."""


def run_kernels(table: CallTable, operands: Sequence[Array], results: Shapes) -> list[Array]:
    """The results of kernels of `table`: arrays of these shapes and dtypes."""
    return kernels_p.bind(*operands, table=table, results=results)


@kernels_p.def_abstract_eval
def _abstract(*operands: Array, table: CallTable, results: Shapes) -> list[ShapedArray]:
    return [ShapedArray(shape, jnp.dtype(dtype)) for shape, dtype in results]


@kernels_p.def_impl
def _outside_jit(*operands: Array, table: CallTable, results: Shapes) -> list[Array]:
    if table.jitted is None:
        table.jitted = jax.jit(lambda *xs: kernels_p.bind(*xs, table=table, results=results))
    return table.jitted(*operands)


_foreign = jax.ffi.ffi_lowering(TARGET)


def _lowered(ctx: Any, *operands: Array, table: CallTable, results: Shapes) -> Any:
    devices = getattr(ctx.module_context.axis_context, "num_devices", None)
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    count = devices if devices is not None else getattr(mesh, "size", 1)
    if count is not None and count > 1:
        raise DataError(
            f"expected a function of one device (got {count}): a graph's kernels run where all of its rows are."
            " Call graphweave.jax outside of what is sharded, or gather the rows on one device first."
        )
    ctx.module_context.add_keepalive(table)
    return _foreign(ctx, *operands, table=np.int64(table.id))


mlir.register_lowering(kernels_p, _lowered, platform="cpu")
