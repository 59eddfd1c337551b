"""Spares compilations those imports of PyTorch's modules whose answer is known without them.

Two imports that a first compilation makes, for features that it does not use, take a tenth of its time (PyTorch 2.13).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from functorch.compile import aot_module_simplified
from torch import fx
from torch._dynamo import disable
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.variables import higher_order_ops

_LOCAL_MAPS = "torch.distributed.tensor.experimental._func_map"
"""The module that defines `local_map`, a function of PyTorch's distributed tensors."""

_local_map: Any = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
"""Dynamo's class of variables for wrapped calls of `local_map`, None in a version that has none."""
_is_wrapped: Any = getattr(_local_map, "should_wrap_in_hop", None)


def _is_wrapped_local_map(value: Any) -> bool:
    """Whether `value` is the function that wraps calls of `local_map`. If nobody has imported the module that defines
    it, no value is.

    Dynamo asks for each function of PyTorch's that it meets, and imports that module to compare, which takes 0.1 s.
    """
    return _LOCAL_MAPS in sys.modules and _is_wrapped(value)


if _is_wrapped is not None:
    _local_map.should_wrap_in_hop = staticmethod(_is_wrapped_local_map)


def through_aot_autograd(
    module: fx.GraphModule, inputs: Sequence[Any], *, compiler: Callable[..., Any], **kwargs: Any
) -> Callable[..., Any]:
    """`aot_autograd(fw_compiler=compiler, bw_compiler=compiler, **kwargs)(module, inputs)`.

    `aot_autograd` imports Inductor's scheduler for logs that the environment's TORCH_COMPILE_DEBUG=1 asks for, which
    takes 0.1 s. Without it, and for the flat inputs that Dynamo gives, the function behind it does the same.
    """
    if os.environ.get("TORCH_COMPILE_DEBUG", "0") == "1" or any(isinstance(x, (list, tuple, dict)) for x in inputs):
        made: Callable[..., Any] = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, **kwargs)(module, inputs)
        return made

    def backward(*args: Any, **given: Any) -> Any:
        untraced = disable(compiler, reason="do not trace the compiler of the backward")
        return disable(untraced(*args, **given), reason="do not trace the compiled backward")

    compiled = aot_module_simplified(module, inputs, fw_compiler=compiler, bw_compiler=backward, **kwargs)
    return disable(compiled, reason="do not trace compiled code")
