"""Points in space: which are near each other, far from each other, or in one voxel (docs/points.md)."""

from graphweave.points.farthest import fps
from graphweave.points.near import knn, knn_graph, nearest, radius, radius_graph
from graphweave.points.neighbour_list import NeighbourList
from graphweave.points.periodic import Neighbours, displacements, neighbours
from graphweave.points.voxels import grid

__all__ = [
    "NeighbourList",
    "Neighbours",
    "displacements",
    "fps",
    "grid",
    "knn",
    "knn_graph",
    "nearest",
    "neighbours",
    "radius",
    "radius_graph",
]
