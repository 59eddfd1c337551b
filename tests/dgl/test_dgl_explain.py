"""Explainers and walk embeddings under DGL's names: what they find where it is known, and their losses by formula."""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.dgl as dgl
from graphweave.core.errors import DataError
from graphweave.core.settings import override

dglnn: Any = dgl.nn


@pytest.fixture(autouse=True)
def _eager() -> Any:
    with override(eager_kernels=False):
        yield


def star(leaves: int) -> Any:
    """Leaves 1 .. n, each joined with node 0 both ways."""
    ends = torch.arange(1, leaves + 1)
    center = torch.zeros(leaves, dtype=torch.long)
    return dgl.graph((torch.cat([ends, center]), torch.cat([center, ends])))


class Sums(nn.Module):
    """Logits (0, s): s the sum of the first feature over incoming edges, weighted."""

    def forward(
        self, graph: Any, feat: Tensor, eweight: Any = None, edge_weight: Any = None, embed: bool = False
    ) -> Tensor:
        if embed:
            return feat
        weight = eweight if eweight is not None else edge_weight
        weight = torch.ones(graph.num_edges()) if weight is None else weight
        src, dst = graph.edges()
        s = torch.zeros(graph.num_nodes()).index_add(0, dst, feat[src, 0] * weight)
        return torch.stack([torch.zeros_like(s), s], 1)


# ---------------------------------------------------------------- masks


def test_masks_find_the_edge_and_the_feature_that_decide() -> None:
    torch.manual_seed(0)
    graph, feat = star(4), torch.randn(5, 3)
    feat[:, 0] = torch.tensor([0.0, 0.0, 2.0, 0.0, 0.0])  # node 0's sum is that of leaf 2
    explainer = dglnn.GNNExplainer(Sums(), num_hops=1, lr=0.05, num_epochs=150, alpha1=0.05, alpha2=0.0, log=False)
    center, sub, of_feats, of_edges = explainer.explain_node(0, graph, feat)
    assert center.tolist() == [0] and sub.ndata[dgl.NID].tolist() == [0, 1, 2, 3, 4]
    src, dst = graph.edges()
    chosen = sub.edata[dgl.EID][of_edges.argmax()]
    assert (int(src[chosen]), int(dst[chosen])) == (2, 0) and int(of_feats.argmax()) == 0
    assert of_edges.shape == (8,) and of_feats.shape == (3,) and ((of_edges > 0) & (of_edges < 1)).all()


def test_the_loss_of_masks_is_the_papers() -> None:
    """One step of Adam moves each mask by the learning rate against the sign of the loss's gradient."""
    graph, feat = star(2), torch.tensor([[1.0, 0.5], [2.0, -1.0], [-0.3, 0.2]])
    options = {"alpha1": 0.3, "alpha2": 0.7, "beta1": 0.2, "beta2": 0.4}
    explainer = dglnn.GNNExplainer(Sums(), 1, lr=0.01, num_epochs=1, **options)
    torch.manual_seed(3)
    of_feats, of_edges = explainer.explain_graph(graph, feat)
    torch.manual_seed(3)
    std = 2**0.5 * (2 / 6) ** 0.5
    f = (0.1 * torch.randn(1, 2)).requires_grad_()
    m = (std * torch.randn(4)).requires_grad_()

    def entropy(p: Tensor) -> Tensor:
        return (-p * p.log() - (1 - p) * (1 - p).log()).mean()

    predicted = Sums()(graph, feat)[0].argmax()
    loss = -Sums()(graph, feat * f.sigmoid(), m.sigmoid())[0].log_softmax(0)[predicted]
    loss = loss + 0.3 * m.sigmoid().sum() + 0.7 * entropy(m.sigmoid())
    loss = loss + 0.2 * f.sigmoid().mean() + 0.4 * entropy(f.sigmoid())
    of_f, of_m = torch.autograd.grad(loss, [f, m])
    torch.testing.assert_close(of_feats, (f - 0.01 * of_f.sign()).sigmoid()[0])
    torch.testing.assert_close(of_edges, (m - 0.01 * of_m.sign()).sigmoid())


