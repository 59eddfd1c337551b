"""Rows in several dims, [batch, nodes, features]: moved along an index as rows of a product of spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.errors import IndexRangeError
from graphweave.ir.message.nodes import Pull, Push
from tests.captures import capture, check
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

F = 4
SIZES = {"B": 3, "N": 7, "E": 19, "K": 5}
OTHERS = (
    {"B": 2, "N": 5, "E": 11, "K": 4}, {"B": 5, "N": 5, "E": 5, "K": 5}, {"B": 4, "N": 1, "E": 3, "K": 2},
    {"B": 2, "N": 3, "E": 0, "K": 1}, {"B": 1, "N": 6, "E": 9, "K": 3}, {"B": 0, "N": 4, "E": 6, "K": 2},
)  # fmt: skip


def index_add(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(1, dst, torch.tanh(x.index_select(1, src)))


def scatter_add(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """As PyG does with node_dim=-2."""
    m = torch.tanh(x[:, src] - x[:, dst])
    return torch.zeros_like(x).scatter_add(1, dst.view(1, -1, 1).expand_as(m), m)


def maxima(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    m = torch.tanh(x[:, src])
    return torch.zeros_like(x).scatter_reduce(1, dst.view(1, -1, 1).expand_as(m), m, "amax", include_self=False)


def weighted(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """A weight for each edge, the same in the whole batch."""
    return torch.zeros_like(x).index_add(1, dst, x[:, src] * w[:, None])


def scaled(x: Tensor, s: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """A number for each item of the batch."""
    return torch.zeros_like(x).index_add(1, dst, x[:, src] * s[:, None, None]).mean(1)


def with_layers(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    h = x @ w
    out = torch.zeros_like(h).index_add(1, dst, torch.relu(h[:, src]))
    return torch.nn.functional.layer_norm(torch.cat([out, h[..., :2], h[..., 1:2]], -1), (F + 3,))


def batch_behind(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return torch.zeros_like(x).index_add(0, dst, torch.tanh(x[src])).sum(1)


def rows_last(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """[batch, features, nodes]"""
    x = x.transpose(1, 2)
    return torch.zeros_like(x).index_add(2, dst, torch.tanh(x[:, :, src]))


def heads(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """[batch, heads, nodes, features]"""
    h = x.unflatten(2, (2, -1)).transpose(1, 2)
    m = torch.tanh(h[:, :, src] * h[:, :, dst].sum(-1, keepdim=True))
    return torch.zeros_like(h).index_add(2, dst, m).transpose(1, 2).flatten(2)


def neighbours(x: Tensor, table: Tensor) -> Tensor:
    """A table [nodes, k]."""
    return torch.tanh(x[table] - x[:, None]).mean(1)


def best_neighbours(x: Tensor, table: Tensor) -> Tensor:
    return torch.tanh(x[table] - x[:, None]).amax(1)


def batched_neighbours(x: Tensor, tables: Tensor) -> Tensor:
    """A table for each item of the batch, [batch, nodes, k], by `gather` along dim 1."""
    b, n, k = tables.shape
    near = torch.gather(x, 1, tables.reshape(b, -1)[..., None].expand(b, n * k, F)).reshape(b, n, k, F)
    return torch.tanh(near - x[:, :, None]).sum(2)


def two_indices(x: Tensor, tables: Tensor) -> Tensor:
    return torch.tanh(x[torch.arange(x.shape[0])[:, None, None], tables]).sum(2)


def attention(x: Tensor, tables: Tensor) -> Tensor:
    near = x[torch.arange(x.shape[0])[:, None, None], tables]
    score = (near * x[:, :, None]).sum(-1).softmax(2)
    return (near * score[..., None]).sum(2)


Program = tuple[Callable[..., Tensor], tuple[tuple[str, ...], ...]]
EDGES = (("E",), ("E",))
PROGRAMS: dict[str, Program] = {
    "index_add": (index_add, (("B", "N", "F"), *EDGES)),
    "scatter_add": (scatter_add, (("B", "N", "F"), *EDGES)),
    "maxima": (maxima, (("B", "N", "F"), *EDGES)),
    "weighted": (weighted, (("B", "N", "F"), ("E", "float"), *EDGES)),
    "scaled": (scaled, (("B", "N", "F"), ("B", "float"), *EDGES)),
    "layers": (with_layers, (("B", "N", "F"), ("F", "F"), *EDGES)),
    "batch behind": (batch_behind, (("B", "N", "F"), *EDGES)),
    "rows last": (rows_last, (("B", "N", "F"), *EDGES)),
    "heads": (heads, (("B", "N", "F"), *EDGES)),
    "neighbours": (neighbours, (("N", "F"), ("N", "K"))),
    "best neighbours": (best_neighbours, (("N", "F"), ("N", "K"))),
    "batched neighbours": (batched_neighbours, (("B", "N", "F"), ("B", "N", "K"))),
    "two indices": (two_indices, (("B", "N", "F"), ("B", "N", "K"))),
    "attention": (attention, (("B", "N", "F"), ("B", "N", "K"))),
}
BY_DEFAULT = ("scatter_add", "layers", "heads", "best neighbours", "batched neighbours")


def arguments(program: Program, sizes: dict[str, int], seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    out = []
    for dims in program[1]:
        shape = [F if d == "F" else sizes[d] for d in dims if d != "float"]
        if "F" in dims or "float" in dims:
            out.append(torch.randn(shape, dtype=torch.float64, generator=random).requires_grad_())
        else:
            out.append(torch.randint(max(sizes["N"], 1), shape, generator=random))
    return out


def step(f: Callable[..., Tensor], args: list[Tensor]) -> tuple[Tensor, ...]:
    given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    out = f(*given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return out, *torch.autograd.grad((out * weights).sum(), [a for a in given if a.requires_grad])


@pytest.mark.parametrize("name", PROGRAMS)
def test_moves_in_a_batch_are_moves_along_maps(name: str) -> None:
    program = PROGRAMS[name]
    args = arguments(program, SIZES)
    for a in args:
        if a.dtype.is_floating_point and a.dim() > 1:
            torch._dynamo.mark_static(a, a.dim() - 1)
    (captured,) = capture(program[0], *args)
    check(captured)
    nodes = captured.imported.program.nodes
    assert sum(isinstance(n, Pull) for n in nodes) >= 2
    assert any(isinstance(n, Push) for n in nodes)
    left = set(captured.targets()) - INDEX_WORK
    assert left <= {"aten.softmax"}, f"{left} stayed calls"


INDEX_WORK = {
    f"aten.{name}" for name in (
        "add.Tensor", "mul.Tensor", "arange.default", "reshape.default", "expand.default", "permute.default",
        "unsqueeze.default", "squeeze.dim", "transpose.int", "clone.default", "view.default",
    )
}  # fmt: skip
"""Calls that compute numbers of rows, and views at the borders."""


@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("name", by_default(PROGRAMS, *BY_DEFAULT))
def test_values_and_gradients_at_all_sizes(name: str, door: str) -> None:
    program = PROGRAMS[name]
    f = program[0]
    compiled = graphweave.compile(f) if door == "compile" else torch.compile(f, backend="graphweave", dynamic=True)
    graphweave.reset_counters()
    for seed, sizes in enumerate((SIZES, *OTHERS)):
        args = arguments(program, sizes, seed)
        try:
            want = step(f, args)
        except (RuntimeError, IndexError):
            continue  # a maximum over nothing
        torch.testing.assert_close(step(compiled, args), want)
    counted = graphweave.counters()
    assert counted["eager_fallbacks"] == 0
    assert counted["kernel_launches"] > 0


@pytest.mark.parametrize(
    "name", by_default(["index_add", "scatter_add", "batched neighbours", "two indices"], "scatter_add")
)
def test_an_index_out_of_range_in_a_batch_is_refused(name: str) -> None:
    """It would be in range for the flat rows, and read those of another item of the batch."""
    program = PROGRAMS[name]
    args = arguments(program, SIZES)
    compiled = graphweave.compile(program[0])
    compiled(*args)
    bad = [a.clone() if not a.is_floating_point() else a.detach() for a in args]
    bad[1].view(-1)[2] = SIZES["N"]
    with pytest.raises(IndexRangeError, match=f"index {SIZES['N']} "):
        compiled(*bad)


def test_negative_numbers_count_from_the_end_of_their_own_item() -> None:
    x, table = arguments(PROGRAMS["two indices"], SIZES)
    table = table - SIZES["N"] * (table % 2)
    torch.testing.assert_close(step(graphweave.compile(two_indices), [x, table]), step(two_indices, [x, table]))


def test_one_compilation_serves_all_sizes() -> None:
    program = PROGRAMS["scatter_add"]
    compiled = graphweave.compile(program[0])
    graphweave.reset_counters()
    for seed, (b, n, e) in enumerate([(3, 7, 19), (2, 9, 30), (6, 4, 8), (4, 4, 4)]):
        compiled(*arguments(program, {"B": b, "N": n, "E": e, "K": 2}, seed))
    assert graphweave.counters()["compilations"] == 1


def test_features_of_several_dims_that_are_joined_for_a_product_are_no_rows() -> None:
    """The matrix's gradient reads the joined features transposed, [features, edges]; they are no batch of edges."""

    def f(u: Tensor, v: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        message = torch.relu((u[src] * v[dst]).flatten(1) @ w)
        return message.new_zeros(v.shape[0], w.shape[1]).index_add(0, dst, message)

    u, v = (torch.randn(n, 2, 4, dtype=torch.float64, requires_grad=True) for n in (7, 5))
    w = torch.randn(8, 8, dtype=torch.float64, requires_grad=True)
    src, dst = torch.arange(12) % 7, torch.arange(12) % 5
    compiled = graphweave.compile(f)
    got, want = (g(u, v, w, src, dst) for g in (compiled, f))
    torch.testing.assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), (u, v, w)) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b)
    assert graphweave.counters()["fallback_calls"] == 0


