"""Modules of PyTorch as functions of JAX: the layers of `graphweave.nn` from the source that PyTorch runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from graphweave.jax.array_graph import inward
from graphweave.jax.passing import hosted
from graphweave.jax.tensors import unwrapped, wrapped

Parameters = dict[str, jax.Array]
"""The parameters of a module by the names that its state dict has: a pytree."""


class Layer:
    """A module of PyTorch, a layer of `graphweave.nn` for example, as a pure function of JAX.

    `layer.init(key)` draws parameters as the module's constructor does. `layer.apply(parameters, graph, x)` is the
    module's `forward`, with arrays in the place of tensors and a `graphweave.jax.Graph` in that of a graph; `jit`,
    `grad` and `vmap` take it as they take any function. What the module and the modules in it compute is said once, in
    PyTorch; `array_functions.py` says what PyTorch's operators are in JAX, and messages run in kernels (`passing.py`).

    The module is in evaluation mode, so that dropout does nothing; buffers are constants. A step that has no meaning in
    JAX raises NotExpressible, which names it.

    >>> layer = Layer(graphweave.nn.GATConv(5, 4, num_heads=2))
    >>> parameters = layer.init(jax.random.key(0))
    >>> layer.apply(parameters, graph, jnp.ones((3, 5))).shape
    (3, 2, 4)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval().requires_grad_(False)

    def __repr__(self) -> str:
        return f"Layer({self.module!r})"

    def init(self, key: jax.Array) -> Parameters:
        """New parameters, float32, which `key` decides."""
        seed = int(np.asarray(jax.random.bits(key, dtype=jnp.uint32)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for module in reversed(list(self.module.modules())):  # what a module resets in its parts comes last
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
        return self.parameters()

    def parameters(self) -> Parameters:
        """The parameters that the module has."""
        return {name: jnp.asarray(p.detach().numpy()) for name, p in self.module.named_parameters()}

    def apply(self, parameters: Parameters, *args: Any, **options: Any) -> Any:
        """The result of `forward` with these parameters, arrays in the place of tensors."""
        with hosted():
            given, named = jax.tree.map(
                inward, (args, options), is_leaf=lambda x: not isinstance(x, (tuple, list, dict))
            )
            return unwrapped(torch.func.functional_call(self.module, wrapped(parameters), given, named))
