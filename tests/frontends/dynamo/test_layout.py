"""Strides and aliases of results are those of the captured graph, whatever the program left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor

import graphweave
from graphweave.ir.message.layouts import Promise, memory_of, settled
from tests.layout_support import DOORS, compare, compiled, results_of
from tests.support import by_default

INDEX = torch.tensor([0, 1, 2, 0, 3, 1, 2, 0, 5])


def transposed(x: Tensor, i: Tensor) -> Tensor:
    v = x[1:].t().contiguous() * 2
    v[0] = 0.0
    return v


def transposed_dims(x: Tensor, i: Tensor) -> Tensor:
    v = x[1:].transpose(0, 1).contiguous() + 1
    v[:1] *= 3
    return v


def by_einsum(x: Tensor, i: Tensor) -> Tensor:
    v = torch.einsum("nd->dn", x[1:]).contiguous() * 2
    v[0].mul_(2)
    return v


def viewed(x: Tensor, i: Tensor) -> Tensor:
    v = x[1:].view(-1, 2, 2).transpose(0, 1).contiguous()
    v[0] = 0.0
    return v


def masked(x: Tensor, i: Tensor) -> Tensor:
    v = x[i > 0].view(-1, 2, 2).transpose(0, 1).contiguous()
    v[0] *= 2
    return v


def expanded(x: Tensor, i: Tensor) -> Tensor:
    v = x[1:].t().unsqueeze(2).expand(-1, -1, 2).flatten(1).clone()
    v[0] = 0.0
    return v


def repeated(x: Tensor, i: Tensor) -> Tensor:
    v = (x[:, 2:] - 0.1).repeat_interleave(2, dim=1).clone()
    v[:, 0] = 0.0
    return v


def copied_windows(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    """Windows share elements until they are copied. PyTorch's calls that write into a copy keep its strides."""
    a, b, c = (x.unfold(0, 2, 1).contiguous() for _ in range(3))
    a[:1] *= 3
    b[1] = 0.0
    c.diagonal().mul_(3)
    return x[i], a, b, c


def permuted_heads(x: Tensor, i: Tensor) -> Tensor:
    v = x.view(x.size(0), 2, 2).permute(0, 2, 1)
    v = v.reshape(x.size(0), 4).contiguous()
    v[1:, :2] = 0.0
    return v.index_select(0, i)


def dropped_copy(x: Tensor, i: Tensor) -> Tensor:
    return x.t().contiguous()


