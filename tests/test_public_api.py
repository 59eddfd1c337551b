"""The names users may rely on. A change here is a change of the interface: say so in the commit."""

from __future__ import annotations

import importlib
import inspect

import pytest

PUBLIC: dict[str, list[str]] = {
    "graphweave": [
        "EID",
        "ETYPE",
        "Graph",
        "NID",
        "NTYPE",
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
        "unbatch",
    ],
    "graphweave.data": [
        "FAMILY_RELATIONS",
        "KnowledgeGraph",
        "KnownTails",
        "NO_LABEL",
        "NodeData",
        "Ranking",
        "TypedNodeData",
        "digits",
        "families",
        "filtered_ranks",
        "karate",
        "mask_of",
        "npz",
        "planetoid",
        "random_split",
        "relational",
        "rmat",
        "symmetrise",
    ],
    "graphweave.loops": [
        "TypedEdges",
        "compile",
        "concat",
        "dot_prd",
        "dot_prod",
        "exp",
        "leakyrelu",
        "linear",
        "maximum",
        "mean",
        "minimum",
        "outer_prod",
        "relu",
        "reshape",
        "sigmoid",
        "sum",
        "tanh",
        "where",
    ],
    "graphweave.nn": [
        "AGNNConv",
        "APPNPConv",
        "AvgPooling",
        "CGATConv",
        "ChebConv",
        "DistMult",
        "EdgeConv",
        "EdgeMLPConv",
        "GATConv",
        "GATv2Conv",
        "GINConv",
        "GMMConv",
        "GlobalAttentionPooling",
        "GraphConv",
        "HANConv",
        "HGTConv",
        "MaxPooling",
        "RGATConv",
        "RelGraphConv",
        "RotatE",
        "SAGEConv",
        "SGConv",
        "Set2Set",
        "SimpleHGNConv",
        "SortPooling",
        "SumPooling",
        "TAGConv",
        "TypedLinear",
        "WeightAndSum",
        "edge_pairs",
        "far_nodes",
    ],
    "graphweave.ops": ["gather_mm", "segment_mm"],
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == PUBLIC[name]
    assert all(hasattr(module, public) for public in module.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public in module.__all__:
        value = getattr(module, public)
        if callable(value) and inspect.signature(value).parameters:
            assert value.__doc__, f"{name}.{public} has no docstring"
