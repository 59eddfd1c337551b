"""Built-in message and reduce functions equal dense references: in eager mode, in buckets, with kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from graphweave.udf.builtin import BINARY, REDUCE
from graphweave.udf.run import update_all
from tests.programs.compare import assert_close
from tests.programs.graphs import EdgeList, zoo
from tests.udf.udf_support import Case, assert_same, ends_of, frames_of, in_buckets

ZOO = zoo()
_OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "dot": lambda x, y: x * y if x.dim() == 1 else torch.einsum("...i,...i->...", x, y).unsqueeze(-1),
}  # fmt: skip


def dense(messages: Tensor, edges: EdgeList, op: str) -> Tensor:
    """[num_dst, ...] by a loop over destinations."""
    rows = []
    for v in range(edges.num_dst):
        box = messages[edges.dst == v]
        if not box.shape[0]:
            rows.append(messages.sum(0) * 0)
        elif op in ("sum", "mean"):
            rows.append(box.sum(0) if op == "sum" else box.mean(0))
        else:
            rows.append(box.amax(0) if op == "max" else box.amin(0))
    return torch.stack(rows) if rows else messages.new_zeros(0, *messages.shape[1:])


def fields(edges: EdgeList, shapes: dict[str, tuple[int, ...]], seed: int = 5) -> dict[str, Tensor]:
    """Features of sources, destinations and edges, away from 0 so that they may divide."""
    generator = torch.Generator().manual_seed(seed)
    rows = {"u": edges.num_src, "v": edges.num_dst, "e": edges.src.numel()}
    out = {}
    for target, shape in shapes.items():
        x = torch.randn(rows[target], *shape, generator=generator, dtype=torch.float64)
        out[target] = (x + 0.5 * x.sign()).requires_grad_()
    return out


def on_edges(x: dict[str, Tensor], target: str, edges: EdgeList) -> Tensor:
    return x["e"] if target == "e" else x[target].index_select(0, edges.src if target == "u" else edges.dst)


def check(name: str, reduce: str, edges: EdgeList, shapes: dict[str, tuple[int, ...]]) -> None:
    lhs, op, rhs = name.split("_")
    x = fields(edges, shapes)
    frames = frames_of({"x": x["u"]}, {"x": x["v"]}, {"x": x["e"]})
    message, to = getattr(fn, name)("x", "x", "m"), getattr(fn, reduce)("m", "o")
    left, right = on_edges(x, lhs, edges), on_edges(x, rhs, edges)
    while left.dim() < right.dim():
        left = left.unsqueeze(1)
    while right.dim() < left.dim():
        right = right.unsqueeze(1)
    want = {"o": dense(_OPS[op](left, right), edges, reduce)}
    leaves = tuple(x.values())
    bucketed = in_buckets(Case(ends_of(edges), frames, leaves), to, message)
    for reference in (want, bucketed):
        assert_same(update_all(ends_of(edges), frames, message, to), reference, leaves, 64)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("name", BINARY)
def test_binary_messages(name: str, reduce: str) -> None:
    same: dict[str, tuple[int, ...]] = dict.fromkeys(("u", "v", "e"), (3,))
    with override(eager_kernels=False):
        for edges in ZOO:
            if edges.name in ("no_edges", "one_edge", "duplicates", "bipartite", "one_node"):
                check(name, reduce, edges, same)


@pytest.mark.parametrize("name", ["u_mul_e", "e_div_u", "u_add_v", "v_sub_e", "u_dot_v", "e_dot_v"])
@pytest.mark.parametrize(
    "shapes", [((2, 3), (3,), (1, 3)), ((2, 3), (2, 3), (3,)), ((4,), (2, 4), (1,)), ((), (3,), (3,))]
)
def test_feature_dims_broadcast_from_the_right(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    of = dict(zip("uve", shapes, strict=True))
    if "dot" in name and len({(of[target] or (1,))[-1] for target in name.split("_dot_")}) > 1:
        with pytest.raises(DataError, match="the same size"):
            check(name, "sum", ZOO[5], of)
        return
    with override(eager_kernels=False):
        for edges in ZOO[5:9]:
            check(name, "sum", edges, of)


@pytest.mark.parametrize("name", BINARY)
def test_one_number_a_row(name: str) -> None:
    """Fields [rows] give messages [edges], a dot product the product of two numbers."""
    numbers: dict[str, tuple[int, ...]] = dict.fromkeys(("u", "v", "e"), ())
    with override(eager_kernels=False):
        for edges in ZOO[5:9]:
            check(name, "sum", edges, numbers)
    g = graphweave.graph(([0, 1], [1, 2]))
    g.ndata["h"], g.edata["h"] = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3.0, 5.0])
    g.apply_edges(getattr(fn, name)("h", "h", "o"))
    of = {"u": [1.0, 2.0], "v": [2.0, 4.0], "e": [3.0, 5.0]}
    lhs, op, rhs = name.split("_")
    ops = {"add": float.__add__, "sub": float.__sub__, "div": float.__truediv__}
    expected = [ops.get(op, float.__mul__)(a, b) for a, b in zip(of[lhs], of[rhs], strict=True)]
    assert_close(g.edata["o"], torch.tensor(expected))


@pytest.mark.parametrize("name, reduce", [("u_mul_e", "sum"), ("u_dot_v", "max"), ("u_sub_v", "mean")])
def test_with_kernels(name: str, reduce: str, fresh_compiler: None) -> None:
    same: dict[str, tuple[int, ...]] = dict.fromkeys(("u", "v", "e"), (3,))
    for edges in ZOO:
        if edges.name in ("hub_dst", "bipartite", "one_edge"):
            check(name, reduce, edges, same)
    counts = graphweave.counters()
    assert counts["kernel_launches"] > 0
    assert counts["graph_breaks"] == counts["eager_fallbacks"] == counts["bucketed_reductions"] == 0


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("target", ["u", "e"])
def test_copies(target: str, reduce: str) -> None:
    with override(eager_kernels=False):
        for edges in ZOO:
            x = fields(edges, {"u": (3,), "v": (3,), "e": ()})
            frames = frames_of({"x": x["u"]}, {}, {"x": x["e"]})
            message = (fn.copy_u if target == "u" else fn.copy_e)("x", "m")
            got = update_all(ends_of(edges), frames, message, getattr(fn, reduce)("m", "o"))
            assert_same(got, {"o": dense(on_edges(x, target, edges), edges, reduce)}, (x["u"], x["e"]), 64)


def test_names() -> None:
    assert set(fn.__all__) == {"copy_u", "copy_e", "sum", "mean", "max", "min"} | {
        f"{a}_{op}_{b}" for op in _OPS for a in "uve" for b in "uve" if a != b
    }
    assert all(callable(getattr(fn, name)) for name in fn.__all__)


def test_made_and_called_in_the_trace_of_another_compiler(fresh_compiler: None) -> None:
    """PyTorch 2.11 hashes an object that a trace makes and calls before it has fields."""
    g = graphweave.graph(([0, 1, 1], [1, 2, 0]))

    def f(h: Tensor, w: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["h"], g.edata["w"] = h, w
            g.update_all(fn.u_mul_e("h", "w", "m"), fn.max("m", "a"))
            g.update_all(fn.copy_e("w", "m"), fn.sum("m", "b"))
            return g.ndata["a"] + g.ndata["b"]

    given = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[3.0], [5.0], [7.0]])
    assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(*given), f(*given))


def test_equal_where_fields_are_equal() -> None:
    assert fn.copy_u("h", "m") == fn.copy_u("h", "m") != fn.copy_u("h", "o")
    assert len({fn.sum("m", "h"), fn.sum("m", "h"), fn.max("m", "h"), fn.u_add_v("m", "h", "o")}) == 3
