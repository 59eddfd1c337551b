"""JAX: graphs with data and message passing, layers, and operators on edges, under `jit` and `grad`, with kernels
(docs/jax.md)."""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("graphweave.jax needs JAX. Install it: pip install graphweave[jax].") from error

from graphweave.jax.array_graph import ArrayGraph as Graph
from graphweave.jax.array_graph import batch, graph, heterograph, readout_edges, readout_nodes, unbatch
from graphweave.jax.fixed_graph import FixedGraph
from graphweave.jax.layers import Layer
from graphweave.jax.native import set_num_threads
from graphweave.jax.verbs import attend, sddmm, spmm

__all__ = [
    "FixedGraph",
    "Graph",
    "Layer",
    "attend",
    "batch",
    "graph",
    "heterograph",
    "readout_edges",
    "readout_nodes",
    "sddmm",
    "set_num_threads",
    "spmm",
    "unbatch",
]
