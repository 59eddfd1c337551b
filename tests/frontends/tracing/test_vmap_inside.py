"""`torch.func.vmap` inside of a compiled function is compiled once for graphs of all sizes, through both doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

import graphweave
from graphweave.frontends.tracing.batching_rules import rules_in_place
from tests.support import features, random_graph

F64 = torch.float64
SIZES = ((5, 12), (7, 20), (30, 100), (11, 6), (20, 41), (9, 33))
DOORS: dict[str, Callable[[Any], Any]] = {
    "graphweave.compile": graphweave.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
through_doors = pytest.mark.parametrize("door", DOORS)

Column = Callable[[Tensor, Tensor, Tensor], Tensor]


def _each(index: Tensor, like: Tensor) -> Tensor:
    return index.unsqueeze(-1).expand_as(like)


def _two(c: Tensor) -> Tensor:
    return torch.stack([c, c.sin()], 1)


GATHERS: dict[str, Column] = {
    "index_select": lambda c, s, d: c.index_select(0, s),
    "index_select of rows": lambda c, s, d: _two(c).index_select(-2, s).sum(1),
    "gather": lambda c, s, d: c.gather(0, s),
    "gather of rows": lambda c, s, d: _two(c).gather(0, s[:, None].expand(-1, 2)).sum(1),
    "cat": lambda c, s, d: torch.cat([_two(c)[s], _two(c)[d]], -1).sum(1),
    "embedding": lambda c, s, d: F.embedding(s, _two(c)).sum(1),
    "layer_norm": lambda c, s, d: F.layer_norm(_two(c), (2,))[s, 0],
    "batch_norm": lambda c, s, d: F.batch_norm(_two(c), None, None, training=True)[s, 0],
}
"""Functions of a column of node features whose result has a row for each edge."""

SCATTERS: dict[str, Column] = {
    "index_add": lambda c, s, d: torch.zeros_like(c).index_add(0, d, c[s], alpha=2),
    "index_add of one tensor": lambda c, s, d: torch.zeros(len(c), dtype=F64).index_add(0, d, c[s]),
    "index_add_": lambda c, s, d: c.new_zeros(len(c)).index_add_(0, d, c[s]),
    "scatter_add": lambda c, s, d: torch.zeros_like(c).scatter_add(0, d, c[s]),
    "scatter_add_": lambda c, s, d: c.new_zeros(len(c), 2).scatter_add_(0, _each(d, m := _two(c)[s]), m).sum(1),
    "scatter_reduce": lambda c, s, d: torch.zeros_like(c).scatter_reduce(0, d, c[s], "amax"),
    "scatter_reduce_": lambda c, s, d: c.new_zeros(len(c)).scatter_reduce_(0, d, c[s], "mean", include_self=False),
    "scatter": lambda c, s, d: torch.zeros_like(c).scatter(0, d, c[s] * 0 + 3),
    "scatter of a number": lambda c, s, d: c.scatter(0, d, 2.0),
    "scatter_": lambda c, s, d: c.clone().scatter_(0, d, 2.0),
    "index_copy": lambda c, s, d: c.index_copy(0, d, c[s] * 0 + 3),
}
"""Functions of a column of node features whose result has a row for each node."""


def check(f: Callable[..., Tensor], want: Callable[..., Tensor], door: str, sizes: Any = SIZES, most: int = 2) -> None:
    """Values and gradients of `f` are those of `want`, with `most` compilations, and nothing breaks the graph."""
    compiled = DOORS[door](f)
    for n, e in sizes:
        x, edges = features(n, 3, F64).requires_grad_(), random_graph(n, n, e)
        got, expected = compiled(x, *edges), want(x, *edges)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(*(torch.autograd.grad((y * y.detach().cos()).sum(), x)[0] for y in (got, expected)))
    now = graphweave.counters()
    assert 1 <= now["compilations"] <= most
    assert (now["graph_breaks"], now["eager_fallbacks"]) == (0, 0)


def check_columns(f: Column, door: str) -> None:
    """`f` of each column, by vmap and by a loop over columns."""
    check(
        lambda x, s, d: vmap(lambda c: f(c, s, d), 1, 1)(x),
        lambda x, s, d: torch.stack([f(c, s, d) for c in x.unbind(1)], 1),
        door,
    )


@through_doors
def test_gathers_inside(door: str, fresh_compiler: None) -> None:
    check_columns(lambda c, s, d: sum(f(c, s, d) for f in GATHERS.values()), door)


@through_doors
def test_scatters_inside(door: str, fresh_compiler: None) -> None:
    check_columns(lambda c, s, d: sum(f(c, s, d) for f in SCATTERS.values()), door)


@pytest.mark.slow
@through_doors
@pytest.mark.parametrize("name", [*GATHERS, *SCATTERS])
def test_each_operator_inside(name: str, door: str, fresh_compiler: None) -> None:
    check_columns((GATHERS | SCATTERS)[name], door)


def test_graphs_without_edges(fresh_compiler: None) -> None:
    f = SCATTERS["index_add"]
    check(
        lambda x, s, d: vmap(lambda c: f(c, s, d), 1, 1)(x),
        lambda x, s, d: torch.stack([f(c, s, d) for c in x.unbind(1)], 1),
        "graphweave.compile",
        ((6, 9), (5, 0), (8, 1), (2, 0), (7, 3)),
        most=3,
    )


def _sum_of_neighbours(x: Tensor, s: Tensor, d: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, d, x.index_select(0, s).sin()).sum(1)


def _energy(x: Tensor, s: Tensor, d: Tensor) -> Tensor:
    apart = (x.index_select(0, s) - x.index_select(0, d)).pow(2).sum(1)
    return torch.zeros(len(x), dtype=F64).index_add(0, d, (-apart).exp()).pow(2).sum()


FORMS: dict[str, Callable[[Any], Callable[..., Tensor]]] = {
    # each takes what stands for vmap
    "an index that differs": lambda v: (
        lambda x, s, d: v(lambda s, d: _sum_of_neighbours(x, s, d))(torch.stack([s, d]), torch.stack([d, s]))
    ),
    "a batch in front": lambda v: (
        lambda x, s, d: v(lambda h: _sum_of_neighbours(h, s, d))(torch.stack([x, x.cos(), 2 * x, x + 1]))
    ),
    "a table of neighbours for each": lambda v: (
        lambda x, s, d: v(lambda t: (x[t] - x[:, None]).tanh().amax(1))(
            torch.stack([torch.arange(3 * len(x)) % len(x), torch.arange(3 * len(x)) // 3]).view(2, -1, 3)
        )
    ),
    "vmap in vmap": lambda v: (
        lambda x, s, d: v(lambda k: v(lambda h: _sum_of_neighbours(h * k, s, d))(torch.stack([x, x.cos()])))(
            torch.arange(1.0, 4.0, dtype=F64)
        )
    ),
    "gradients inside": lambda v: (
        lambda x, s, d: v(grad(lambda k: _energy(x * k, s, d)))(torch.arange(1.0, 4.0, dtype=F64)).sum() * x
    ),
}


def _loop(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What `vmap` is, element by element."""
    return lambda *args: torch.stack([f(*each) for each in zip(*args, strict=True)])


