"""`dgl.nn.pytorch.explain`: which edges, features and nodes a model's prediction rests on."""

from graphweave.dgl.nn.explain.gnn_explainer import GNNExplainer, HeteroGNNExplainer
from graphweave.dgl.nn.explain.pg_explainer import HeteroPGExplainer, PGExplainer
from graphweave.dgl.nn.explain.subgraph_x import HeteroSubgraphX, SubgraphX

__all__ = [
    "GNNExplainer", "HeteroGNNExplainer", "HeteroPGExplainer", "HeteroSubgraphX", "PGExplainer", "SubgraphX",
]  # fmt: skip