class TypedSums(nn.Module):
    """Logits of items: (0, weighted sum of the users that buy them)."""

    def forward(self, graph: Any, feat: Any, eweight: Any = None) -> dict[str, Tensor]:
        src, dst = graph.edges(etype="buys")
        weight = torch.ones(len(src)) if eweight is None else eweight["user", "buys", "item"]
        s = torch.zeros(graph.num_nodes("item")).index_add(0, dst, feat["user"][src, 0] * weight)
        return {"item": torch.stack([torch.zeros_like(s), s], 1)}


def test_masks_of_relations() -> None:
    torch.manual_seed(0)
    graph = dgl.heterograph({("user", "buys", "item"): ([0, 1, 2], [1, 1, 1]), ("item", "near", "item"): ([0], [1])})
    feat = {"user": torch.tensor([[0.0], [5.0], [0.0]]), "item": torch.randn(2, 4)}
    explainer = dglnn.HeteroGNNExplainer(TypedSums(), 1, lr=0.05, num_epochs=100, alpha1=0.05, alpha2=0.0)
    center, sub, of_feats, of_edges = explainer.explain_node("item", 1, graph, feat)
    assert center.tolist() == [1] and set(of_edges) == set(sub.canonical_etypes) and of_feats["item"].shape == (4,)
    assert int(of_edges["user", "buys", "item"].argmax()) == 1


# ---------------------------------------------------------------- a network that weighs edges


@pytest.mark.parametrize("nodes", [False, True])
def test_the_loss_of_a_network_is_the_papers(nodes: bool) -> None:
    torch.manual_seed(0)
    graph, feat = star(3), torch.randn(4, 2)
    explainer = dglnn.PGExplainer(
        Sums(), 2, num_hops=1, explain_graph=not nodes, coff_budget=0.05, coff_connect=0.2, sample_bias=0.1
    )
    assert {id(p) for p in explainer.parameters()} == {id(p) for p in explainer.elayers.parameters()}
    torch.manual_seed(5)
    found = explainer.train_step_node([0], graph, feat, 2.0) if nodes else explainer.train_step(graph, feat, 2.0)
    torch.manual_seed(5)
    src, dst = (dgl.khop_in_subgraph(graph, 0, 1)[0] if nodes else graph).edges()
    order = list(zip(src.tolist(), dst.tolist(), strict=True))
    back = [order.index((v, u)) for u, v in order]
    parts = [feat[src], feat[dst], *([feat[:1].expand(6, -1)] if nodes else [])]
    u = 0.1 + 0.8 * torch.rand(6)
    values = torch.sigmoid((u.log() - (1 - u).log() + explainer.elayers(torch.cat(parts, 1))[:, 0]) / 2)
    mask = (values + values[back]) / 2
    rows = [0] if nodes else [0, 1, 2, 3]
    predicted = Sums()(graph, feat)[rows].argmax(1)
    sums = torch.zeros(4).index_add(0, dst, feat[src, 0] * mask)
    likely = torch.stack([torch.zeros(4), sums], 1).softmax(1)[rows, predicted] + 1e-6
    p = mask * 0.98 + 0.01
    want = -likely.log().mean() + 0.05 * torch.relu(values.sum() - 0.05)
    want = want + 0.2 * (-p * p.log() - (1 - p) * (1 - p).log()).mean()
    torch.testing.assert_close(found, want)
    grads = torch.autograd.grad(found, list(explainer.elayers.parameters()))
    for got, expected in zip(grads, torch.autograd.grad(want, list(explainer.elayers.parameters())), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_network_explains_nodes_of_its_subgraphs() -> None:
    torch.manual_seed(0)
    graph, feat = star(3), torch.randn(4, 2)
    explainer = dglnn.PGExplainer(Sums(), 2, num_hops=1, explain_graph=False)
    probs, weights, sub, rows = explainer.explain_node([1, 0], graph, feat)
    assert sub.num_nodes() == 2 + 4 and rows.tolist() == [1, 2] and weights.shape == (2 + 6,)
    torch.testing.assert_close(probs, Sums()(sub, sub.ndata["feat"], weights).softmax(1))
    with pytest.raises(DataError, match="explain_graph=True"):
        explainer.explain_graph(graph, feat)


def test_a_network_weighs_edges_of_relations() -> None:
    """The same graph, once as one relation and once as two that are the reverses of each other."""
    torch.manual_seed(0)
    u, v = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1])
    typed = dgl.heterograph({("a", "to", "b"): (u, v), ("b", "from", "a"): (v, u)})
    feat = {"a": torch.randn(3, 2), "b": torch.randn(2, 2)}

    class Model(nn.Module):
        def forward(self, graph: Any, feat: Any, edge_weight: Any = None, embed: bool = False) -> Any:
            if embed:
                return feat
            total = torch.zeros(1, 2)
            for key in graph.canonical_etypes:
                weight = torch.ones(graph.num_edges(key)) if edge_weight is None else edge_weight[key]
                src, _ = graph.edges(etype=key)
                total = total + (feat[key[0]][src] * weight[:, None]).sum(0)
            return total

    explainer = dglnn.HeteroPGExplainer(Model(), 2)
    probs, weights = explainer.explain_graph(typed, feat)
    ends = torch.cat([torch.cat([feat["a"][u], feat["b"][v]], 1), torch.cat([feat["b"][v], feat["a"][u]], 1)])
    values = explainer.elayers(ends)[:, 0].sigmoid()
    mean = (values[:4] + values[4:]) / 2
    torch.testing.assert_close(weights["a", "to", "b"], mean)
    torch.testing.assert_close(weights["b", "from", "a"], mean)
    torch.testing.assert_close(probs, Model()(typed, feat, weights).softmax(1))


