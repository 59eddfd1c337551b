"""graphweave compiles graph neural networks: message passing in plain PyTorch, as a few fused kernels."""

from graphweave import extend, loops
from graphweave.core.counters import counters, reset_counters
from graphweave.core.schedule import Schedule
from graphweave.frontends.dynamo.compile import compile
from graphweave.frontends.dynamo.explain import explain
from graphweave.frontends.dynamo.tune import tune
from graphweave.graph.batch import batch, unbatch
from graphweave.graph.build import graph, heterograph
from graphweave.graph.convert_from import from_dgl, from_networkx, from_pyg, from_scipy
from graphweave.graph.frame import EID, ETYPE, NID, NTYPE
from graphweave.graph.graph import Graph
from graphweave.graph.hetero import to_heterogeneous, to_homogeneous
from graphweave.graph.readout import (
    broadcast_edges,
    broadcast_nodes,
    max_edges,
    max_nodes,
    mean_edges,
    mean_nodes,
    readout_edges,
    readout_nodes,
    softmax_edges,
    softmax_nodes,
    sum_edges,
    sum_nodes,
    topk_edges,
    topk_nodes,
)
from graphweave.graph.softmax import edge_softmax
from graphweave.graph.transform import (
    add_self_loop,
    edge_subgraph,
    in_subgraph,
    out_subgraph,
    remove_self_loop,
    reverse,
    subgraph,
    to_bidirected,
)

__version__ = "0.1.0"

__all__ = [
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "Graph",
    "Schedule",
    "add_self_loop",
    "batch",
    "broadcast_edges",
    "broadcast_nodes",
    "compile",
    "counters",
    "edge_softmax",
    "edge_subgraph",
    "explain",
    "extend",
    "from_dgl",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "graph",
    "heterograph",
    "in_subgraph",
    "loops",
    "max_edges",
    "max_nodes",
    "mean_edges",
    "mean_nodes",
    "out_subgraph",
    "readout_edges",
    "readout_nodes",
    "remove_self_loop",
    "reset_counters",
    "reverse",
    "softmax_edges",
    "softmax_nodes",
    "subgraph",
    "sum_edges",
    "sum_nodes",
    "to_bidirected",
    "to_heterogeneous",
    "to_homogeneous",
    "topk_edges",
    "topk_nodes",
    "tune",
    "unbatch",
]
