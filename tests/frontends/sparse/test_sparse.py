"""torch.sparse matrices: PyG's layers and PyTorch's functions take them as graphs, one compilation for all sizes."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

import graphweave
from tests.support import by_default, features, random_graph

F64 = torch.float64
SIZES = ((6, 20), (9, 40), (5, 7))


@pytest.fixture(autouse=True)
def _conversions() -> Iterator[None]:
    """Eager PyG warns about each layout other than CSR that it converts it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Converting sparse tensor to CSR format")
        yield


def matrix(rows: int, cols: int, entries: int, layout: str = "csr", seed: int = 0) -> Tensor:
    """Random positive values, since degrees' roots are taken; "uncoalesced" has some of its entries twice."""
    index = random_graph(rows, cols, entries, seed)
    values = features(entries, 1, F64, seed).flatten().abs() + 0.1
    coo = torch.sparse_coo_tensor(index, values, (rows, cols))
    if layout == "uncoalesced":
        twice = torch.cat([index, index[:, :3]], dim=1)
        return torch.sparse_coo_tensor(twice, torch.cat([values, values[:3]]), (rows, cols))
    coo = coo.coalesce()
    return {"coo": coo, "csr": coo.to_sparse_csr(), "csc": coo.to_sparse_csc()}[layout]


def counts() -> tuple[int, int, int]:
    now = graphweave.counters()
    return now["compilations"], now["graph_breaks"], now["eager_fallbacks"]


def plain(x: Tensor) -> Tensor:
    return x.to_dense() if x.layout != torch.strided else x


