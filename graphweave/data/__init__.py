"""Loaders and generators of graphs. Nothing is downloaded at import, and only `planetoid` downloads anything at all."""

from graphweave.data.edges import rmat, symmetrise
from graphweave.data.families import FAMILY_RELATIONS, families
from graphweave.data.knowledge_graph import KnowledgeGraph
from graphweave.data.node_data import NO_LABEL, NodeData
from graphweave.data.npz import npz
from graphweave.data.planetoid import planetoid
from graphweave.data.ranking import KnownTails, Ranking, filtered_ranks
from graphweave.data.relational import relational
from graphweave.data.small import digits, karate
from graphweave.data.split import mask_of, random_split
from graphweave.data.typed_node_data import TypedNodeData

__all__ = [
    "FAMILY_RELATIONS",
    "NO_LABEL",
    "KnowledgeGraph",
    "KnownTails",
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
]
