"""torch_sparse's SparseTensor in compiled code: the library itself if it is installed, else a stand-in."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from bench.check import relative_error
from tests.frontends.sparse import torch_sparse_stand_in
from tests.support import by_default, features, random_graph

F64 = torch.float64
DOORS: dict[str, Callable[[Any], Any]] = {
    "graphweave.compile": graphweave.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave", fullgraph=True),
}
INSTALLED = importlib.util.find_spec("torch_sparse") is not None
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]


@pytest.fixture
def torch_sparse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if not INSTALLED:
        for name, module in torch_sparse_stand_in.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
    import torch_sparse  # type: ignore[import-not-found]

    yield torch_sparse


def _normalised(x: Tensor, a: Any) -> Tensor:
    """As OGB's examples: self-loops, and degrees on both sides."""
    a = a.set_diag()
    scale = a.sum(dim=1).to(x.dtype).pow(-0.5)
    scale[scale == float("inf")] = 0
    return (scale.view(-1, 1) * a * scale.view(1, -1)) @ x


def _weighted(x: Tensor, a: Any) -> Tensor:
    a = a.fill_value(2.0, dtype=x.dtype).set_diag(x[:, 0])
    return (a * a.sum(dim=1).view(-1, 1)).matmul(x) + a.sum() + a.mean(dim=0)[:, None]


def _parts(x: Tensor, a: Any) -> Tensor:
    row, col, _ = a.coo()
    (rowptr, col_again, _), (colptr, row_again, _) = a.csr(), a.csc()
    sums = torch.zeros_like(x).index_add(0, row, x[col]) + torch.zeros_like(x).index_add(0, row_again, x[row_again])
    return sums + rowptr.diff()[:, None] * 3 + colptr.diff()[:, None] + col_again.sum() + a.nnz() + a.size(0)


def _products(x: Tensor, a: Any) -> Tensor:
    a = a.set_value(x[a.coo()[0], 1], layout="coo")
    return torch.cat([a.matmul(x, reduce=reduce) for reduce in ("sum", "mean", "max", "min")], 1)


def _made_inside(x: Tensor, a: Any) -> Tensor:
    row, col, _ = a.coo()
    made = type(a)(row=col, col=row, value=x[row, 0], sparse_sizes=(x.size(0), x.size(0)))
    return made.matmul(x) + (made.max(dim=1) + made.mean(dim=1) + made.min(dim=0) + a.max(dim=1))[:, None] * x


FUNCTIONS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "normalised": _normalised,
    "weighted": _weighted,
    "parts": _parts,
    "products": _products,
    "made inside": _made_inside,
    "symmetric": lambda x, a: a.to_symmetric().matmul(x),
    "symmetric values": lambda x, a: a.set_value(x[a.coo()[1], 0], layout="coo").to_symmetric("max").matmul(x),
    "transposed": lambda x, a: a.t().matmul(x) + a.set_value(x[a.coo()[1], 0], layout="coo").t().matmul(x),
    "merged": lambda x, a: a.coalesce().matmul(x),
}


def _matrix(kind: Any, nodes: int, edges: int) -> Any:
    row, col = random_graph(nodes, nodes, edges)
    return kind(row=row, col=col, sparse_sizes=(nodes, nodes))


@pytest.mark.parametrize("door", by_default(DOORS, "graphweave.compile"))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_matrix_is_part_of_one_graph_for_all_sizes(name: str, door: str, torch_sparse: Any) -> None:
    f = FUNCTIONS[name]
    compiled = DOORS[door](f)
    for nodes, edges in ((6, 14), (9, 30), (7, 9)):
        given = _matrix(torch_sparse.SparseTensor, nodes, edges)
        results = []
        for call in (f, compiled):
            x = features(nodes, 4, F64).requires_grad_()
            out = call(x, torch_sparse.SparseTensor.from_storage(given.storage))
            (grad,) = torch.autograd.grad((out * out.detach().cos()).sum(), x)
            results.append((out.detach(), grad))
        for one, other in zip(*results, strict=True):
            assert relative_error(other, one) < 1e-11
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)


def _kept(a: Any) -> list[Any]:
    return [value for name, value in sorted(vars(a.storage).items())]


@pytest.mark.parametrize("door", DOORS)
def test_a_result_is_a_matrix_and_an_argument_stays_as_it_is(door: str, torch_sparse: Any) -> None:
    def f(x: Tensor, a: Any) -> Any:
        return a.set_diag().fill_value(2.0), a.matmul(x)

    x, row = features(5, 3), torch.tensor([3, 0, 3, 3, 1])
    a = torch_sparse.SparseTensor(row=row, col=torch.tensor([0, 2, 0, 3, 1]), sparse_sizes=(5, 5))  # one entry twice
    before = _kept(a)
    got, sums = DOORS[door](f)(x, a)
    assert all(one is other for one, other in zip(before, _kept(a), strict=True))
    want, expected = f(x, a)
    assert type(got) is torch_sparse.SparseTensor and got.sparse_sizes() == (5, 5)
    assert all(torch.equal(one, other) for one, other in zip(got.coo(), want.coo(), strict=True))
    torch.testing.assert_close(sums, expected)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_matrix_without_entries(nodes: int, torch_sparse: Any) -> None:
    def f(x: Tensor, a: Any) -> Tensor:
        return torch.cat([_normalised(x, a), a.matmul(x, reduce="max"), a.matmul(x, reduce="mean")], 1)

    x, none = features(nodes, 3), torch.empty(0, dtype=torch.long)
    a = torch_sparse.SparseTensor(row=none, col=none, sparse_sizes=(nodes, nodes))
    torch.testing.assert_close(graphweave.compile(f)(x, a), f(x, a))
    assert graphweave.counters()["eager_fallbacks"] == 0


class Scaled:
    """A user's class with operators that take tensors."""

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor

    def __mul__(self, x: Tensor) -> Tensor:
        return self.factor * x

    __rmul__ = __mul__

    def __rsub__(self, x: Tensor) -> Tensor:
        return x - self.factor


def test_operators_of_a_users_class_with_tensors() -> None:
    def f(x: Tensor, scaled: Scaled) -> Tensor:
        return x * scaled + scaled * x * 2 - (x - scaled)

    x, scaled = features(5, 3), Scaled(features(5, 3))
    compiled = torch.compile(f, backend="graphweave", fullgraph=True)
    torch.testing.assert_close(compiled(x, scaled), f(x, scaled))


@pytest.mark.skipif(not INSTALLED, reason="PyG takes a SparseTensor only if torch_sparse is installed")
@pytest.mark.parametrize("layer", ["GCNConv", "SAGEConv", "GATConv", "GraphConv"])
def test_layers_of_pyg(layer: str, torch_sparse: Any) -> None:
    from torch_geometric import nn

    module = getattr(nn, layer)(4, 3).double()
    compiled = graphweave.compile(module)
    for nodes, edges in ((6, 14), (9, 30)):
        x, a = features(nodes, 4, F64), _matrix(torch_sparse.SparseTensor, nodes, edges)
        assert relative_error(compiled(x, a), module(x, a)) < 1e-6
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)