def assert_equal(compiled: Callable[..., Any], eager: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> None:
    """Compares results by layout and value, and all gradients: of `make`'s tensors and of parameters."""
    results = []
    for f in (eager, compiled):
        args = make()
        leaves = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
        for leaf in leaves:
            leaf.requires_grad_()
        out = f(*args)
        outs = list(out) if isinstance(out, tuple) else [out]
        owned = list(f.parameters()) if isinstance(f, nn.Module) else []
        loss = sum((plain(o) * torch.linspace(-1, 1, o.numel(), dtype=o.dtype).reshape(o.shape)).sum() for o in outs)
        grads = torch.autograd.grad(loss, [*leaves, *owned], allow_unused=True)
        results.append((outs, grads))
    (wanted, wanted_grads), (got, got_grads) = results
    for a, b in zip(got, wanted, strict=True):
        assert type(a) is type(b)
        assert a.layout == b.layout
        torch.testing.assert_close(plain(a), plain(b))
    for a, b, leaf in zip(got_grads, wanted_grads, [*leaves, *owned], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            # some of eager mode's gradients also have entries where the matrix, whose entries are positive, has none
            counts_here = plain(leaf) > 0 if leaf.layout != torch.strided else torch.ones_like(leaf, dtype=torch.bool)
            torch.testing.assert_close(plain(a)[counts_here], plain(b)[counts_here])


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.GCNConv(4, 5),
    "gcn_without_norm": lambda: pyg.GCNConv(4, 5, normalize=False),
    "gcn_without_loops": lambda: pyg.GCNConv(4, 5, add_self_loops=False),
    "sage": lambda: pyg.SAGEConv(4, 5),
    "sage_sum": lambda: pyg.SAGEConv(4, 5, aggr="sum"),
    "sage_max": lambda: pyg.SAGEConv(4, 5, aggr="max"),
    "gat": lambda: pyg.GATConv(4, 5, heads=2),
    "gatv2": lambda: pyg.GATv2Conv(4, 5, heads=2),
    "gin": lambda: pyg.GINConv(nn.Linear(4, 5)),
    "graph_conv": lambda: pyg.GraphConv(4, 5),
    "graph_conv_mean": lambda: pyg.GraphConv(4, 5, aggr="mean"),
    "transformer": lambda: pyg.TransformerConv(4, 5, heads=2),
}
NO_CSC = {"gcn", "gcn_without_loops", "gat", "gatv2", "transformer"}
"""Layers that do not support the layout, as PyG says."""

CASES = [
    (name, layout)
    for name in LAYERS
    for layout in ("csr", "coo", "csc", "uncoalesced")
    if (layout != "csc" or name not in NO_CSC) and (name, layout) != ("transformer", "uncoalesced")
]


@pytest.mark.parametrize(
    "case",
    by_default(
        CASES, ("gcn", "csr"), ("gcn", "uncoalesced"), ("gat", "csr"), ("gin", "csc"),
    ),
    ids=" ".join,
)  # fmt: skip
def test_layers_take_matrices_of_any_size_in_one_graph(case: tuple[str, str], fresh_compiler: None) -> None:
    name, layout = case
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    other = copy.deepcopy(layer)
    compiled = graphweave.compile(other)
    for nodes, entries in SIZES:
        x = features(nodes, 4, F64)
        args = lambda n=nodes, e=entries, x=x: (x.clone(), matrix(n, n, e, layout))  # noqa: E731
        if layout == "csc" or (layout != "csr" and name in NO_CSC):
            given = args()[1]  # eager mode has no gradient for these
            assert_equal(lambda x, a=given: compiled(x, a), lambda x, a=given: layer(x, a), lambda x=x: (x.clone(),))
        else:
            assert_equal(compiled, layer, args)
    assert counts() == (1, 0, 0)


@pytest.mark.parametrize("name", by_default(("sage", "gat", "graph_conv"), "gat"))
def test_bipartite_matrices(name: str, fresh_compiler: None) -> None:
    torch.manual_seed(0)
    make = {
        "sage": lambda: pyg.SAGEConv((4, 3), 5), "graph_conv": lambda: pyg.GraphConv((4, 3), 5),
        "gat": lambda: pyg.GATConv((4, 3), 5, add_self_loops=False),
    }  # fmt: skip
    layer = make[name]().double()
    compiled = graphweave.compile(copy.deepcopy(layer))
    run = lambda f: lambda x, y, a: f((x, y), a)  # noqa: E731
    for nodes, entries in SIZES:
        args = lambda n=nodes, e=entries: (features(n + 3, 4, F64), features(n, 3, F64), matrix(n, n + 3, e))  # noqa: E731
        assert_equal(run(compiled), run(layer), args)
    assert counts() == (1, 0, 0)


def test_a_model_is_trained_and_evaluated_with_two_compilations(fresh_compiler: None) -> None:
    torch.manual_seed(0)
    model = pyg.GCN(4, 8, 2, 3, dropout=0.0).double()
    compiled = graphweave.compile(model)
    for nodes, entries in SIZES:
        x, a = features(nodes, 4, F64), matrix(nodes, nodes, entries)
        compiled.train()
        torch.testing.assert_close(compiled(x, a), model(x, a))
        compiled.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, a), model(x, a))
    assert counts() == (2, 0, 0)


def test_attention_on_a_graph_seen_before_is_kernels_alone(fresh_compiler: None) -> None:
    """Self loops are inserted once; compressed indices and the index computed from them are one map."""
    torch.manual_seed(0)
    compiled = graphweave.compile(pyg.GATConv(4, 5, heads=2))
    x, a = features(60, 4).requires_grad_(), matrix(60, 60, 300).float()
    compiled(x, a).sum().backward()
    graphweave.reset_counters()
    compiled(x, a).sum().backward()
    now = graphweave.counters()
    assert (now["kernel_launches"], now["fallback_calls"], now["format_builds"]) == (4, 0, 0)


def test_awkward_matrices(fresh_compiler: None) -> None:
    """No entries, one row, int32 indices, another dtype; no_grad and inference mode."""
    layer = pyg.SAGEConv(4, 5)
    compiled = graphweave.compile(layer)
    for rows, entries in ((5, 0), (1, 0), (1, 1), (2, 3), (7, 9)):
        x, a = features(rows, 4), matrix(rows, rows, entries).float()
        torch.testing.assert_close(compiled(x, a), layer(x, a))
    narrow = torch.sparse_csr_tensor(a.crow_indices().int(), a.col_indices().int(), a.values(), a.shape)
    torch.testing.assert_close(compiled(x, narrow), layer(x, narrow))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, a), layer(x, a))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x, a), layer(x, a))
    assert counts()[1:] == (0, 0)


