"""Calls that work on each row, besides those that PyTorch itself marks as pointwise."""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.core.calls.facts import CallFacts, Lead

_EACH = CallFacts(rows=Lead.each)
_FIRST = CallFacts(kept=(0,))
"""A normalisation: the first of its results has the rows of the operand."""
_ROBUST = CallFacts(kept=(0,), any_strides=True)

ROWWISE: Mapping[str, CallFacts] = {
    **dict.fromkeys(
        (f"aten.{name}" for name in (
            "leaky_relu_backward.default", "elu_backward.default", "gelu_backward.default", "softplus_backward.default",
            "silu_backward.default", "hardtanh_backward.default", "bernoulli.p", "bernoulli.default",
            "randn_like.default", "uniform.default", "normal_functional.default",
        )),
        _EACH,
    ),
    "aten.rand_like.default": CallFacts(rows=Lead.given, operands=(0,)),
    "aten.native_dropout_backward.default": CallFacts(rows=Lead.given, operands=(0, 1)),
    **dict.fromkeys(
        (f"aten.{name}" for name in (
            "native_batch_norm.default", "_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats",
            "_native_batch_norm_legit_no_training.default", "_batch_norm_with_update_functional.default",
            "batch_norm_backward.default", "native_group_norm.default", "native_group_norm_backward.default",
        )),
        _FIRST,
    ),
    **dict.fromkeys(
        (f"aten.{name}.default" for name in (
            "native_layer_norm", "native_layer_norm_backward", "_native_batch_norm_legit_functional",
            "native_batch_norm_backward",
        )),
        _ROBUST,
    ),
    "aten.frexp.Tensor": CallFacts(kept=(0, 1)),
    "aten.masked_fill": CallFacts(any_strides=True),
}  # fmt: skip
