"""Spares compilations an import of PyTorch's that they do not use (PyTorch 2.13)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from functorch.compile import aot_module_simplified
from torch import fx
from torch._dynamo import disable
from torch._dynamo.backends.common import aot_autograd


def through_aot_autograd(
    module: fx.GraphModule, inputs: Sequence[object], *, compiler: Callable[..., object], **kwargs: object
) -> Callable[..., object]:
    """`aot_autograd(fw_compiler=compiler, bw_compiler=compiler, **kwargs)(module, inputs)`.

    `aot_autograd` imports Inductor's scheduler for logs that the environment's TORCH_COMPILE_DEBUG=1 asks for, which
    takes 0.1 s. Without it, and for the flat inputs that Dynamo gives, the function behind it does the same.
    """
    if os.environ.get("TORCH_COMPILE_DEBUG", "0") == "1" or any(isinstance(x, (list, tuple, dict)) for x in inputs):
        made: Callable[..., Any] = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, **kwargs)(module, inputs)
        return made

    def backward(*args: object, **given: object) -> Any:
        untraced = disable(compiler, reason="do not trace the compiler of the backward")
        return disable(untraced(*args, **given), reason="do not trace the compiled backward")

    # Dynamo itself sees to it that the result is not traced
    compiled: Callable[..., Any] = aot_module_simplified(
        module, inputs, fw_compiler=compiler, bw_compiler=backward, **kwargs
    )
    return compiled