def dropped_copies(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y, y.t().contiguous(), y.view(-1, 2).clone()


def copy_of_what_is_saved(x: Tensor, i: Tensor) -> Tensor:
    return x.exp().clone()


def views_of_one(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    y = torch.zeros_like(x).index_add(0, i, x[i]) * 2
    return y.view(x.size(0), 2, 2)[:, 1], y.t()[1:], y[: x.size(0) // 2, 1]


def views_of_an_input(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    return x.view(x.size(0), 2, 2)[:, 1], x[: x.size(0) // 2, 1], x + 1


def views_of_a_copy(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    y = x.t().contiguous()
    return y[0], y[1:]


def expanded_copy(x: Tensor, i: Tensor) -> Tensor:
    return x.expand(3, *x.shape).contiguous()


def by_strides(x: Tensor, i: Tensor) -> Tensor:
    return x[1:].t().contiguous().as_strided((3, 3), (1, 3), 1)


def by_strides_of_rows(x: Tensor, i: Tensor) -> Tensor:
    y = x[1:].clone()
    return y.as_strided((y.size(0), 2), (4, 2), 1) * x.view(-1, 2, 2)[1:, 0].clone().as_strided((y.size(0), 2), (2, 1))


def attended(x: Tensor, i: Tensor) -> Tensor:
    q = x.view(1, x.size(0), 2, 2).transpose(1, 2)
    k = x[i].view(1, x.size(0), 2, 2).transpose(1, 2).contiguous()
    return torch.nn.functional.scaled_dot_product_attention(q, k, k * 2)


def grouped_norm(x: Tensor, i: Tensor) -> Tensor:
    return torch.nn.functional.group_norm(x[1:].t().contiguous().view(1, 4, -1), 2)


def reinterpreted(x: Tensor, i: Tensor) -> Tensor:
    return x.t().contiguous().view(torch.int64).float() * x.detach().t().sign()


def strides_asked(x: Tensor, i: Tensor) -> Tensor:
    y = x[1:].t().contiguous()
    return y * (y.stride(0) - y.size(1) + 2) + y.new_empty(y.size()).fill_(y.stride(1))


WRITES = (
    transposed, transposed_dims, by_einsum, viewed, masked, expanded, repeated, copied_windows, permuted_heads,
    attended, grouped_norm, by_strides, by_strides_of_rows, strides_asked,
)  # fmt: skip
RESULTS = (
    dropped_copy, dropped_copies, copy_of_what_is_saved, views_of_one, views_of_an_input, views_of_a_copy,
    expanded_copy, transposed, by_strides,
)  # fmt: skip


@pytest.mark.parametrize("door", by_default(DOORS, "torch.compile"))
@pytest.mark.parametrize("fn", WRITES, ids=lambda f: f.__name__)
def test_gradients_are_eagers_where_copies_changed_strides(fn: Callable[..., Any], door: str) -> None:
    compare(fn, [(_values(n), INDEX[:n].remainder(n)) for n in (9, 5)], door)


@pytest.mark.parametrize("door", by_default(DOORS, "graphweave.compile"))
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("fn", RESULTS, ids=lambda f: f.__name__)
def test_results_lie_in_memory_as_eagers_do(fn: Callable[..., Any], grad: bool, door: str) -> None:
    """Checks strides, which results share memory with each other or an input, and that results may be written to."""
    made = compiled(fn, door)
    inputs = [_values(9).requires_grad_(grad) for _ in range(2)]
    got, want = (results_of(f(x, INDEX)) for f, x in zip((made, fn), inputs, strict=True))
    assert [t.stride() for t in got] == [t.stride() for t in want]
    assert _aliases((inputs[0], *got)) == _aliases((inputs[1], *want))
    writable = not grad or all(t._base is None for t in want)
    for results in (got, want) if writable else ():
        with torch.no_grad():
            results[0].add_(1)
    for g, w in zip((*got, inputs[0]), (*want, inputs[1]), strict=True):
        torch.testing.assert_close(g, w)
    if grad:
        for results in (got, want):
            sum((t * torch.arange(t.numel()).view(t.shape)).sum() for t in results).backward()  # type: ignore[union-attr]
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def test_a_promise_is_kept_by_a_copy_only_where_it_is_broken() -> None:
    x = torch.randn(3, 4)
    rows, columns = Promise((0, 1)), Promise((1, 0))
    assert settled(x, rows, set()) is x
    assert settled(x.t(), columns, set()).stride() == (1, 4)
    assert settled(x, columns, set()).stride() == (1, 3)
    assert settled(x.t(), rows, set()).stride() == (3, 1)
    assert settled(x, Promise((1, 0), own=False, loose=True), set()) is x
    for taken, kept, promise in (({x}, {}, rows), ({}, {x}, Promise((0, 1), fresh=True))):
        copied = settled(x, promise, memory_of(taken), memory_of(kept))
        assert copied is not x and torch.equal(copied, x)
    assert settled(x, rows, set(), memory_of([x])) is x


@pytest.mark.parametrize("saves", [False, True])
def test_a_result_is_compared_with_what_is_saved_only_if_it_may_be_saved(saves: bool, fresh_compiler: None) -> None:
    """Of exp(2 x), which the function computes twice, the backward needs the value, of sin(2 x) it does not."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        again, result = ((x * 2).exp(), (x * 2).exp()) if saves else ((x * 2).sin(), (x * 2).sin())
        return x.new_zeros(9, 4).index_add(0, INDEX, again.index_select(0, INDEX)), result

    x = _values(9).requires_grad_()
    assert ("settled(" in graphweave.explain(fn, x).text("all")) is saves
    results = []
    for call in (fn, graphweave.compile(fn)):
        pushed, result = call(x)
        results.append([pushed.detach(), result.detach(), *torch.autograd.grad(pushed.sum() + result.sum(), x)])
    torch.testing.assert_close(results[1], results[0])


def test_a_result_of_the_graph_alone_is_the_callers_own() -> None:
    """Degrees are kept from call to call, but a result never shares memory with what is kept."""

    def degrees(i: Tensor, x: Tensor) -> Tensor:
        return x.new_zeros(x.size(0)).index_add(0, i, x.new_ones(i.size(0)))

    x, made = _values(9), graphweave.compile(degrees)
    first = made(INDEX, x)
    before = first.clone()
    made(INDEX, x).add_(7)
    torch.testing.assert_close(first, before)


def _values(rows: int) -> Tensor:
    return torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))


def _aliases(tensors: tuple[Tensor, ...]) -> list[int]:
    """The first tensor whose memory each tensor shares."""
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [places.index(p) for p in places]


def test_an_operator_that_takes_no_gaps_gets_the_copy_that_eager_mode_makes(fresh_compiler: None) -> None:
    def fn(q: Tensor) -> Tensor:
        return torch.nn.functional.group_norm(q, 2)

    wide = torch.randn(3, 2, 4, 2, dtype=torch.float64)
    results = []
    for call in (fn, graphweave.compile(fn)):
        q = wide[..., 0].detach().requires_grad_()
        out = call(q)
        results.append([out.detach(), *torch.autograd.grad(out.sin().sum(), q)])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("door", DOORS)
def test_writes_to_transposed_views_of_reshapes(door: str) -> None:
    """PyTorch's functional forms of these writes give other strides than the view's, which AOTAutograd cannot undo."""

    def written(x: Tensor, i: Tensor) -> Tensor:
        v = (x * 2).reshape(x.size(0), 2, 2).permute(1, 0, 2)
        v.masked_fill_((i > 0)[None, :, None], 0.0)
        w = (x + 1).view(x.size(0), 2, 2).transpose(1, 2)
        w.index_add_(0, i, v.permute(1, 0, 2))
        w.cumsum_(2)
        return v[0] * w.reshape(x.size(0), 4)[:, :2]

    compare(written, [(_values(n), INDEX[:n].remainder(n)) for n in (9, 5)], door)


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_gps_conv_with_a_performer(door: str) -> None:
    torch.manual_seed(0)
    model = pyg.GPSConv(8, pyg.GCNConv(8, 8), heads=2, attn_type="performer", attn_kwargs={"head_channels": 4})
    model = model.double().eval()
    made = compiled(model, door)
    x, edge_index = torch.randn(20, 8, dtype=torch.float64), torch.randint(20, (2, 60))
    batch = torch.tensor([0] * 7 + [1] * 5 + [2] * 8)
    grads = []
    for f in (made, model):
        own = x.clone().requires_grad_()
        f(own, edge_index, batch).square().sum().backward()
        assert own.grad is not None
        grads.append(own.grad)
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-11)
