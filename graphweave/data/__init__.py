"""Loaders and generators of graphs. Nothing is downloaded at import, and only `planetoid` downloads anything at all."""

from graphweave.data.atom_clusters import AtomBatch, AtomSet, atom_clusters
from graphweave.data.dgl import dgl
from graphweave.data.edges import rmat, symmetrise
from graphweave.data.families import FAMILY_RELATIONS, families
from graphweave.data.graph_set import GraphBatch, GraphSet, graph_set
from graphweave.data.interactions import Interactions, interactions
from graphweave.data.knowledge_graph import KnowledgeGraph
from graphweave.data.link_data import LinkData
from graphweave.data.networks import graphml, igraph, networkx
from graphweave.data.node_data import NO_LABEL, NodeData
from graphweave.data.npz import npz
from graphweave.data.ogb import ogb
from graphweave.data.planetoid import planetoid
from graphweave.data.point_set import PointSet, point_set
from graphweave.data.pyg import pyg
from graphweave.data.ranking import KnownTails, Ranking, filtered_ranks
from graphweave.data.relational import relational
from graphweave.data.shop import shop
from graphweave.data.small import digits, karate
from graphweave.data.split import mask_of, random_split
from graphweave.data.tables.door import from_tables
from graphweave.data.tables.graph import TableGraph
from graphweave.data.typed_node_data import TypedNodeData

__all__ = [
    "FAMILY_RELATIONS",
    "NO_LABEL",
    "AtomBatch",
    "AtomSet",
    "GraphBatch",
    "GraphSet",
    "Interactions",
    "KnowledgeGraph",
    "KnownTails",
    "LinkData",
    "NodeData",
    "PointSet",
    "Ranking",
    "TableGraph",
    "TypedNodeData",
    "atom_clusters",
    "dgl",
    "digits",
    "families",
    "filtered_ranks",
    "from_tables",
    "graph_set",
    "graphml",
    "igraph",
    "interactions",
    "karate",
    "mask_of",
    "networkx",
    "npz",
    "ogb",
    "planetoid",
    "point_set",
    "pyg",
    "random_split",
    "relational",
    "rmat",
    "shop",
    "symmetrise",
]