# ---------------------------------------------------------------- PyTorch's functions


def of_any_layout(x: Tensor, a: Tensor) -> tuple[Any, ...]:
    half = a.to(torch.float32)
    return (
        a @ x, torch.sparse.mm(a, x), torch.mm(a, x), a.matmul(x), torch.spmm(a, x), a @ x[:, 0], x.t() @ a,
        torch.addmm(x, a, x, beta=0.5), torch.sparse.addmm(x, a, x, alpha=0.5), a.t() @ x, a.transpose(0, 1) @ x,
        nn.functional.linear(a, x.t()), a.to_dense(), a.sum() * x, (2 * a) @ x, a.relu() @ x, half @ x.float(), a.t(),
        x * a.size(0) + a.shape[1] + a._nnz() + a.dim() + len(a) + a.numel(), a.values(), (-a).detach() @ x, a.abs(),
        a.to_sparse(), a.to_sparse_csr(), a.to_sparse_csc(),
    )  # fmt: skip


def of_csr(x: Tensor, a: Tensor) -> tuple[Any, ...]:
    degree = a.crow_indices()[1:] - a.crow_indices()[:-1]
    row = torch.repeat_interleave(torch.arange(a.size(0)), a.crow_indices().diff())
    messages = a.values()[:, None] * x[a.col_indices()]
    return (
        torch.sparse.mm(a, x, "mean"), torch.sparse.mm(a, x, "max"), torch.sparse.mm(a, x, reduce="amin"),
        torch.sparse.sampled_addmm(a, x, x.t(), beta=0.5) @ x, x / degree.clamp(min=1)[:, None],
        torch.zeros_like(x).index_add(0, row, messages), (a + a).values(), a.crow_indices().double(),
        torch.sparse_csr_tensor(a.crow_indices(), a.col_indices(), messages[:, 0], a.shape) @ x,
    )  # fmt: skip


def of_coo(x: Tensor, a: Tensor) -> tuple[Any, ...]:
    row, col = a.indices()
    made = torch.sparse_coo_tensor(torch.stack([col, row]), x[row, 0] * a.values(), a.shape)
    return (
        made @ x, made.coalesce().values(), torch.sparse.softmax(a, 1) @ x, torch.sparse.softmax(a, 0),
        (a + a.t().coalesce()) @ x, (a - a).coalesce(), (a * x[:, :1]) @ x, a * x[:, 0].unsqueeze(0), (a / 2).values(),
        a.T @ x, a.coalesce(), x * a.is_coalesced(),
    )  # fmt: skip


def test_functions_of_csr_matrices(fresh_compiler: None) -> None:
    g = graphweave.compile(of_csr)
    for nodes, entries in SIZES:
        assert_equal(g, of_csr, lambda n=nodes, e=entries: (features(n, 4, F64), matrix(n, n, e)))
    assert counts() == (1, 0, 0)


@pytest.mark.parametrize(
    ("f", "layout"),
    [
        pytest.param(of_coo, "coo", id="coo"),
        pytest.param(of_any_layout, "csr", id="any csr"),
        pytest.param(of_any_layout, "coo", id="any coo", marks=pytest.mark.slow),
        pytest.param(of_any_layout, "csc", id="any csc", marks=pytest.mark.slow),
    ],
)
def test_functions_give_values_of_eager_modes_layout(f: Any, layout: str, fresh_compiler: None) -> None:
    g = graphweave.compile(f)
    for nodes, entries in SIZES:
        x, a = features(nodes, 4, F64), matrix(nodes, nodes, entries, layout)
        for got, want in zip(g(x, a), f(x, a), strict=True):
            assert (got.layout, got.dtype) == (want.layout, want.dtype)
            torch.testing.assert_close(plain(got), plain(want), rtol=1e-5, atol=1e-5)  # one is float32
    assert counts() == (1, 0, 0)


