"""Operators on edges for JAX: `spmm`, `sddmm` and `attend` under `jit` and `grad`, with kernels (docs/jax.md)."""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("graphweave.jax needs JAX. Install it: pip install graphweave[jax].") from error

from graphweave.jax.fixed_graph import FixedGraph
from graphweave.jax.verbs import attend, sddmm, spmm

__all__ = ["FixedGraph", "attend", "sddmm", "spmm"]