def test_a_product_of_features_in_another_order_stays_what_it_is() -> None:
    """An index of features of fixed size makes no rows of them."""
    order = torch.tensor([2, 0, 3, 1])

    def f(x: Any, src: Any, dst: Any) -> Any:
        return index_add(x[..., order], src, dst)

    args = arguments(PROGRAMS["index_add"], SIZES)
    torch.testing.assert_close(step(graphweave.compile(f), args), step(f, args))


def test_pairs_of_indices_stay_pairs() -> None:
    """`edge_index` [2, E] has its rows in a later dim, but numbers are no features to move."""

    def f(x: Tensor, pair: Tensor) -> Tensor:
        kept = pair[:, pair[0] != pair[1]]
        return torch.zeros_like(x).index_add(0, kept[1], torch.tanh(x[kept[0]]))

    (captured,) = capture(f, torch.randn(6, F, dtype=torch.float64), torch.randint(6, (2, 20)))
    check(captured)
    assert "aten.permute.default" not in captured.targets()


def test_numbers_of_classes_that_a_loss_picks_make_no_rows_of_them() -> None:
    """As in an attention layer: the width of features is not fixed when rows are looked for."""

    def f(x: Tensor, y: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = x.view(x.shape[0], 2, -1)
        m = h.gather(0, src.view(-1, 1, 1).expand(-1, 2, h.shape[2]))
        out = torch.zeros_like(h).scatter_add(0, dst.view(-1, 1, 1).expand_as(m), m).mean(1)
        return out.log_softmax(1).gather(1, y[:, None])

    x, src, dst = torch.randn(6, 2 * F, dtype=torch.float64), *torch.randint(6, (2, 20))
    (captured,) = capture(f, x, torch.randint(F, (6,)), src, dst)
    check(captured)
    assert captured.targets() == []


# ---------------------------------------------------------------- programs of the fuzzer that went wrong once


def of_a_mean_of_all(x: Tensor, src: Tensor) -> Tensor:
    """The gradient of the mean is one number, brought to all rows."""
    return torch.tanh(x.mean() * x)[:, src]


def of_numbers_in_front(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Nothing fixes the number of classes here, so that classes are rows too: a number for each node is spread."""
    return torch.zeros_like(x).index_add(1, dst, x[:, src]).sum(0).matmul(w).log_softmax(-1)[src]


def of_a_view_that_is_a_result(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The view is read in flat form, and is a result that lies in the memory of the argument."""
    flat = x.flatten(0, 1)
    return flat.index_select(2, table.reshape(-1)), flat


FINDINGS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[str, ...], ...]]] = {
    "mean of all": (of_a_mean_of_all, (("B", "N", "F"), ("E",))),
    "classes as rows": (of_numbers_in_front, (("B", "N", "F"), ("F", "K", "float"), *EDGES)),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_findings(name: str) -> None:
    f = FINDINGS[name][0]
    compiled = torch.compile(f, backend="graphweave", dynamic=True)
    graphweave.reset_counters()
    for seed, sizes in enumerate((SIZES, OTHERS[0])):
        args = arguments(FINDINGS[name], sizes, seed)
        torch.testing.assert_close(step(compiled, args), step(f, args))
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_a_view_that_is_read_in_flat_form_stays_a_view() -> None:
    compiled = torch.compile(of_a_view_that_is_a_result, backend="graphweave", dynamic=True)
    for rows in ((2, 2, 1, 2), (3, 2, 4, 5)):
        x, table = torch.randn(rows, dtype=torch.float64), torch.randint(rows[-1], (rows[2], 2))
        picked, flat = compiled(x, table)
        want = of_a_view_that_is_a_result(x, table)
        torch.testing.assert_close((picked, flat), want)
        assert flat.stride() == want[1].stride() and picked.stride() == want[0].stride()
        assert flat.data_ptr() == x.data_ptr()