def test_what_has_no_gathers_and_scatters_breaks_the_graph_and_is_right(fresh_compiler: None) -> None:
    def f(x: Tensor, a: Tensor) -> Tensor:
        return torch.sparse.mm(a, a) @ x.sin() + a[0].to_dense()[:, None]

    x, a = features(6, 4, F64), matrix(6, 6, 20, "coo")
    torch.testing.assert_close(graphweave.compile(f)(x, a), f(x, a))
    assert counts()[1] >= 2


@pytest.mark.parametrize("what", ["dtype", "shape"])
def test_operands_that_eager_mode_refuses_are_refused_in_its_words(what: str, fresh_compiler: None) -> None:
    def f(x: Tensor, a: Tensor) -> Tensor:
        return a @ (x.float() if what == "dtype" else x[:-1])

    x, a = features(6, 4, F64), matrix(6, 6, 20)
    with pytest.raises(RuntimeError) as wanted:
        f(x, a)
    with pytest.raises(RuntimeError) as got:
        graphweave.compile(f)(x, a)
    assert str(got.value).startswith(str(wanted.value))


# ---------------------------------------------------------------- where they may be


@dataclasses.dataclass
class Problem:
    x: Tensor
    adjacency: Tensor


def test_matrices_inside_of_arguments(fresh_compiler: None) -> None:
    def f(both: list[Tensor], named: dict[str, Tensor], problem: Problem, data: Data) -> Tensor:
        return both[0] @ problem.x + named["b"] @ data.x + problem.adjacency @ data.x + data.adj_t @ problem.x

    compiled = graphweave.compile(f)
    for nodes, entries in SIZES:
        a, b = matrix(nodes, nodes, entries), matrix(nodes, nodes, entries, "coo", seed=3)
        problem, data = Problem(features(nodes, 4, F64), a), Data(x=features(nodes, 4, F64, 2), adj_t=b)
        args = [a, b], {"b": b}, problem, data
        torch.testing.assert_close(compiled(*args), f(*args))
        assert problem.adjacency is a
        assert data.adj_t is b
    assert counts() == (1, 0, 0)


ADJACENCY = matrix(6, 6, 20)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", matrix(6, 6, 20, "coo"))
        self.powers = [matrix(6, 6, 15), matrix(6, 6, 10)]

    def forward(self, x: Tensor) -> Tensor:
        return self.adjacency @ x + self.powers[1] @ (self.powers[0] @ x)


def test_matrices_of_modules_closures_and_globals(fresh_compiler: None) -> None:
    model, x, inner = Holder(), features(6, 4, F64), matrix(6, 6, 9)
    powers = model.powers
    torch.testing.assert_close(graphweave.compile(model)(x), model(x))
    assert model.adjacency.layout == torch.sparse_coo
    assert model.powers is powers

    def f(x: Tensor) -> Tensor:
        return inner @ x + ADJACENCY @ x

    torch.testing.assert_close(graphweave.compile(f)(x), f(x))
    assert ADJACENCY.layout == torch.sparse_csr
    assert counts() == (2, 0, 0)


