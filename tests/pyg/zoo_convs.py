"""One case for every convolution of `torch_geometric.nn.conv` and its main options."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.conv import MeshCNNConv

from tests.pyg.zoo_graphs import (
    EDGE_DIM,
    EDGES,
    IN,
    METADATA,
    NODES,
    OUT,
    RELATIONS,
    Built,
    Make,
    batch,
    edges,
    hetero,
    randn,
    undirected,
)  # fmt: skip


def on(layer: nn.Module, *extra: Any, index: Tensor | None = None, **named: Any) -> Built:
    """`layer(x, edge_index, *extra, **named)` on the homogeneous graph."""
    return Built(layer, (randn(NODES, IN), edges() if index is None else index, *extra), named)


def attr() -> Tensor:
    return randn(EDGES, EDGE_DIM)


def weight() -> Tensor:
    return torch.rand(EDGES) + 0.1


def kinds() -> Tensor:
    return torch.randint(RELATIONS, (EDGES,))


def pair(layer: nn.Module, *extra: Any, **named: Any) -> Built:
    """`layer((x_src, x_dst), edge_index, *extra)` with 9 sources and 7 destinations."""
    return Built(layer, ((randn(9, IN), randn(7, IN)), edges(9, 7), *extra), named)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, OUT), nn.ReLU(), nn.Linear(OUT, outputs))


def histogram() -> Tensor:
    """A histogram of in-degrees, which PNA requires."""
    return torch.tensor([1, 4, 6, 9, 6, 3, 1])


def points(layer: nn.Module, x: Tensor | None, *extra: Tensor) -> Built:
    return Built(layer, (x, randn(NODES, 3), *extra, edges()))


def typed(layer: nn.Module) -> Built:
    return Built(layer, hetero())


def mesh() -> Built:
    index = torch.stack([torch.arange(NODES).repeat_interleave(4), torch.randint(NODES, (4 * NODES,))])
    return Built(MeshCNNConv(IN, OUT), (randn(NODES, IN), index))


def heterogeneous() -> Built:
    convs = {kind: pyg.GCNConv(IN, OUT) if kind[0] == kind[2] else pyg.SAGEConv((IN, IN), OUT) for kind in METADATA[1]}
    return typed(pyg.HeteroConv(convs, aggr="sum"))


def hyper(**options: Any) -> Built:
    layer = pyg.HypergraphConv(IN, OUT, **options)
    extra = (torch.rand(10), randn(10, IN)) if options else ()
    return Built(layer, (randn(NODES, IN), edges(NODES, 10), *extra))


def rgat(**options: Any) -> Built:
    layer = pyg.RGATConv(IN, OUT, RELATIONS, edge_dim=EDGE_DIM, **options)
    return on(layer, kinds(), attr())


def pna(**options: Any) -> Built:
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    layer = pyg.PNAConv(IN, OUT, aggregators, scalers, histogram(), **options)
    return on(layer, *([attr()] if "edge_dim" in options else []))


def edge_case(layer: nn.Module, dims: int) -> Built:
    """`layer` with pseudo-coordinates in [0, 1) as edge attributes."""
    return on(layer, torch.rand(EDGES, dims))


def heat(**options: Any) -> Built:
    layer = pyg.HEATConv(IN, OUT, 2, RELATIONS, 4, EDGE_DIM, 6, **options)
    return on(layer, torch.randint(2, (NODES,)), kinds(), attr())


def dna(**options: Any) -> Built:
    return Built(pyg.DNAConv(IN, **options), (randn(NODES, 3, IN), edges()))


def degrees_one_hot() -> Built:
    """Weisfeiler-Lehman colours from one-hot features; integers, no gradient."""
    return Built(pyg.WLConv(), (torch.randint(4, (NODES,)), undirected()))


def super_gat(kind: str) -> Built:
    """SuperGAT with given negative edges. Drawing them inside would need a sampler on the host."""
    layer = pyg.SuperGATConv(IN, OUT, heads=2, attention_type=kind, edge_sample_ratio=1.0)
    return on(layer, neg_edge_index=edges(num_edges=30))


CONVS: dict[str, Make] = {
    "SimpleConv": lambda: on(pyg.SimpleConv()),
    "SimpleConv-mean-cat": lambda: on(pyg.SimpleConv("mean", combine_root="cat"), weight()),
    "SimpleConv-median": lambda: on(pyg.SimpleConv("median")),
    "SimpleConv-mul": lambda: on(pyg.SimpleConv("mul")),
    "SimpleConv-var": lambda: on(pyg.SimpleConv("var")),
    "SimpleConv-powermean": lambda: on(pyg.SimpleConv(pyg.PowerMeanAggregation(learn=True))),
    "GCNConv": lambda: on(pyg.GCNConv(IN, OUT)),
    "GCNConv-weight": lambda: on(pyg.GCNConv(IN, OUT, improved=True), weight()),
    "GCNConv-no-loops": lambda: on(pyg.GCNConv(IN, OUT, add_self_loops=False, bias=False)),
    "GCNConv-raw": lambda: on(pyg.GCNConv(IN, OUT, normalize=False), weight()),
    "GCNConv-target": lambda: on(pyg.GCNConv(IN, OUT, flow="target_to_source")),
    "ChebConv": lambda: on(pyg.ChebConv(IN, OUT, K=3)),
    "ChebConv-rw": lambda: on(pyg.ChebConv(IN, OUT, K=2, normalization="rw"), weight(), batch(), torch.rand(3) + 1.5),
    "SAGEConv": lambda: on(pyg.SAGEConv(IN, OUT)),
    "SAGEConv-max": lambda: on(pyg.SAGEConv(IN, OUT, aggr="max", project=True)),
    "SAGEConv-normalize": lambda: on(pyg.SAGEConv(IN, OUT, aggr="sum", normalize=True)),
    "SAGEConv-softmax": lambda: on(pyg.SAGEConv(IN, OUT, aggr="softmax")),
    "SAGEConv-multi": lambda: on(pyg.SAGEConv(IN, OUT, aggr=["mean", "max", "std"])),
    "SAGEConv-pair": lambda: pair(pyg.SAGEConv((IN, IN), OUT)),
    "SAGEConv-lstm": lambda: on(pyg.SAGEConv(IN, OUT, aggr="lstm"), index=undirected().flip(0)),
    "GraphConv": lambda: on(pyg.GraphConv(IN, OUT), weight()),
    "GraphConv-max": lambda: on(pyg.GraphConv(IN, OUT, aggr="max")),
    "GraphConv-pair": lambda: pair(pyg.GraphConv((IN, IN), OUT, aggr="mean")),
    "GatedGraphConv": lambda: on(pyg.GatedGraphConv(OUT, num_layers=2)),
    "ResGatedGraphConv": lambda: on(pyg.ResGatedGraphConv(IN, OUT)),
    "ResGatedGraphConv-edge": lambda: on(pyg.ResGatedGraphConv(IN, OUT, edge_dim=EDGE_DIM), attr()),
    "GATConv": lambda: on(pyg.GATConv(IN, OUT)),
    "GATConv-heads": lambda: on(pyg.GATConv(IN, OUT, heads=4)),
    "GATConv-edge": lambda: on(pyg.GATConv(IN, OUT, heads=2, concat=False, edge_dim=EDGE_DIM), attr()),
    "GATConv-residual": lambda: on(pyg.GATConv(IN, OUT, heads=2, residual=True, add_self_loops=False)),
    "GATConv-dropout": lambda: on(pyg.GATConv(IN, OUT, heads=2, dropout=0.4)),
    "GATConv-pair": lambda: pair(pyg.GATConv((IN, IN), OUT, heads=2, add_self_loops=False)),
    "GATConv-attention": lambda: on(pyg.GATConv(IN, OUT, heads=2), return_attention_weights=True),
    "GATv2Conv": lambda: on(pyg.GATv2Conv(IN, OUT)),
    "GATv2Conv-heads": lambda: on(pyg.GATv2Conv(IN, OUT, heads=4, share_weights=True)),
    "GATv2Conv-edge": lambda: on(pyg.GATv2Conv(IN, OUT, heads=2, concat=False, edge_dim=EDGE_DIM), attr()),
    "GATv2Conv-residual": lambda: on(pyg.GATv2Conv(IN, OUT, heads=2, residual=True, fill_value="max")),
    "GATv2Conv-pair": lambda: pair(pyg.GATv2Conv((IN, IN), OUT, heads=2, add_self_loops=False)),
    "TransformerConv": lambda: on(pyg.TransformerConv(IN, OUT, heads=2)),
    "TransformerConv-edge": lambda: on(pyg.TransformerConv(IN, OUT, 2, beta=True, edge_dim=EDGE_DIM), attr()),
    "TransformerConv-mean": lambda: on(pyg.TransformerConv(IN, OUT, 2, concat=False, root_weight=False)),
    "AGNNConv": lambda: on(pyg.AGNNConv()),
    "TAGConv": lambda: on(pyg.TAGConv(IN, OUT, K=2)),
    "TAGConv-raw": lambda: on(pyg.TAGConv(IN, OUT, K=2, normalize=False), weight()),
    "GINConv": lambda: on(pyg.GINConv(mlp(IN, OUT))),
    "GINConv-eps": lambda: on(pyg.GINConv(mlp(IN, OUT), train_eps=True, aggr="mean")),
    "GINConv-pair": lambda: pair(pyg.GINConv(mlp(IN, OUT))),
    "GINEConv": lambda: on(pyg.GINEConv(mlp(IN, OUT), edge_dim=EDGE_DIM), attr()),
    "GINEConv-eps": lambda: on(pyg.GINEConv(mlp(IN, OUT), train_eps=True), randn(EDGES, IN)),
    "ARMAConv": lambda: on(pyg.ARMAConv(IN, OUT)),
    "ARMAConv-stacks": lambda: on(pyg.ARMAConv(IN, OUT, num_stacks=2, num_layers=2, shared_weights=True), weight()),
    "SGConv": lambda: on(pyg.SGConv(IN, OUT, K=2)),
    "SSGConv": lambda: on(pyg.SSGConv(IN, OUT, alpha=0.2, K=2)),
    "APPNP": lambda: on(pyg.APPNP(K=3, alpha=0.1)),
    "APPNP-dropout": lambda: on(pyg.APPNP(K=2, alpha=0.1, dropout=0.3), weight()),
    "MFConv": lambda: on(pyg.MFConv(IN, OUT, max_degree=4)),
    "RGCNConv": lambda: on(pyg.RGCNConv(IN, OUT, RELATIONS), kinds()),
    "RGCNConv-bases": lambda: on(pyg.RGCNConv(IN, OUT, RELATIONS, num_bases=2, aggr="add"), kinds()),
    "RGCNConv-blocks": lambda: on(pyg.RGCNConv(IN, OUT, RELATIONS, num_blocks=4), kinds()),
    "RGCNConv-embedding": lambda: Built(pyg.RGCNConv(NODES, OUT, RELATIONS), (None, edges(), kinds())),
    "FastRGCNConv": lambda: on(pyg.FastRGCNConv(IN, OUT, RELATIONS), kinds()),
    "FastRGCNConv-bases": lambda: on(pyg.FastRGCNConv(IN, OUT, RELATIONS, num_bases=2), kinds()),
    "RGATConv": lambda: rgat(),
    "RGATConv-within": lambda: rgat(attention_mechanism="within-relation", heads=2, num_bases=2),
    "RGATConv-product": lambda: rgat(attention_mode="multiplicative-self-attention", heads=2, concat=False),
    "RGATConv-mod": lambda: rgat(mod="f-scaled", num_blocks=4),
    "SignedConv": lambda: on(pyg.SignedConv(IN, OUT, first_aggr=True), edges()),
    "SignedConv-later": lambda: Built(
        pyg.SignedConv(IN // 2, OUT, first_aggr=False), (randn(NODES, IN), edges(), edges())
    ),
    "DNAConv": lambda: dna(),
    "DNAConv-heads": lambda: dna(heads=4, groups=4),
    "PointNetConv": lambda: points(pyg.PointNetConv(mlp(IN + 3, OUT), mlp(OUT, OUT)), randn(NODES, IN)),
    "PointNetConv-positions": lambda: points(pyg.PointNetConv(mlp(3, OUT), add_self_loops=False), None),
    "GMMConv": lambda: edge_case(pyg.GMMConv(IN, OUT, dim=2, kernel_size=3), 2),
    "GMMConv-separate": lambda: edge_case(pyg.GMMConv(IN, OUT, 2, 3, separate_gaussians=True, aggr="add"), 2),
    "NNConv": lambda: on(pyg.NNConv(IN, OUT, mlp(EDGE_DIM, IN * OUT)), attr()),
    "NNConv-mean": lambda: on(pyg.NNConv(IN, OUT, mlp(EDGE_DIM, IN * OUT), aggr="mean", root_weight=False), attr()),
    "CGConv": lambda: on(pyg.CGConv(IN)),
    "CGConv-edge-norm": lambda: on(pyg.CGConv(IN, dim=EDGE_DIM, batch_norm=True, aggr="mean"), attr()),
    "EdgeConv": lambda: on(pyg.EdgeConv(mlp(2 * IN, OUT))),
    "EdgeConv-mean": lambda: on(pyg.EdgeConv(mlp(2 * IN, OUT), aggr="mean")),
    "EdgeConv-pair": lambda: pair(pyg.EdgeConv(mlp(2 * IN, OUT))),
    "PPFConv": lambda: points(pyg.PPFConv(mlp(IN + 4, OUT), mlp(OUT, OUT)), randn(NODES, IN), randn(NODES, 3)),
    "FeaStConv": lambda: on(pyg.FeaStConv(IN, OUT, heads=3)),
    "PointTransformerConv": lambda: points(pyg.PointTransformerConv(IN, OUT), randn(NODES, IN)),
    "HypergraphConv": lambda: hyper(),
    "HypergraphConv-attention": lambda: hyper(use_attention=True, heads=2),
    "HypergraphConv-edge": lambda: hyper(use_attention=True, heads=2, concat=False, attention_mode="edge"),
    "LEConv": lambda: on(pyg.LEConv(IN, OUT), weight()),
    "PNAConv": lambda: pna(),
    "PNAConv-towers": lambda: pna(edge_dim=EDGE_DIM, towers=2, pre_layers=2, divide_input=True, train_norm=True),
    "ClusterGCNConv": lambda: on(pyg.ClusterGCNConv(IN, OUT, diag_lambda=0.3)),
    "GENConv": lambda: on(pyg.GENConv(IN, OUT)),
    "GENConv-learn": lambda: on(
        pyg.GENConv(IN, OUT, learn_t=True, msg_norm=True, learn_msg_scale=True, edge_dim=EDGE_DIM), attr()
    ),
    "GENConv-power": lambda: on(pyg.GENConv(IN, OUT, aggr="powermean", learn_p=True, norm="layer")),
    "GCN2Conv": lambda: Built(pyg.GCN2Conv(IN, 0.5), (randn(NODES, IN), randn(NODES, IN), edges())),
    "GCN2Conv-theta": lambda: Built(
        pyg.GCN2Conv(IN, 0.5, theta=1.0, layer=2, shared_weights=False),
        (randn(NODES, IN), randn(NODES, IN), edges(), weight()),
    ),
    "WLConv": degrees_one_hot,
    "WLConvContinuous": lambda: on(pyg.WLConvContinuous(), weight()),
    "FiLMConv": lambda: on(pyg.FiLMConv(IN, OUT)),
    "FiLMConv-relations": lambda: on(pyg.FiLMConv(IN, OUT, num_relations=RELATIONS, aggr="add"), kinds()),
    "SuperGATConv-MX": lambda: super_gat("MX"),
    "SuperGATConv-SD": lambda: super_gat("SD"),
    "FAConv": lambda: Built(pyg.FAConv(IN), (randn(NODES, IN), randn(NODES, IN), edges())),
    "FAConv-raw": lambda: Built(
        pyg.FAConv(IN, normalize=False, add_self_loops=False), (randn(NODES, IN), randn(NODES, IN), edges(), weight())
    ),
    "EGConv": lambda: on(pyg.EGConv(IN, 16)),
    "EGConv-multi": lambda: on(pyg.EGConv(IN, 16, ["symnorm", "max", "std", "mean"], num_heads=4, num_bases=2)),
    "PDNConv": lambda: on(pyg.PDNConv(IN, OUT, EDGE_DIM, 6), attr()),
    "GeneralConv": lambda: on(pyg.GeneralConv(IN, OUT, EDGE_DIM), attr()),
    "GeneralConv-attention": lambda: on(pyg.GeneralConv(IN, OUT, None, heads=2, attention=True, l2_normalize=True)),
    "GeneralConv-dot": lambda: on(
        pyg.GeneralConv(IN, OUT, None, heads=2, attention=True, attention_type="dot_product", directed_msg=False)
    ),
    "HGTConv": lambda: typed(pyg.HGTConv(IN, OUT, METADATA, heads=2)),
    "HEATConv": lambda: heat(heads=2),
    "HEATConv-mean": lambda: heat(heads=2, concat=False, root_weight=False),
    "HeteroConv": heterogeneous,
    "HANConv": lambda: typed(pyg.HANConv(IN, OUT, METADATA, heads=2)),
    "LGConv": lambda: on(pyg.LGConv()),
    "LGConv-raw": lambda: on(pyg.LGConv(normalize=False), weight()),
    "PointGNNConv": lambda: Built(
        pyg.PointGNNConv(mlp(IN, 3), mlp(IN + 3, OUT), mlp(OUT, IN)), (randn(NODES, IN), randn(NODES, 3), edges())
    ),
    "GPSConv": lambda: on(pyg.GPSConv(IN, pyg.GCNConv(IN, IN), heads=2), batch()),
    "GPSConv-alone": lambda: on(pyg.GPSConv(IN, None, heads=2, norm="layer_norm"), batch()),
    "AntiSymmetricConv": lambda: on(pyg.AntiSymmetricConv(IN, num_iters=2)),
    "DirGNNConv": lambda: on(pyg.DirGNNConv(pyg.SAGEConv(IN, OUT))),
    "MixHopConv": lambda: on(pyg.MixHopConv(IN, OUT, powers=[0, 1, 2])),
    "MeshCNNConv": mesh,
}
"""Case name -> function that builds the layer and its inputs from torch's seeded generator."""
