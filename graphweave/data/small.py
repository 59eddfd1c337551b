"""Real graphs from data that comes with libraries, so that nothing is downloaded."""

from __future__ import annotations

import numpy as np
import torch

from graphweave.core.errors import DataError
from graphweave.data.edges import symmetrise
from graphweave.data.node_data import NodeData
from graphweave.data.split import random_split


def digits(k: int = 8, seed: int = 0) -> NodeData:
    """scikit-learn's handwritten digits as a graph: 1797 images of 8x8, each joined to its `k` nearest, both ways.

    `x` [1797, 64] in 0..1; 10 classes; random split 60/20/20.
    """
    try:
        # Imported here, since scikit-learn is optional, takes a second to load, and only this loader needs it.
        from sklearn.datasets import load_digits
        from sklearn.neighbors import kneighbors_graph
    except ImportError as error:
        raise DataError(
            "digits: the images come with scikit-learn, which is missing. Run: pip install 'graphweave[train]'"
        ) from error

    images = load_digits()
    features = images.data.astype(np.float32) / 16
    if not 1 <= k < len(features):
        raise DataError(f"digits: k must be between 1 and {len(features) - 1} (got {k}). Pass such a k.")
    near = kneighbors_graph(features, k).tocoo()
    edge_index = symmetrise(torch.from_numpy(near.row), torch.from_numpy(near.col), len(features))
    y = torch.from_numpy(images.target.astype(np.int64))
    return NodeData(torch.from_numpy(features), edge_index, y, *random_split(y, seed), 10, "digits")


def karate(seed: int = 0) -> NodeData:
    """Zachary's karate club: 34 people, 78 friendships in both directions, two factions.

    `x` is the identity [34, 34]; random split 30/20/50. Source: W. W. Zachary, "An information flow model for conflict
    and fission in small groups", 1977.
    """
    try:
        # Imported here, since networkx is an optional dependency that only this loader needs.
        import networkx
    except ImportError as error:
        raise DataError("karate: the graph comes with networkx, which is missing. Run: pip install networkx") from error

    club = networkx.karate_club_graph()
    ends = torch.tensor(list(club.edges()), dtype=torch.int64)
    edge_index = symmetrise(ends[:, 0], ends[:, 1], club.number_of_nodes())
    y = torch.tensor([int(club.nodes[node]["club"] == "Officer") for node in club], dtype=torch.int64)
    masks = random_split(y, seed, train=0.3, val=0.2)
    return NodeData(torch.eye(club.number_of_nodes()), edge_index, y, *masks, 2, "karate")