# ---------------------------------------------------------------- subgraphs


class Product(nn.Module):
    """A graph's logits (0, 8 if the features of two nodes are both there, else -8)."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, graph: Any, feat: Tensor) -> Tensor:
        there = (feat[self.one, 0] * feat[self.two, 0]).reshape(1)
        return torch.stack([torch.zeros(1), 16 * there - 8], 1)


def test_the_subgraph_that_decides_is_found() -> None:
    torch.manual_seed(0)
    path = dgl.add_reverse_edges(dgl.graph(([0, 1, 2, 3, 4], [1, 2, 3, 4, 5])))
    explainer = dglnn.SubgraphX(Product(3, 4), num_hops=2, num_rollouts=20, node_min=2, shapley_steps=20)
    assert explainer.explain_graph(path, torch.ones(6, 1), target_class=1).tolist() == [3, 4]
    with pytest.raises(DataError, match="more than node_min"):
        explainer.explain_graph(star(1), torch.ones(2, 1), 1)


def test_shapley_values_are_means_over_coalitions() -> None:
    from graphweave.dgl.nn.explain.subgraph_x import SubgraphSearch

    torch.manual_seed(0)
    graph, feat = star(3), torch.rand(4, 1) + 0.5
    options = dglnn.HeteroSubgraphX(nn.Identity(), num_hops=2, shapley_steps=3000)
    (ntype,) = graph.ntypes

    def logits(x: Any) -> Tensor:
        total = x[ntype].sum() ** 2
        return torch.stack([torch.zeros(()), total - 4])[None]

    search = SubgraphSearch(options, graph, {ntype: feat}, 1, logits)
    found = search._shapley({ntype: torch.tensor([1])})
    near = [0]  # one further hop from leaf 1 is the center
    want = 0.0
    for size in range(len(near) + 1):
        for others in combinations(near, size):
            share = factorial(size) * factorial(len(near) - size) / factorial(len(near) + 1)
            fixed = feat[[2, 3]].sum() + feat[list(others)].sum()
            gain = torch.sigmoid((fixed + feat[1, 0]) ** 2 - 4) - torch.sigmoid(fixed**2 - 4)
            want += share * float(gain)
    assert found == pytest.approx(want, abs=0.02)


def test_subgraphs_of_types() -> None:
    torch.manual_seed(0)
    graph = dgl.heterograph(
        {("user", "buys", "item"): ([0, 1, 2, 3], [0, 0, 1, 1]), ("item", "near", "item"): ([0], [1])}
    )

    class Model(nn.Module):
        def forward(self, graph: Any, feat: Any) -> Tensor:
            there = (feat["user"][2, 0] * feat["item"][1, 0]).reshape(1)
            return torch.stack([torch.zeros(1), 16 * there - 8], 1)

    explainer = dglnn.HeteroSubgraphX(Model(), 2, num_rollouts=30, node_min=2, shapley_steps=20)
    found = explainer.explain_graph(graph, {"user": torch.ones(4, 1), "item": torch.ones(2, 1)}, 1)
    assert {t: ids.tolist() for t, ids in found.items()} == {"user": [2], "item": [1]}


# ---------------------------------------------------------------- embeddings by walks


@pytest.mark.parametrize("fast", [True, False])
def test_deep_walk_trains_pairs_within_the_window(fast: bool) -> None:
    torch.manual_seed(0)
    graph = dgl.add_reverse_edges(dgl.rand_graph(9, 20))
    model = dglnn.DeepWalk(graph, emb_dim=4, walk_length=5, window_size=2, negative_size=2, fast_neg=fast, sparse=False)
    nn.init.normal_(model.context_embed.weight)
    walks = model.sample(torch.tensor([0, 3]))
    assert walks.shape == (2, 5) and walks[:, 0].tolist() == [0, 3]
    walks[1, 3:] = -1  # a walk that ended
    pairs = [
        (w[i], w[j]) for w in walks.tolist() for i in range(5) for j in range(5)
        if i != j and abs(i - j) <= 2 and w[i] >= 0 and w[j] >= 0
    ]  # fmt: skip
    u, c = model.node_embed.weight, model.context_embed.weight

    def losses(pairs: list[tuple[int, int]], sign: float) -> Tensor:
        products = torch.stack([(u[a] * c[b]).sum().clamp(-6, 6) for a, b in pairs])
        return -functional.logsigmoid(sign * products).mean()

    torch.manual_seed(1)
    drawn = model._negatives(walks, 2 * len(pairs))
    counts = torch.bincount(drawn, minlength=9)
    if fast:
        assert set(drawn.tolist()) <= set(walks[walks >= 0].tolist())
    else:
        assert not counts[graph.out_degrees() == 0].any()
    order = list(zip(*[x.tolist() for x in _pairs_of(model, walks)], strict=True))
    assert sorted(order) == sorted(pairs)
    torch.manual_seed(1)
    negatives = list(zip([b for _, b in order for _ in range(2)], drawn.tolist(), strict=True))
    torch.testing.assert_close(model(walks), losses(pairs, 1.0) + 2 * losses(negatives, -1.0))
    with pytest.raises(DataError, match="above window_size"):
        dglnn.DeepWalk(graph, walk_length=5, window_size=5)


def _pairs_of(model: Any, walks: Tensor) -> tuple[Tensor, Tensor]:
    of, near = (walks[:, side].reshape(-1) for side in model._pairs)
    there = (of >= 0) & (near >= 0)
    return of[there], near[there]


def test_metapaths_give_pairs_of_numbers_over_all_types() -> None:
    torch.manual_seed(0)
    graph = dgl.heterograph(
        {("user", "buys", "item"): ([0, 1, 2], [1, 0, 1]), ("item", "of", "user"): ([0, 1], [1, 0])}
    )
    model = dglnn.MetaPath2Vec(graph, ["buys", "of"], window_size=2, emb_dim=4, negative_size=3, sparse=False)
    assert {t: ids.tolist() for t, ids in model.local_to_global_nid.items()} == {"item": [0, 1], "user": [2, 3, 4]}
    u, v, drawn = model.sample(torch.tensor([2]))
    walk = [4, 1, 2]  # user 2 buys item 1, which is of user 0
    want = [(walk[i], walk[j]) for i in range(3) for j in range(3) if i != j and i - 3 < j < i + 2]
    assert list(zip(u.tolist(), v.tolist(), strict=True)) == want and drawn.shape == (len(want), 3)
    nn.init.normal_(model.context_embed.weight)
    e, c = model.node_embed.weight, model.context_embed.weight
    right = functional.logsigmoid((e[u] * c[v]).sum(1).clamp(-10, 10))
    wrong = functional.logsigmoid(-(e[u][:, None] * c[drawn]).sum(2).clamp(-10, 10)).sum(1)
    torch.testing.assert_close(model(u, v, drawn), -(right + wrong).mean())
    with pytest.raises(DataError, match="at most the number"):
        dglnn.MetaPath2Vec(graph, ["buys", "of"], window_size=4)
