"""torch_sparse where it is not installed: its matrix against dense ones, and PyG's layers with it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from bench.check import relative_error
from tests.lent import lent  # noqa: F401
from tests.support import by_default, features, random_graph

F64 = torch.float64
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def matrix(rows: int, cols: int, entries: int, values: bool = True) -> Any:
    """A matrix without repeated entries, given in any order."""
    from torch_sparse import SparseTensor  # type: ignore[import-not-found]

    row, col = random_graph(rows, cols, entries)
    row, col = torch.stack([row, col]).unique(dim=1)
    order = torch.randperm(row.numel())
    row, col = row[order], col[order]
    value = features(row.numel(), 1, F64)[:, 0] if values else None
    return SparseTensor(row=row, col=col, value=value, sparse_sizes=(rows, cols))


MIXED = [5, 3, 0, 1, 2, 4]

PARTS: dict[str, tuple[Callable[[Any], Any], Callable[[Tensor], Tensor]]] = {
    "t": (lambda a: a.t(), lambda d: d.t()),
    "narrow": (lambda a: a.narrow(0, 1, 3).narrow(1, 2, 3), lambda d: d[1:4, 2:5]),
    "select": (lambda a: a.select(1, 2), lambda d: d[:, 2:3]),
    "slices": (lambda a: a[1:, :-1], lambda d: d[1:, :-1]),
    "ellipsis": (lambda a: a[..., 1:3], lambda d: d[..., 1:3]),
    "numbers": (lambda a: a[torch.tensor([3, 0, 3])], lambda d: d[[3, 0, 3]]),
    "columns": (lambda a: a[:, torch.tensor([2, 2, 0])], lambda d: d[:, [2, 2, 0]]),
    "mask": (lambda a: a[torch.arange(6) % 2 == 0], lambda d: d[::2]),
    "permute": (lambda a: a.permute(torch.tensor(MIXED)), lambda d: d[MIXED][:, MIXED]),
    "set_diag": (lambda a: a.set_diag(), lambda d: d - d.diag().diag() + torch.eye(6)),
    "fill_diag": (lambda a: a.fill_diag(3.0), lambda d: d - d.diag().diag() + 3 * torch.eye(6)),
    "remove_diag": (lambda a: a.remove_diag(), lambda d: d - d.diag().diag()),
    "mul rows": (lambda a: torch.arange(6).view(-1, 1) * a, lambda d: d * torch.arange(6).view(-1, 1)),
    "mul": (lambda a: a * a.t(), lambda d: d * d.t()),
    "add": (lambda a: a + a.t(), lambda d: d + d.t()),
    "matmul": (lambda a: a @ a.t(), lambda d: d @ d.t()),
    "to_symmetric": (lambda a: a.to_symmetric(), lambda d: d + d.t()),
    "sparse_resize": (lambda a: a.sparse_resize((7, 8)), lambda d: torch.nn.functional.pad(d, (0, 2, 0, 1))),
    "set_value": (lambda a: a.set_value(2 * a.csc()[2], "csc"), lambda d: 2 * d),
    "coo tensor": (lambda a: a.from_torch_sparse_coo_tensor(a.to_torch_sparse_coo_tensor()), lambda d: d),
    "csr tensor": (lambda a: a.from_torch_sparse_csr_tensor(a.to_torch_sparse_csr_tensor()), lambda d: d),
    "scipy": (lambda a: a.from_scipy(a.to_scipy()), lambda d: d),
    "dense": (lambda a: a.from_dense(a.to_dense()), lambda d: d),
    "copies": (lambda a: copy.deepcopy(a).clone().cpu().to(F64).coalesce(), lambda d: d),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_parts_and_products_equal_those_of_a_dense_matrix(name: str) -> None:
    f, of_dense = PARTS[name]
    a = matrix(6, 6, 17)
    found = f(a)
    dense = torch.zeros(6, 6, dtype=F64)
    dense[a.coo()[0], a.coo()[1]] = a.coo()[2]
    torch.testing.assert_close(found.to_dense(), of_dense(dense).to(F64), check_stride=False)
    row, col, _ = found.coo()
    assert bool((row.diff() * found.sparse_size(1) + col.diff() > 0).all()), "entries are sorted"
    assert found.csr()[0].tolist() == [int((row < r).sum()) for r in range(found.sparse_size(0) + 1)]
    assert torch.equal(found.t().t().to_dense(), found.to_dense())


def test_sums_and_counts() -> None:
    a = matrix(5, 7, 16)
    dense = a.to_dense()
    torch.testing.assert_close(a.sum(dim=1), dense.sum(1))
    torch.testing.assert_close(a.sum(0), dense.sum(0))
    torch.testing.assert_close(a.sum(), dense.sum())
    assert a.storage.rowcount().tolist() == (dense != 0).sum(1).tolist()
    assert a.storage.colcount().tolist() == (dense != 0).sum(0).tolist()
    assert (a.nnz(), a.sizes(), a.dim(), a.size(-1)) == (int((dense != 0).sum()), [5, 7], 2, 7)
    assert a.density() + a.sparsity() == 1
    assert not a.is_symmetric()
    assert a.to_symmetric().is_symmetric()
    torch.testing.assert_close(matrix(4, 4, 9).get_diag().shape, torch.Size([4]))


def test_functions_on_indices_and_values() -> None:
    import torch_sparse

    index, value = torch.tensor([[1, 0, 1, 0], [2, 1, 2, 0]]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    merged = torch_sparse.coalesce(index, value, 2, 3)
    assert (merged[0].tolist(), merged[1].tolist()) == ([[0, 0, 1], [0, 1, 2]], [4, 2, 4])
    turned = torch_sparse.transpose(index, value, 2, 3)
    assert (turned[0].tolist(), turned[1].tolist()) == ([[0, 1, 2], [0, 0, 1]], [4, 2, 4])
    dense = torch.zeros(2, 3).index_put(tuple(index), value, accumulate=True)
    x = features(3, 4)
    torch.testing.assert_close(torch_sparse.spmm(index, value, 2, 3, x), dense @ x)
    found = torch_sparse.spspmm(*turned, index, value, 3, 2, 3)
    torch.testing.assert_close(torch.sparse_coo_tensor(*found, (3, 3)).to_dense(), dense.t() @ dense)
    compiled = graphweave.compile(lambda i, v, x: torch_sparse.spmm(*torch_sparse.coalesce(i, v, 2, 3), 2, 3, x))
    torch.testing.assert_close(compiled(index, value, x), dense @ x)
    assert graphweave.counters()["graph_breaks"] == 0


def test_wrong_entries_are_refused() -> None:
    from torch_sparse import SparseTensor

    with pytest.raises(IndexError, match=r"row.* 2 .*larger sparse_sizes"):
        SparseTensor(row=torch.tensor([2]), col=torch.tensor([0]), sparse_sizes=(2, 2))
    with pytest.raises(ValueError, match="slices without steps"):
        matrix(4, 4, 6)[::2]
    with pytest.raises(ValueError, match="expected a factor"):
        matrix(4, 4, 6) * torch.ones(3, 1)


def test_matrices_are_stacked_along_the_diagonal_and_saved() -> None:
    import torch_sparse

    a, b = matrix(3, 4, 7), matrix(2, 2, 3)
    want = torch.block_diag(a.to_dense(), b.to_dense())
    torch.testing.assert_close(torch_sparse.cat([a, b], dim=(0, 1)).to_dense(), want)
    torch.testing.assert_close(torch_sparse.cat([a, a], dim=0).to_dense(), torch.cat([a.to_dense()] * 2))
    torch.testing.assert_close(pickle.loads(pickle.dumps(a)).to_dense(), a.to_dense())
    assert type(a).__module__ == "torch_sparse.tensor"
    assert "SparseTensor(row=" in repr(a)


FUNCTIONS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "parts": lambda x, a: a[:3, 1:].matmul(x[1:]).sum() + (a + a.t()).matmul(x),
    "diagonals": lambda x, a: a.remove_diag().fill_diag(2.0).matmul(x) + a.set_diag(x[:, 0]).sum(1).view(-1, 1),
    "masked": lambda x, a: a.masked_select_nnz(x[a.coo()[1], 0] > 0, "coo").matmul(x, reduce="mean"),
    "chosen": lambda x, a: a.index_select(1, torch.arange(x.size(0) - 1)).matmul(x[1:]),
    "both": lambda x, a: (a * a.t()).matmul(x) + (a @ a).matmul(x),
    "rows": lambda x, a: (a.mean(dim=1).view(-1, 1) * a).to_symmetric("max").matmul(x),
}


@pytest.mark.parametrize("name", by_default(FUNCTIONS, "both"))
def test_a_matrix_goes_through_a_compiled_function(name: str) -> None:
    f = FUNCTIONS[name]
    compiled = graphweave.compile(f)
    for nodes, entries in ((6, 20), (9, 40)):
        a = matrix(nodes, nodes, entries)
        results = []
        for call in (f, compiled):
            x = features(nodes, 4, F64).requires_grad_()
            out = call(x, a)
            results.append((out.detach(), torch.autograd.grad((out * out.detach().cos()).sum(), x)[0]))
        for one, other in zip(*results, strict=True):
            assert relative_error(other, one) < 1e-11
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)


LAYERS = [
    "GCNConv", "SAGEConv", "GATConv", "GATv2Conv", "GraphConv", "GINConv", "APPNP", "SGConv", "TAGConv", "ARMAConv",
    "EGConv", "AGNNConv", "ClusterGCNConv", "SimpleConv", "TransformerConv", "GCN2Conv", "LEConv", "MFConv",
]  # fmt: skip


def made(layer: str) -> Any:
    from torch_geometric import nn

    match layer:
        case "GINConv":
            return nn.GINConv(torch.nn.Linear(4, 3))
        case "APPNP":
            return nn.APPNP(2, 0.1)
        case "EGConv":
            return nn.EGConv(4, 8, num_heads=2)
        case "AGNNConv":
            return nn.AGNNConv()
        case "SimpleConv":
            return nn.SimpleConv(combine_root="sum")  # self-loops that are there count once in a matrix, twice else
        case "GCN2Conv":
            return nn.GCN2Conv(4, 0.1)
    return getattr(nn, layer)(4, 3)


@pytest.mark.parametrize("layer", by_default(LAYERS, "GCNConv"))
def test_layers_of_pyg_take_it_for_an_edge_index(layer: str) -> None:
    module = made(layer).double().eval()
    compiled = graphweave.compile(module)
    for nodes, entries in ((6, 20), (9, 40)):
        x, a = features(nodes, 4, F64), matrix(nodes, nodes, entries, values=False)
        row, col, _ = a.coo()
        more = (x,) if layer == "GCN2Conv" else ()
        want = module(x, *more, torch.stack([col, row]))
        assert relative_error(module(x, *more, a), want) < 1e-6
        assert relative_error(compiled(x, *more, a), want) < 1e-6
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)


def test_gcn_norm_and_the_transform_that_makes_the_matrix() -> None:
    from torch_geometric.data import Data
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.transforms import ToSparseTensor

    data = Data(edge_index=torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), num_nodes=3)
    edge_index, weight = gcn_norm(data.edge_index, num_nodes=3)
    dense = torch.zeros(3, 3).index_put((edge_index[1], edge_index[0]), weight)
    adj_t = ToSparseTensor()(data).adj_t
    assert type(adj_t).__name__ == "SparseTensor"
    torch.testing.assert_close(gcn_norm(adj_t).to_dense(), dense)


def test_pan_convolution_multiplies_matrices() -> None:
    from torch_geometric.nn import PANConv, PANPooling

    conv, pool = PANConv(4, 3, filter_size=2), PANPooling(3)
    x, edge_index = features(6, 4), torch.stack([*random_graph(6, 6, 14)])
    h, m = conv(x, edge_index)
    assert h.shape == (6, 3)
    assert m.sparse_sizes() == (6, 6)
    assert pool(h, m)[0].shape == (3, 3)
