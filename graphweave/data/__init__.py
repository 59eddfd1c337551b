"""Loaders and generators of graphs. Nothing is downloaded at import, and only `planetoid` downloads at all."""

from graphweave.data.edges import rmat, symmetrise
from graphweave.data.node_data import NO_LABEL, NodeData
from graphweave.data.npz import npz
from graphweave.data.planetoid import planetoid
from graphweave.data.small import digits, karate
from graphweave.data.split import mask_of, random_split

__all__ = [
    "NO_LABEL",
    "NodeData",
    "digits",
    "karate",
    "mask_of",
    "npz",
    "planetoid",
    "random_split",
    "rmat",
    "symmetrise",
]