class Recommender(nn.Module):
    """LightGCN as its authors write it: the matrix is an attribute, and the loss calls the model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.adjacency = nn.Parameter(features(6, 4, F64)), matrix(6, 6, 20, "coo")

    def forward(self) -> Tensor:
        return self.embedding + torch.sparse.mm(self.adjacency, self.embedding)


RECOMMENDER = Recommender()


def by_global(users: Tensor) -> Tensor:
    return RECOMMENDER()[users].sum(1)


def _smoothed(x: Tensor) -> Tensor:
    return torch.sparse.mm(ADJACENCY, x)


def by_callee(users: Tensor) -> Tensor:
    return _smoothed(RECOMMENDER.embedding)[users].sum(1)


def by_closure() -> Callable[[Tensor], Tensor]:
    model, settings = Recommender(), {"graphs": [matrix(6, 6, 9)]}
    return lambda users: (model() + settings["graphs"][0] @ model.embedding)[users].sum(1)


class Trainer:
    def __init__(self) -> None:
        self.model = Recommender()

    def loss(self, users: Tensor) -> Tensor:
        return self.scores()[users].sum(1)

    def scores(self) -> Tensor:
        return self.model() + ADJACENCY @ self.model.embedding


def weighted(a: Tensor, users: Tensor, *, more: Tensor, factor: float = 2.0) -> Tensor:
    return (a @ RECOMMENDER.embedding * factor + more @ RECOMMENDER.embedding)[users].sum(1)


def by_partial() -> Callable[[Tensor], Tensor]:
    return functools.partial(weighted, matrix(6, 6, 9), more=matrix(6, 6, 12, "coo"), factor=0.5)


def by_default_value() -> Callable[[Tensor], Tensor]:
    given, part = matrix(6, 6, 9), by_partial()
    return lambda users, a=given, part=part: part(users) + (a @ RECOMMENDER.embedding)[users].sum(1)


@pytest.mark.parametrize(
    "make",
    [lambda: by_global, lambda: by_callee, by_closure, lambda: Trainer().loss, by_partial, by_default_value],
)
def test_matrices_that_a_loss_reaches_through_other_objects(
    make: Callable[[], Callable[[Tensor], Tensor]], fresh_compiler: None
) -> None:
    f = make()
    compiled = graphweave.compile(f)
    for users in (torch.tensor([0, 3, 3]), torch.tensor([5, 1, 2, 4])):
        torch.testing.assert_close(compiled(users), f(users))
    assert counts() == (1, 0, 0)
    if isinstance(f, functools.partial):
        assert (f.args[0].layout, f.keywords["more"].layout) == (torch.sparse_csr, torch.sparse_coo)
    assert (RECOMMENDER.adjacency.layout, ADJACENCY.layout) == (torch.sparse_coo, torch.sparse_csr)


def test_a_matrix_that_a_layer_keeps_is_a_sparse_tensor_to_eager_mode(fresh_compiler: None) -> None:
    torch.manual_seed(0)
    layer = pyg.GCNConv(4, 5, cached=True).double()
    want = copy.deepcopy(layer)
    x, a = features(6, 4, F64), matrix(6, 6, 20)
    compiled = graphweave.compile(layer)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, a), want(x, a))
    kept = layer._cached_edge_index[0]
    assert (kept.layout, kept.shape) == (torch.sparse_csr, (6, 6))
    torch.testing.assert_close(layer(x, a), want(x, a))
    assert counts()[1:] == (0, 0)


def test_edits_of_a_matrix_are_seen(fresh_compiler: None) -> None:
    f = lambda x, a: a @ x  # noqa: E731
    compiled = graphweave.compile(f)
    x, a = features(6, 4, F64), matrix(6, 6, 20)
    for edit in (lambda: None, lambda: a.values().mul_(2), lambda: a.col_indices().copy_(a.col_indices().flip(0))):
        edit()
        torch.testing.assert_close(compiled(x, a), f(x, a))


def test_a_function_that_makes_a_matrix_is_compiled_once(fresh_compiler: None) -> None:
    def f(x: Tensor, edges: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(edges, x[edges[0], 0], (x.size(0), x.size(0))) @ x

    compiled = graphweave.compile(f)
    for nodes, entries in SIZES:
        x, edges = features(nodes, 4, F64), random_graph(nodes, nodes, entries)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, edges), f(x, edges))
    assert counts() == (1, 0, 0)


def test_an_embedding_gets_its_sparse_gradient(fresh_compiler: None) -> None:
    embedding = nn.Embedding(20, 4, sparse=True)
    ids = torch.tensor([3, 7, 3])
    compiled = graphweave.compile(lambda ids: embedding(ids).sigmoid())
    want = torch.autograd.grad(embedding(ids).sigmoid().sum(), embedding.weight)[0]
    got = torch.autograd.grad(compiled(ids).sum(), embedding.weight)[0]
    assert got.layout == torch.sparse_coo
    torch.testing.assert_close(got.to_dense(), want.to_dense())
