"""Measures of how far nodes are joined to nodes of their own class."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.dgl.graph import DGLGraph
from graphweave.graph import transform


def node_homophily(graph: DGLGraph, y: Tensor) -> float:
    """Mean over nodes of the fraction of a node's incoming edges that come from its class, 0 without edges (Pei et al.,
    "Geom-GCN", 2020). `y`: int [nodes]."""
    src, dst = _ends(graph)
    degree = _sums(torch.ones_like(dst, dtype=torch.float32), dst, graph.num_nodes())
    return float((_sums((y[src] == y[dst]).float(), dst, graph.num_nodes()) / degree.clamp(min=1)).mean())


def edge_homophily(graph: DGLGraph, y: Tensor) -> float:
    """The fraction of edges that join nodes of one class (Zhu et al., "Beyond homophily", 2020)."""
    src, dst = _ends(graph)
    return float((y[src] == y[dst]).float().mean())


def linkx_homophily(graph: DGLGraph, y: Tensor) -> float:
    """1/(C-1) sum over classes k of max(0, h_k - n_k/n), where h_k is the fraction of the edges into class k that come
    from it (Lim et al., "Large scale learning on non-homophilous graphs", 2021)."""
    src, dst = _ends(graph)
    classes, nodes = int(y.max()) + 1, torch.bincount(y).float()
    into = torch.bincount(y[dst], minlength=classes).float()
    same = torch.bincount(y[dst][y[src] == y[dst]], minlength=classes).float()
    excess = same / into.clamp(min=1) - nodes / graph.num_nodes()
    return float(excess.clamp(min=0).sum()) / (classes - 1)


def adjusted_homophily(graph: DGLGraph, y: Tensor) -> float:
    """(h_edge - a) / (1 - a) with a = sum over classes of (class's degrees / edges)^2, on the graph with both
    directions of every edge (Platonov et al., "Characterizing graph datasets", 2023)."""
    both = transform.to_bidirected(graph)
    degrees = _sums(both.in_degrees().float(), y, int(y.max()) + 1)
    expected = (degrees**2).sum() / both.num_edges() ** 2
    return float((edge_homophily(both, y) - expected) / (1 - expected))


def edge_label_informativeness(graph: DGLGraph, y: Tensor, eps: float = 1e-8) -> float:
    """2 - sum p(a, b) log p(a, b) / sum p(a) log p(a), where p(a, b) is the fraction of edges between the classes and
    p(a) the class's fraction of the degrees (Platonov et al., 2023). Both directions of every edge count."""
    both = transform.to_bidirected(graph)
    src, dst = _ends(both)
    classes = int(y.max()) + 1
    of_class = _sums(both.in_degrees().float(), y, classes)
    of_class = of_class / of_class.sum()
    pairs = torch.bincount(y[src] * classes + y[dst], minlength=classes * classes).float()
    pairs = pairs / pairs.sum() + eps
    return float(2 - (pairs * pairs.log()).sum() / (of_class * of_class.log()).sum())


def node_label_informativeness(graph: DGLGraph, y: Tensor, eps: float = 1e-8) -> float:
    """Like `edge_label_informativeness`, where first a node is drawn and then one of its edges (ibid.)."""
    both = transform.to_bidirected(graph)
    src, dst = _ends(both)
    classes, degrees = int(y.max()) + 1, both.in_degrees().float()
    of_node = torch.bincount(y, minlength=classes).float() / graph.num_nodes()
    of_degree = _sums(degrees, y, classes)
    of_degree = of_degree / of_degree.sum()
    weight = 1 / ((degrees > 0).sum() * degrees[src])
    pairs = _sums(weight, y[src] * classes + y[dst], classes * classes).reshape(classes, classes) + eps
    gain = (pairs * (pairs / (of_node.unsqueeze(1) * of_degree)).log()).sum()
    return float(-gain / (of_node * of_node.log()).sum())


def _ends(graph: DGLGraph) -> tuple[Tensor, Tensor]:
    src, dst = graph.all_edges()
    return src.long(), dst.long()


def _sums(x: Tensor, at: Tensor, rows: int) -> Tensor:
    return x.new_zeros(rows).index_add(0, at, x)
