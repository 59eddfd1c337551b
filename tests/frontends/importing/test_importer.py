"""Captured graphs as message programs: every spelling of pull and push; a program computes what its graph does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphweave.core.sizes import total
from graphweave.core.types import Fold
from graphweave.frontends.importing.ops_dense import OF_SHARED_DATA
from graphweave.ir.message.nodes import AnyType, Aten, MapOf, MapType, Node, Operand, Program, Pull, Push, ToUnit, Type
from tests.captures import Capture, capture, check
from tests.support import AWKWARD, Graph, by_default, features, random_graph

N, E, W = 11, 37, 6
EDGES = random_graph(N, N, E, seed=7)
SRC, DST = EDGES[0].clone(), EDGES[1].clone()


def x(rows: int = N, *shape: int, seed: int = 1) -> Tensor:
    """Signed random float64 rows that want a gradient."""
    flat = features(rows, int(torch.tensor(shape or (1,)).prod()), torch.float64, seed)
    return flat.reshape(rows, *shape).requires_grad_()


def one(f: Callable[..., Any], *args: Any, dynamic: bool = True) -> Capture:
    """The one graph of f(*args), checked against its program."""
    (captured,) = capture(f, *args, dynamic=dynamic)
    check(captured)
    return captured


def moves(captured: Capture) -> list[str]:
    """The pulls and pushes along indices, in order: "pull", "push.sum"."""
    nodes = captured.imported.program.nodes
    along = [n for n in nodes if isinstance(n, Pull | Push) and not isinstance(nodes[n.map], ToUnit)]
    return ["pull" if isinstance(n, Pull) else f"push.{n.fold.value}" for n in along]


def maps(program: Program) -> list[MapOf]:
    return [n for n in program.nodes if isinstance(n, MapOf)]


# ---------------------------------------------------------------- spellings of pull


def _expanded(index: Tensor, like: Tensor) -> Tensor:
    return index.view(-1, *(1 for _ in like.shape[1:])).expand(index.shape[0], *like.shape[1:])


PULLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_select": lambda h, i: h.index_select(0, i),
    "index_select_negative_dim": lambda h, i: h.index_select(-2, i),
    "index": lambda h, i: h[i],
    "index_all_features": lambda h, i: h[i, :],
    "gather_view_expand": lambda h, i: h.gather(0, _expanded(i, h)),
    "gather_unsqueeze_expand": lambda h, i: h.gather(0, i.unsqueeze(-1).expand(-1, h.size(1))),
    "gather_repeat": lambda h, i: h.gather(0, i.view(-1, 1).repeat(1, h.size(1))),
    "gather_expand_as": lambda h, i: h.gather(0, i[:, None].expand_as(h.new_zeros(i.numel(), h.size(1)))),
    "embedding": lambda h, i: F.embedding(i, h),
    "take_rows_int32": lambda h, i: h.index_select(0, i.to(torch.int32)),
    "widened": lambda h, i: h.gather(0, i.to(torch.int32).long().view(-1, 1).expand(-1, h.size(1))),
}


@pytest.mark.parametrize("dynamic", by_default((True, False), True), ids=["dynamic", "static"])
@pytest.mark.parametrize("name", PULLS)
def test_pull(name: str, dynamic: bool) -> None:
    captured = one(lambda h, i: torch.sin(PULLS[name](h, i)), x(N, W), SRC, dynamic=dynamic)
    assert moves(captured) == ["pull", "push.sum"]  # forward; the gradient
    assert captured.targets() == []
    assert not captured.imported.refused


def test_pull_of_vectors_and_blocks() -> None:
    for h in (x(N).squeeze(), x(N, 3, 4)):
        captured = one(lambda h, i: h[i].exp(), h.detach().requires_grad_(), SRC)
        assert moves(captured) == ["pull", "push.sum"]
        assert captured.targets() == []


def test_index_from_the_end_wraps_only_where_nothing_forbids_it() -> None:
    wrapping = one(lambda h, i: h[i].exp(), x(N, W), SRC - N)
    assert [m.wrap for m in maps(wrapping.imported.program)] == [True]
    both = one(lambda h, i: h[i].exp() + h.index_select(0, i), x(N, W), SRC)
    assert [m.wrap for m in maps(both.imported.program)] == [False]


def test_an_index_that_cannot_be_negative_does_not_wrap() -> None:
    """Positions from a sort, from a mask and in order, and what is picked from these; but neither an index that comes
    from outside nor one that was computed with."""
    every = x(N, W)

    def picked(h: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        order = h[:, 0].detach().sort(descending=True).indices
        chosen = (h[:, 1].detach() > 0).nonzero().view(-1)
        return h[order], h[order[chosen]], h[torch.arange(h.shape[0])], h[i], h[order - 1]

    program = one(picked, every, SRC - N).imported.program
    used = {n.map for n in program.nodes if isinstance(n, Pull) and program.types[n.x].shape == (W,)}
    assert [program.nodes[m].wrap for m in sorted(used)] == [False, False, False, True, True]


def test_gather_along_features_is_no_pull() -> None:
    columns = torch.randint(W, (N, 2), generator=torch.Generator().manual_seed(3))
    captured = one(lambda h, c: h.gather(1, c).exp(), x(N, W), columns)
    assert moves(captured) == []
    assert "aten.gather.default" in captured.targets()
    called = [captured.imported.program.nodes[r] for r in captured.imported.refused]
    assert any(isinstance(n, Aten) and n.target == "aten.gather.default" for n in called)


def test_gather_with_an_index_for_each_number_is_no_pull() -> None:
    rows = torch.randint(N, (E, W), generator=torch.Generator().manual_seed(3))
    captured = one(lambda h, c: h.gather(0, c).exp(), x(N, W), rows)
    assert moves(captured) == []


# ---------------------------------------------------------------- spellings of push


def _reduce(kind: str, own: bool, base: float | None = None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def f(m: Tensor, i: Tensor, like: Tensor) -> Tensor:
        start = like.exp() if base is None else torch.full_like(like, base)
        return start.scatter_reduce(0, _expanded(i, m), m, kind, include_self=own)

    return f


PUSHES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scatter_add": lambda m, i, like: torch.zeros_like(like).scatter_add(0, _expanded(i, m), m),
    "scatter_add_new_zeros": lambda m, i, like: m.new_zeros(like.shape).scatter_add_(0, _expanded(i, m), m),
    "scatter_add_base": lambda m, i, like: like.exp().scatter_add(0, _expanded(i, m), m),
    "index_add": lambda m, i, like: torch.zeros_like(like).index_add(0, i, m),
    "index_add_negative_dim": lambda m, i, like: m.new_zeros(like.shape).index_add(-2, i, m),
    "index_add_alpha": lambda m, i, like: like.exp().index_add(0, i, m, alpha=-2.5),
    "index_put": lambda m, i, like: torch.zeros_like(like).index_put((i,), m, accumulate=True),
    "index_put_broadcast": lambda m, i, like: like.index_put((i,), m.sum(1, keepdim=True), accumulate=True),
    "reduce_sum": _reduce("sum", False, 0.0),
    "reduce_sum_own": _reduce("sum", True),
    "reduce_sum_not_own": _reduce("sum", False),
    "reduce_prod_own": _reduce("prod", True, 1.0),
    "reduce_prod_not_own": _reduce("prod", False, 2.0),
    "reduce_mean": _reduce("mean", False, 0.0),
    "reduce_mean_own": _reduce("mean", True),
    "reduce_mean_own_zeros": _reduce("mean", True, 0.0),
    "reduce_mean_not_own": _reduce("mean", False, 3.0),
    "reduce_amax": _reduce("amax", False, 0.0),
    "reduce_amax_own": _reduce("amax", True),
    "reduce_amax_own_zeros": _reduce("amax", True, 0.0),
    "reduce_amax_not_own": _reduce("amax", False),
    "reduce_amin": _reduce("amin", False, -1.5),
    "reduce_amin_own": _reduce("amin", True),
}


@pytest.mark.parametrize("dynamic", by_default((True, False), True), ids=["dynamic", "static"])
@pytest.mark.parametrize("name", PUSHES)
def test_push(name: str, dynamic: bool) -> None:
    captured = one(PUSHES[name], x(E, W), DST, x(N, W, seed=2), dynamic=dynamic)
    assert captured.targets() == [], name
    assert any(move.startswith("push") for move in moves(captured))
    assert not captured.imported.refused
    assert len(maps(captured.imported.program)) == 1


def test_sum_into_zeros_is_one_push() -> None:
    for name in ("scatter_add", "scatter_add_new_zeros", "index_add", "index_put", "reduce_sum"):
        captured = one(PUSHES[name], x(E, W), DST, x(N, W, seed=2))
        assert moves(captured) == ["push.sum", "pull"], name
        assert "Pointwise" not in captured.kinds(), name


def test_push_of_vectors() -> None:
    captured = one(
        lambda m, i: m.new_zeros(N).scatter_add(0, i, m).exp(), x(E).squeeze().detach().requires_grad_(), DST
    )
    assert moves(captured) == ["push.sum", "pull"]


def test_index_reduce() -> None:
    def f(m: Tensor, i: Tensor, like: Tensor) -> Tensor:
        low = like.exp().index_reduce(0, i, m, "amin", include_self=True)
        mean = torch.zeros_like(like).index_reduce(0, i, m, "mean", include_self=False)
        return low + mean

    captured = one(f, x(E, W).detach(), DST, x(N, W, seed=2).detach())
    assert captured.targets() == []
    assert moves(captured) == ["push.min", "push.sum", "push.sum"]


def test_number_written_where_rows_point() -> None:
    captured = one(lambda m, i: m.exp().scatter(0, _expanded(i, m.new_zeros(E, W)), -3.0) * m, x(N, W), DST)
    assert captured.targets() == []


REPLACED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_put": lambda m, i, b: b.exp().index_put((i,), m),
    "scatter": lambda m, i, b: b.exp().scatter(0, _expanded(i, m), m),
    "index_copy": lambda m, i, b: b.exp().index_copy(0, i, m),
    "index_fill": lambda m, i, b: b.exp().index_fill(0, i, 2.5).index_add(0, i, m),
    "set_item": lambda m, i, b: _with_item(b.exp(), i, m),
}


def _with_item(x: Tensor, i: Tensor, rows: Tensor) -> Tensor:
    x = x.clone()
    x[i] = rows
    return x


@pytest.mark.parametrize("name", REPLACED)
def test_rows_written_in_place_of_others_are_pushed(name: str) -> None:
    captured = one(lambda m, i, b: REPLACED[name](m, i, b) * 2, x(E, W), DST, x(N, W, seed=2))
    assert set(captured.targets()) <= {"aten.arange.default"}
    assert not captured.imported.refused


def test_rows_written_once_are_pushed_without_asking_which_is_the_last() -> None:
    def f(m: Tensor, b: Tensor) -> Tensor:
        i = (b[:, 0].detach() > 0).nonzero().view(-1)
        return b.exp().index_copy(0, i, m[i])

    captured = one(f, x(N, W), x(N, W, seed=4))
    assert "push.max" not in moves(captured)
    assert not captured.imported.refused


def test_mask_written_is_where() -> None:
    captured = one(lambda h, i: torch.index_put(h[i], (h[i, 0] > 0,), h.new_tensor(2.0)), x(N, W), SRC)
    assert [t for t in captured.targets() if "index_put" in t] == []


@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_gradient(padding: int | None) -> None:
    captured = one(lambda h, i: F.embedding(i, h, padding).exp(), x(N, W), SRC)
    assert captured.targets() == [], captured.imported.refused
    assert not captured.imported.refused


def test_extremes_along_features_and_their_places() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        h = x[i]
        most, least = h.max(dim=1, keepdim=True), h.view(-1, 2, W // 2).min(dim=-1)
        return (h - most.values).exp() + least.values.sum(1, keepdim=True) + (least.indices.sum(1)[:, None] + most[1])

    captured = one(f, x(N, W), SRC)
    assert captured.targets() == []
    assert not captured.imported.refused


def test_integer_degrees() -> None:
    captured = one(lambda i: torch.zeros(N, dtype=torch.int64).scatter_add(0, i, torch.ones_like(i)) + 1, DST)
    assert moves(captured) == ["push.sum"]


# ---------------------------------------------------------------- spaces


def test_same_row_of_edge_index_is_one_map() -> None:
    def f(h: Tensor, edges: Tensor) -> Tensor:
        first, second = edges.unbind(0)
        src, dst = edges
        out = h.new_zeros(h.shape).scatter_add(0, _expanded(dst, h[src]), h[first])
        return out.index_select(0, edges[-1]) + h.index_select(0, second) + h[edges[1]] + h[edges.select(0, 1)]

    captured = one(f, x(N, W), EDGES)
    assert len(maps(captured.imported.program)) == 2
    assert captured.targets() == ["aten.select.int", "aten.select.int"]


def test_spaces_follow_maps_and_not_sizes() -> None:
    """There are as many edges as nodes and as many nodes as features, and the three stay different spaces."""
    edges = random_graph(W, W, W, seed=5)

    def f(h: Tensor, e: Tensor, w: Tensor, edges: Tensor) -> Tensor:
        src, dst = edges[0], edges[1]
        messages = h[src] * e
        return h.new_zeros(h.shape).index_add(0, dst, messages) @ w

    for dynamic in (True, False):
        captured = one(f, x(W, W), x(W, W, seed=3), x(W, W, seed=4), edges, dynamic=dynamic)
        ends = [(t.dom.name, t.cod.name[0]) for n, t in _typed(captured) if isinstance(n, MapOf)]
        assert ends == [("E0", "V"), ("E0", "V")]
        assert captured.targets() == ["aten.select.int", "aten.select.int"]


def test_feature_sizes_become_numbers_and_row_counts_do_not() -> None:
    captured = one(lambda h, i: h[i].exp(), x(N, W), SRC)
    (space_rows,) = [captured.imported.space_rows]
    assert all(isinstance(n, torch.SymInt) and n.node.expr.is_Symbol for n in space_rows.values())
    pulled = [t for n, t in _typed(captured) if isinstance(n, Pull)]
    assert all(isinstance(t, Type) and t.shape == (W,) for t in pulled)


def test_each_sum_of_sizes_says_what_it_is() -> None:
    program = one(lambda a, b, c: torch.cat([a, b, c]).mean(0), x(3, 2), x(4, 2), x(5, 2)).imported.program
    sums = [n for n in program.nodes if isinstance(n, Aten) and n.target == "builtin.add"]
    assert len(sums) == 3
    for node in sums:
        terms = [program.types[a.ref] for a in node.args if isinstance(a, Operand)]
        sizes = [t.size for t in terms if isinstance(t, AnyType) and t.size is not None]
        assert len(sizes) == 2
        assert isinstance(node.type, AnyType) and node.type.size == total(*sizes)


def test_rows_of_a_transposed_tensor_are_no_space_of_features() -> None:
    """A vector of rows against columns: [N, N] + [N] must not be read as row by row."""
    captured = one(lambda h, v, i: (h[i] + v).exp() + v[i].sum(), x(N, N), x(N).detach().view(N).requires_grad_(), SRC)
    assert captured.imported.program.outputs


def test_bipartite_spaces_differ() -> None:
    def f(hs: Tensor, hd: Tensor, edges: Tensor) -> Tensor:
        return hd + torch.zeros_like(hd).index_add(0, edges[1], hs[edges[0]])

    captured = one(f, x(N, W), x(5, W, seed=2), random_graph(N, 5, E))
    cods = [t.cod for n, t in _typed(captured) if isinstance(n, MapOf) and isinstance(t, MapType)]
    assert len(set(cods)) == 2


def _typed(captured: Capture) -> list[tuple[Node, Any]]:
    program = captured.imported.program
    return list(zip(program.nodes, program.types, strict=True))


def test_row_sums_are_pushes_to_unit() -> None:
    def f(h: Tensor, i: Tensor) -> Tensor:
        m = h[i]
        return m.sum(0) + m.mean(0) + m.amax(0) + m.sum((0, 1)) + m.mean() + m.std(0) + m.sum(0, keepdim=True)[0]

    captured = one(f, x(N, W), SRC)
    assert captured.targets() == []


def test_weight_gradient_is_gram() -> None:
    captured = one(
        lambda h, w, b, i: torch.addmm(b, h[i], w).relu(), x(N, W), x(W, 3), x(3).detach().view(3).requires_grad_(), SRC
    )
    assert captured.targets() == []
    assert captured.kinds().count("MatMul") == 2  # forward, and the gradient of h
    assert captured.kinds().count("Gram") == 1


# ---------------------------------------------------------------- rows


def _shapes(h: Tensor, i: Tensor) -> Tensor:
    m = h[i].view(-1, 2, 3)
    a, b = m.chunk(2, dim=1)
    c = torch.stack([a.squeeze(1), b.squeeze(1)], dim=-1).permute(0, 2, 1)
    d = torch.cat([c, m[:, :, 1:], m.flip(0).flip(0)[..., :1]], dim=2)
    u = d.unbind(1)[1] * d.transpose(1, 2).select(2, 0)
    v = F.pad(u, (1, 2)).reshape(u.shape[0], 3, 3)[:, 1:, ::2].flatten(1)
    filled = torch.zeros_like(v)
    filled[:, 1] = v[:, 0]
    filled[:, 2:] = v[:, 2:] * 3
    return torch.cat([v, filled, u.split([1, 5], dim=1)[1]], 1) * torch.ones_like(v[:, :1])


def _numbers(h: Tensor, i: Tensor) -> Tensor:
    m = h[i]
    a = torch.where(m > 0.1, m, m.abs().sqrt()) + m.clamp(-0.5, 0.7) ** 2 - (1 - m) / (2 + m.exp())
    a = a + m.masked_fill(m < 0, 0.25) * torch.maximum(m, a) + torch.minimum(m, m.new_tensor(0.3))
    a = a * (m != 0) + torch.rsub(m, 2.0, alpha=3) + torch.add(m, a, alpha=0.5) + torch.sub(a, m, alpha=2)
    a = a + m.pow(3) + (m.abs() + 1) ** -0.5 + (m.abs() + 1) ** 0.5 + (m.abs() + 1) ** -2 + 2.0**m + (m + 4) ** 1.7
    a = torch.where(torch.isinf(1 / (m - m.floor())) | torch.isnan(m), 0.5, a)
    a = a + i.view(-1, 1) * 0.01 + (i.view(-1, 1) + 1) / 7 + (i > 3).view(-1, 1) * (i < 8).view(-1, 1) + m.sign()
    mask = ((m > 0) & (m < 1)) | ~(m > -1)
    return (
        a * mask + m.float().double() + torch.atan2(m, m + 3) + m.expm1() + (m.abs() + 1).log() + m.floor() + m.ceil()
    )


def _activations(h: Tensor, i: Tensor) -> Tensor:
    m = h[i]
    out = F.elu(m) + F.gelu(m) + F.gelu(m, approximate="tanh") + F.silu(m) + F.softplus(m) + F.sigmoid(m) + F.tanh(m)
    out = out + F.leaky_relu(m, 0.2) + F.hardtanh(m) + F.relu6(m) + F.hardswish(m) + F.mish(m) + F.logsigmoid(m)
    out = out + F.softmax(m, -1) + F.log_softmax(m, 1) + torch.logsumexp(m, 1, keepdim=True) + F.selu(m) + F.celu(m)
    out = (
        out
        + torch.addcmul(m, m, m, value=0.5)
        + torch.lerp(m, m * 2, 0.3)
        + F.normalize(m, dim=-1)
        + F.threshold(m, 0.1, 2.0)
    )
    return (
        out
        + m.var(1, keepdim=True)
        + m.std(1, unbiased=False, keepdim=True)
        + F.prelu(m, h.new_tensor([0.3]))
        + m.norm()
    )


@pytest.mark.parametrize("dynamic", by_default((True, False), True), ids=["dynamic", "static"])
@pytest.mark.parametrize("f", [_shapes, _numbers, _activations], ids=["shapes", "numbers", "activations"])
def test_row_by_row(f: Callable[[Tensor, Tensor], Tensor], dynamic: bool) -> None:
    captured = one(f, x(N, W), SRC, dynamic=dynamic)
    kept = {"aten.flip.default"} if f is _shapes else set()
    assert set(captured.targets()) <= kept
    torch.testing.assert_close(_ran(captured), f(x(N, W), SRC).detach(), rtol=1e-12, atol=1e-12)


def _ran(captured: Capture) -> Tensor:
    """The first result of the captured graph, run with all its decompositions."""
    names = [n.name for n in captured.gm.graph.nodes if n.op == "placeholder"]
    inputs = [captured.inputs[n] for n in names]
    out = torch.fx.Interpreter(captured.gm).run(*inputs, enable_io_processing=False)
    first = torch.utils._pytree.tree_leaves(out)[0]
    assert isinstance(first, Tensor)
    return first


def test_half_precision_and_promotion() -> None:
    def f(h: Tensor, i: Tensor) -> Tensor:
        m = h[i]
        return (m * i.view(-1, 1) + m.double() * 0.5).to(torch.float32) + i.to(torch.float32).view(-1, 1)

    captured = one(f, x(N, W).detach().float().requires_grad_(), SRC)
    assert captured.targets() == []


def test_each_dropout_draws_by_a_seed_of_its_own() -> None:
    def f(h: Tensor, i: Tensor) -> Tensor:
        m = F.dropout(h[i], 0.4) + F.dropout(h[i], 0.4)
        return torch.zeros_like(h).index_add(0, i, m)

    captured = one(f, x(N, W), SRC)
    assert captured.targets() == ["aten.randint.default", "aten.randint.default"]
    assert captured.kinds().count("Random") == 2


def test_results_that_copy_inputs_or_each_other_stay_copies() -> None:
    def f(h: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m = h[i]
        return h.clone(), m, m.clone()

    captured = one(f, x(N, W).detach(), SRC)
    outputs = captured.imported.program.outputs
    assert len(set(outputs)) == 3
    assert captured.targets() == ["aten.clone.default", "aten.clone.default"]


def test_users_line_is_kept() -> None:
    captured = one(_numbers, x(N, W), SRC)
    program = captured.imported.program
    pulled = next(r for r, n in enumerate(program.nodes) if isinstance(n, Pull))
    assert program.locs[pulled].path == __file__ and program.locs[pulled].code == "m = h[i]"


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("graph", AWKWARD, ids=lambda g: g.name)
def test_attention_on_awkward_graphs(graph: Graph) -> None:
    n = graph.num_nodes

    def f(h: Tensor, a: Tensor, edges: Tensor) -> Tensor:
        src, dst = edges[0], edges[1]
        score = F.leaky_relu((h @ a)[src] + (h @ a)[dst], 0.2)
        place = dst.view(-1, 1).expand_as(score)
        top = score.new_zeros(n, 2).scatter_reduce(0, place, score.detach(), "amax", include_self=False)
        weight = (score - top[dst]).exp()
        total = score.new_zeros(n, 2).scatter_add(0, place, weight) + 1e-16
        return torch.zeros_like(h).index_add(0, dst, (weight / total[dst]).sum(1, keepdim=True) * h[src])

    captured = one(f, x(n, W), x(W, 2, seed=5), graph.edge_index, dynamic=False)
    assert set(captured.targets()) <= {"aten.select.int"}
    assert not captured.imported.refused


def test_folds_are_the_ones_asked_for() -> None:
    captured = one(PUSHES["reduce_amin"], x(E, W), DST, x(N, W, seed=2))
    (push,) = [n for n in captured.imported.program.nodes if isinstance(n, Push) and n.fold is Fold.min]
    assert push.empty == -1.5


# ---------------------------------------------------------------- one number of each row

PLACES = torch.randint(2, (N, 1), generator=torch.Generator().manual_seed(3))
COLUMNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gather": lambda h, p: h.gather(1, p).exp(),
    "gather_last": lambda h, p: h.view(-1, 2, 3).gather(-1, p[:, None].expand(-1, 2, -1)),
    "gather_middle": lambda h, p: h.view(-1, 2, 3).gather(1, p[:, None].expand(-1, -1, 3)),
    "scatter_value": lambda h, p: h.scatter(1, p, 2.5),
    "scatter": lambda h, p: h.scatter(1, p, h[:, :1] * 2),
    "scatter_add": lambda h, p: h.scatter_add(1, p, h[:, 1:2]),
    "one_of_them": lambda h, p: h * (torch.arange(W) == p),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_one_number_of_each_row(name: str) -> None:
    """The test includes a pull, because rows are rows only where a map meets them. Only index checks remain calls."""
    captured = one(lambda h, p, i: COLUMNS[name](h, p)[i].sum(), x(N, W), PLACES, SRC)
    assert captured.targets() == []
    assert not captured.imported.refused


def test_several_numbers_of_each_row_stay_with_torch() -> None:
    captured = one(lambda h, p, i: h.gather(1, p.expand(-1, 3).contiguous())[i].sum(), x(N, W), PLACES, SRC)
    assert "aten.gather.default" in captured.targets()


def test_products_of_weights_have_their_reason() -> None:
    """A basis decomposition multiplies weights before rows: that product and its gradients stay calls, and say why."""
    coefficients, bases = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, W * 2, dtype=torch.float64)
    for weight in (coefficients, bases):
        torch._dynamo.mark_static(weight.requires_grad_())
    captured = one(lambda h, c, b, i: (h[i] @ (c @ b).view(2, W, 2)[1]).exp(), x(N, W), coefficients, bases, SRC)
    assert [t for t in captured.targets() if "mm" in t] == ["aten.mm.default"] * 3
    assert set(captured.imported.refused.values()) == {OF_SHARED_DATA}
