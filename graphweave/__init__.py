"""graphweave compiles graph neural networks: message passing in plain PyTorch, as a few fused kernels."""

from graphweave.core.counters import counters, reset_counters
from graphweave.frontends.dynamo.compile import compile
from graphweave.frontends.dynamo.explain import explain

__version__ = "0.1.0"

__all__ = ["compile", "counters", "explain", "reset_counters"]