@through_doors
@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=() if f == "an index that differs" else pytest.mark.slow) for f in FORMS]
)
def test_forms_of_vmap(form: str, door: str, fresh_compiler: None) -> None:
    check(FORMS[form](vmap), FORMS[form](_loop), door)


@pytest.mark.slow
@through_doors
def test_hessians_inside(door: str, fresh_compiler: None) -> None:
    def hessian(x: Tensor, s: Tensor, d: Tensor) -> Tensor:
        return jacrev(grad(lambda x: _energy(x, s, d)))(x)

    check(hessian, hessian, door, SIZES[:4])


class Member(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.conv = nn.Embedding(4, 3), pyg.GraphConv(3, 3, aggr="max")
        self.batch, self.layer = nn.BatchNorm1d(3), nn.LayerNorm(3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.batch(x + self.kinds(torch.arange(x.size(0)) % 4))
        return self.layer(torch.cat([h, self.conv(h, edges)]).relu())


@through_doors
def test_an_ensemble_of_models(door: str, fresh_compiler: None) -> None:
    torch.manual_seed(0)
    models = [Member().double() for _ in range(3)]
    stacked, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]
    leaves = list(stacked.values())

    def together(x: Tensor, edges: Tensor, *state: dict[str, Tensor]) -> Tensor:
        return vmap(lambda *s: functional_call(models[0], s, (x, edges)))(*state)

    compiled = DOORS[door](together)
    for n, e in SIZES[:4]:
        x, edges = features(n, 3, F64), random_graph(n, n, e)
        got = compiled(x, edges, stacked, buffers)
        want = torch.stack(
            [functional_call(m, {k: v[i] for k, v in stacked.items()}, (x, edges)) for i, m in enumerate(models)]
        )
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), leaves) for y in (got, want)))
    for i, m in enumerate(models):  # the calls of each model have changed its own buffers
        torch.testing.assert_close({k: v[i] for k, v in buffers.items()}, dict(m.named_buffers()))
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)


@through_doors
def test_kernels_of_which_nothing_is_read(door: str, fresh_compiler: None) -> None:
    def norm(h: Tensor, w: Tensor) -> Tensor:
        return vmap(lambda h, w: torch.native_batch_norm(h, w, w, None, None, True, 0.1, 1e-5)[0])(h, w)

    h, w = features(15, 4, F64).view(3, 5, 4).requires_grad_(), features(3, 4, F64)
    got, want = DOORS[door](norm)(h, w), norm(h, w)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), h) for y in (got, want)))


