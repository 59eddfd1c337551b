"""`dgl.convert`: the functions that make graphs from edges and from other libraries' graphs, and the way back."""

from graphweave.dgl.block import block_to_graph, create_block
from graphweave.dgl.construct import graph, heterograph
from graphweave.dgl.from_others import (
    bipartite_from_networkx,
    bipartite_from_scipy,
    from_networkx,
    from_scipy,
    to_networkx,
)

__all__ = [
    "bipartite_from_networkx",
    "bipartite_from_scipy",
    "block_to_graph",
    "create_block",
    "from_networkx",
    "from_scipy",
    "graph",
    "heterograph",
    "to_networkx",
]
