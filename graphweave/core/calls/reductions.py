"""Calls that reduce dims or work along one, and products."""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.core.calls.facts import CallFacts, Lead

_REDUCED = CallFacts(rows=Lead.reduced, any_strides=True)
_ALONG = CallFacts(rows=Lead.along, alike=("self",), any_strides=True)
_SOFTMAX = CallFacts(rows=Lead.each, alike=("self",), any_strides=True)  # mixes rows, but keeps their number and order
_OF_SOFTMAX = CallFacts(rows=Lead.each, alike=("grad_output", "output"), any_strides=True)
_BOTH = CallFacts(rows=Lead.matrices, operands=(0, 1), any_strides=True)
_PRODUCT = CallFacts(rows=Lead.product, any_strides=True)

REDUCTIONS: Mapping[str, CallFacts] = {
    **dict.fromkeys(
        (f"aten.{name}" for name in (
            "sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "prod.dim_int", "logsumexp.default",
            "linalg_vector_norm.default", "var.correction", "any.dim", "all.dim",
        )),
        _REDUCED,
    ),
    "aten.cumsum.default": _ALONG, "aten.cumprod.default": _ALONG,
    "aten._softmax.default": _SOFTMAX, "aten._log_softmax.default": _SOFTMAX,
    "aten._softmax_backward_data.default": _OF_SOFTMAX, "aten._log_softmax_backward_data.default": _OF_SOFTMAX,
    "aten.mm.default": _PRODUCT, "aten.addmm.default": _PRODUCT,
    "aten.mv.default": CallFacts(rows=Lead.matrices, operands=(0,), any_strides=True),
    "aten.bmm.default": _BOTH, "aten.matmul.default": _BOTH,
    "aten.einsum.default": CallFacts(rows=Lead.equation, any_strides=True),
    # each item of a batch by itself; the elements of a row must be contiguous
    "aten._scaled_dot_product_flash_attention_for_cpu.default": CallFacts(kept=(0, 1), operands=(0, 1, 2)),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": CallFacts(
        kept=(0, 1, 2), operands=(0, 1, 2, 3, 4, 5)
    ),
    **dict.fromkeys(
        (f"aten.{name}" for name in (
            "sum", "mean", "prod", "any", "all", "var", "std", "var_mean", "std_mean", "cumsum", "cumprod",
            "logcumsumexp", "norm", "count_nonzero", "baddbmm", "addbmm", "addmv", "dot", "vdot", "addr", "outer",
            "linear", "linalg_cross", "mse_loss", "binary_cross_entropy", "nll_loss_forward", "nll_loss_backward",
        )),
        CallFacts(any_strides=True),
    ),
}  # fmt: skip
