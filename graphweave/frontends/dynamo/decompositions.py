"""Which compound ATen calls are taken apart while a graph is captured, so that the importer meets few kinds of call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten

_COMPOUND: tuple[Any, ...] = (
    aten.elu, aten.elu_backward, aten.gelu, aten.gelu_backward, aten.silu, aten.silu_backward, aten.softplus,
    aten.softplus_backward, aten.hardtanh_backward, aten.hardsigmoid, aten.hardsigmoid_backward, aten.hardswish,
    aten.hardswish_backward, aten.mish, aten.mish_backward, aten.log_sigmoid_forward, aten.log_sigmoid_backward,
    aten.addcmul, aten.addcdiv, aten.lerp, aten.threshold, aten.logit, aten.xlogy, aten.heaviside, aten.softshrink,
    aten.hardshrink, aten.celu, aten.selu, aten.glu, aten.glu_backward, aten.sinc, aten.logaddexp,
    aten._softmax, aten._log_softmax, aten._softmax_backward_data, aten._log_softmax_backward_data,
    aten.logsumexp, aten.linalg_vector_norm, aten.norm, aten.dist, aten.std, aten.std_mean, aten.var, aten.var_mean,
    aten.native_dropout_backward, aten.nll_loss_forward, aten.nll_loss_backward, aten.mse_loss, aten.mse_loss_backward,
    aten.smooth_l1_loss, aten.smooth_l1_loss_backward, aten.huber_loss, aten.huber_loss_backward,
    aten.binary_cross_entropy, aten.binary_cross_entropy_backward, aten.binary_cross_entropy_with_logits,
    aten.soft_margin_loss, aten.soft_margin_loss_backward,
    aten._prelu_kernel, aten._prelu_kernel_backward, aten.trace, aten.narrow, aten.isinf, aten.isfinite,
)  # fmt: skip
"""Random calls are not among them: they stay what eager mode calls, so that one seed gives the same masks."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `aot_autograd(decompositions=...)`. Results differ from eager's by rounding at most."""
    return dict(get_decompositions(_COMPOUND))