INDEX, OTHER = torch.tensor([[0, 2, 1, 1], [3, 3, 0, 2]]), torch.tensor([1, 0, 3, 3])
X, ROWS, TABLES = features(10, 3, F64).view(2, 5, 3), features(8, 3, F64).view(2, 4, 3), features(12, 3, F64)
CASES: dict[str, tuple[Callable[..., Tensor], Any]] = {
    "gather, dim -1": (lambda x, i: x.t().gather(-1, i.expand(3, -1)), (X, INDEX)),
    "gather, one tensor": (lambda i: X[0].gather(0, i[:, None]), (INDEX,)),
    "gather, a scalar": (lambda x, i: x[0, 0].gather(0, i[:2] * 0), (X, INDEX)),
    "gather by a scalar": (lambda x, i: x[:, 0].gather(0, i[0]), (X, INDEX)),
    "index_select, dim -2": (lambda x, i: x.index_select(-2, i), (X, INDEX)),
    "index_select, one tensor": (lambda i: X[0].index_select(0, i), (INDEX,)),
    "index_select by a scalar": (lambda x, i: x.index_select(0, i[0]), (X, INDEX)),
    "index_select by one scalar": (lambda x: x.index_select(1, OTHER[0]), (X,)),
    "scatter into one tensor": (lambda r, i: X[0].scatter(0, i[:, None].expand(-1, 3), r), (ROWS, INDEX)),
    "scatter of one tensor": (lambda x: x.scatter(0, OTHER[None, :3].flip(1), ROWS[0]), (X,)),
    "scatter_reduce, prod": (lambda x, r: x.scatter_reduce(0, OTHER[:, None].expand(-1, 3), r, "prod"), (X, ROWS)),
    "scatter into a scalar": (lambda x, r: x[0, 0].scatter_add(0, OTHER[1], r[0, 0]), (X, ROWS)),
    "index_add, dim -1": (lambda x, r, i: x.t().index_add(-1, i, r.t(), alpha=3), (X, ROWS, INDEX)),
    "index_add into one tensor": (lambda r: X[0].index_add(0, OTHER, r), (ROWS,)),
    "index_add by one index": (lambda i: X[0].index_add(0, i, ROWS[0], alpha=2), (INDEX,)),
    "index_add_ by indices": (lambda x, i: x.clone().index_add_(0, i, ROWS[0], alpha=2), (X, INDEX)),
    "index_add into a scalar": (lambda x, r: x[0, 0].index_add(0, OTHER[1:2] * 0, r[0, 0]), (X, ROWS)),
    "index_copy by indices": (lambda x, i: x.index_copy(0, i[1:], x[i[1:]] * 0 + 1), (X, INDEX)),
    "index_copy_": (lambda x, r: x.clone().index_copy_(0, OTHER[:3], r[:3]), (X, ROWS)),
    "scatter_reduce_": (lambda x, r: x.clone().scatter_reduce_(0, OTHER[:, None], r, "amin"), (X, ROWS)),
    "cat, dim -1": (lambda r: torch.cat([r, ROWS[0], r.sin()], -1), (ROWS,)),
    "cat, with nothing": (lambda r: torch.cat([r, torch.zeros(0, dtype=F64), r[:0, 0]], 0), (ROWS,)),
    "embedding in tables": (lambda x: F.embedding(OTHER.view(2, 2), x), (X,)),
    "embedding by indices": (lambda i: F.embedding(i.view(2, 2), TABLES), (INDEX,)),
    "embedding in tables by indices": (lambda x, i: F.embedding(i.view(2, 2), x), (X, INDEX)),
    "layer_norm, one weight": (lambda x: F.layer_norm(x, (3,), ROWS[0, 0]), (X,)),
    "layer_norm of one tensor": (lambda r: F.layer_norm(X[0], (5, 3), r[:1].expand(5, 3)), (ROWS,)),
}


@pytest.mark.parametrize("case", CASES)
def test_rules_are_those_of_a_loop(case: str) -> None:
    f, batched = CASES[case]
    with rules_in_place():
        got = vmap(f)(*batched)
    torch.testing.assert_close(got, _loop(f)(*batched))


def test_one_tensor_is_not_written_into_by_a_batch() -> None:
    with (
        rules_in_place(),
        pytest.raises(RuntimeError, match="cannot be written into a tensor that is the same for all"),
    ):
        vmap(lambda r: torch.zeros(5, 3, dtype=F64).index_add_(0, OTHER, r))(ROWS)


def test_padding_gets_no_gradient() -> None:
    def f(x: Tensor) -> Tensor:
        return F.embedding(OTHER, x, padding_idx=3)

    x = X.clone().requires_grad_()
    with rules_in_place():
        got = vmap(f)(x)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), x) for y in (got, _loop(f)(x))))


def test_rules_are_pytorchs_own_again_after_a_compilation(fresh_compiler: None) -> None:
    before = torch._C._dispatch_dump_table("aten::gather")
    x = features(5, 3, F64)
    compiled = graphweave.compile(lambda x: vmap(lambda c: c.gather(0, OTHER), 1, 1)(x))
    torch.testing.assert_close(compiled(x), x[OTHER])
    assert torch._C._dispatch_dump_table("aten::gather") == before
    assert not any("FuncTorchBatched" in name and "gather" in name for name in torch.library._impls)
