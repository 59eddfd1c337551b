"""Layers of graph neural networks, written with the methods of `graphweave.Graph` as a user would write them.

Arguments, parameter names and results are those of `dgl.nn` (DGL 2.1), so its weights load. Every layer is called with
a graph and features, one tensor or a pair for sources and destinations, and leaves the graph's data unchanged. Layers
run by themselves, or within a model compiled by `graphweave.compile`. No layer refuses nodes without incoming edges:
each docstring says what they get. Models of the energy of atoms (`SchNet`, `PaiNN`) take numbers, positions and edges,
and are written in plain PyTorch.
"""

from __future__ import annotations

from graphweave.nn.agnn_conv import AGNNConv
from graphweave.nn.appnp_conv import APPNPConv
from graphweave.nn.atomic_conv import AtomicConv
from graphweave.nn.attention_pooling import GlobalAttentionPooling, WeightAndSum
from graphweave.nn.cf_conv import CFConv, ShiftedSoftplus
from graphweave.nn.cgat_conv import CGATConv
from graphweave.nn.cgat_pairs import edge_pairs, far_nodes
from graphweave.nn.cheb_conv import ChebConv
from graphweave.nn.dense_conv import DenseChebConv, DenseGraphConv, DenseSAGEConv
from graphweave.nn.dgn_conv import DGNConv
from graphweave.nn.dist_mult import DistMult
from graphweave.nn.dot_gat_conv import DotGatConv
from graphweave.nn.edge_conv import EdgeConv
from graphweave.nn.edge_gat_conv import EdgeGATConv
from graphweave.nn.edge_mlp_conv import EdgeMLPConv
from graphweave.nn.edge_weight_norm import EdgeWeightNorm
from graphweave.nn.egat_conv import EGATConv
from graphweave.nn.egnn_conv import EGNNConv
from graphweave.nn.energy_and_forces import EnergyAndForces
from graphweave.nn.gat_conv import GATConv
from graphweave.nn.gated_gcn_conv import GatedGCNConv
from graphweave.nn.gated_graph_conv import GatedGraphConv
from graphweave.nn.gatv2_conv import GATv2Conv
from graphweave.nn.gcn2_conv import GCN2Conv
from graphweave.nn.gin_conv import GINConv
from graphweave.nn.gine_conv import GINEConv
from graphweave.nn.gmm_conv import GMMConv
from graphweave.nn.graph_conv import GraphConv
from graphweave.nn.graph_encoders import DegreeEncoder, PathEncoder, SpatialEncoder, SpatialEncoder3d
from graphweave.nn.graphormer_layer import EGTLayer, GraphormerLayer
from graphweave.nn.group_rev_res import GroupRevRes
from graphweave.nn.han_conv import HANConv
from graphweave.nn.hetero_graph_conv import HeteroEmbedding, HeteroGraphConv, HeteroLinear
from graphweave.nn.hgt_conv import HGTConv
from graphweave.nn.label_propagation import LabelPropagation
from graphweave.nn.nn_conv import NNConv
from graphweave.nn.painn import PaiNN
from graphweave.nn.pna_conv import PNAConv
from graphweave.nn.pooling import AvgPooling, MaxPooling, SortPooling, SumPooling
from graphweave.nn.potential import Potential
from graphweave.nn.rel_graph_conv import RelGraphConv
from graphweave.nn.rgat_conv import RGATConv
from graphweave.nn.rotat_e import RotatE
from graphweave.nn.sage_conv import SAGEConv
from graphweave.nn.schnet import SchNet
from graphweave.nn.scores import EdgePredictor, TransE, TransR
from graphweave.nn.set2set import Set2Set
from graphweave.nn.set_transformer import SetTransformerDecoder, SetTransformerEncoder
from graphweave.nn.sg_conv import SGConv
from graphweave.nn.simple_hgn_conv import SimpleHGNConv
from graphweave.nn.tag_conv import TAGConv
from graphweave.nn.together import Identity, JumpingKnowledge, Sequential, WeightBasis
from graphweave.nn.transformer import BiasedMHA, LapPosEncoder
from graphweave.nn.twirls_conv import TWIRLSConv
from graphweave.nn.typed_linear import TypedLinear

__all__ = [
    "AGNNConv",
    "APPNPConv",
    "AtomicConv",
    "AvgPooling",
    "BiasedMHA",
    "CFConv",
    "CGATConv",
    "ChebConv",
    "DGNConv",
    "DegreeEncoder",
    "DenseChebConv",
    "DenseGraphConv",
    "DenseSAGEConv",
    "DistMult",
    "DotGatConv",
    "EGATConv",
    "EGNNConv",
    "EGTLayer",
    "EdgeConv",
    "EdgeGATConv",
    "EdgeMLPConv",
    "EdgePredictor",
    "EdgeWeightNorm",
    "EnergyAndForces",
    "GATConv",
    "GATv2Conv",
    "GCN2Conv",
    "GINConv",
    "GINEConv",
    "GMMConv",
    "GatedGCNConv",
    "GatedGraphConv",
    "GlobalAttentionPooling",
    "GraphConv",
    "GraphormerLayer",
    "GroupRevRes",
    "HANConv",
    "HGTConv",
    "HeteroEmbedding",
    "HeteroGraphConv",
    "HeteroLinear",
    "Identity",
    "JumpingKnowledge",
    "LabelPropagation",
    "LapPosEncoder",
    "MaxPooling",
    "NNConv",
    "PNAConv",
    "PaiNN",
    "PathEncoder",
    "Potential",
    "RGATConv",
    "RelGraphConv",
    "RotatE",
    "SAGEConv",
    "SGConv",
    "SchNet",
    "Sequential",
    "Set2Set",
    "SetTransformerDecoder",
    "SetTransformerEncoder",
    "ShiftedSoftplus",
    "SimpleHGNConv",
    "SortPooling",
    "SpatialEncoder",
    "SpatialEncoder3d",
    "SumPooling",
    "TAGConv",
    "TWIRLSConv",
    "TransE",
    "TransR",
    "TypedLinear",
    "WeightAndSum",
    "WeightBasis",
    "edge_pairs",
    "far_nodes",
]
