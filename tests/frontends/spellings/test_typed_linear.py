"""Products with a matrix for each type of edge, however written: no edge gets a matrix, all gradients are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave import ops
from graphweave.compiler.report import Report, collect
from graphweave.core.errors import IndexRangeError
from tests.support import assert_matches, by_default
from tests.typed_spellings import (
    GRAPHS,
    SPELLINGS,
    TypedEdges,
    assert_no_matrices_of_edges,
    assert_no_wide_rows_of_edges,
)

pytestmark = pytest.mark.usefixtures("fresh_compiler")

USUAL = GRAPHS[0]
BY_NAME = {graph.name: graph for graph in GRAPHS}
SOME = tuple(BY_NAME[name] for name in ("usual", "no edges", "one edge", "empty types", "many rows of few types"))
"""Graphs for most spellings. Only the last has enough rows for a kernel."""


def check(
    f: Callable[..., Tensor], tensors_of: Callable[[TypedEdges], tuple[Tensor, ...]], graphs: tuple[TypedEdges, ...],
    strides: int = 0,
) -> Report:  # fmt: skip
    """One compilation serves all `graphs`; weights of one type may have their own, and `strides` more are allowed.

    PyTorch's matmul asks whether a matrix whose strides are not in order has numbers at all, and one row."""
    compiled = graphweave.compile(f)
    with collect() as report:
        for graph in graphs:
            rows = graph.src, graph.dst, graph.etype
            assert_matches(compiled, f, *tensors_of(graph), *rows, label=graph.name)
    counts = graphweave.counters()
    assert 0 <= counts["compilations"] - len({graph.types == 1 for graph in graphs}) <= strides
    assert counts["eager_fallbacks"] == counts["graph_breaks"] == 0
    return report


COVERED = ("bmm",)
"""Spellings that `test_every_graph` runs by default, on more graphs."""

ALIKE = ("matmul", "matmul-heads", "summed-matrix-first", "turned-rows", "flat-index", "scaled")
"""Spellings that become the same calls of PyTorch as another one."""

TRANSPOSED = ("matrix-first-turned",)
"""Spellings whose matrices have strides that are not in order."""


@pytest.mark.parametrize("name", by_default(SPELLINGS, *(name for name in SPELLINGS if name not in COVERED + ALIKE)))
def test_every_spelling(name: str) -> None:
    spelling = SPELLINGS[name]
    report = check(spelling.layer(), lambda graph: spelling.tensors(graph, 9, 8), SOME, name in TRANSPOSED)
    assert_no_matrices_of_edges(report, 72)


@pytest.mark.parametrize("name", by_default(SPELLINGS, *COVERED))
def test_every_graph(name: str) -> None:
    """Types without edges, no edges, one, one type, and more types than a type has edges."""
    spelling = SPELLINGS[name]
    report = check(spelling.layer(), lambda graph: spelling.tensors(graph, 9, 8), GRAPHS, name in TRANSPOSED)
    assert_no_matrices_of_edges(report, 72)


LARGE = ("bmm", "einsum-heads", "matrix-first-turned", "turned-weights", "flat-index", "flat-embedding", "gather_mm")


@pytest.mark.parametrize("name", by_default(LARGE, "bmm", "flat-index", "gather_mm"))
def test_large_matrices(name: str) -> None:
    """Matrices with more numbers than a small product within each row may have."""
    spelling = SPELLINGS[name]
    report = check(spelling.layer(), lambda graph: spelling.tensors(graph, 64, 66), SOME, name in TRANSPOSED)
    assert_no_matrices_of_edges(report, 64 * 66)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "j"), [(1, 1), (1, 33), (33, 1), (31, 33), (2, 64), (64, 64), (64, 96), (130, 64)])
@pytest.mark.parametrize("name", SPELLINGS)
def test_every_width(name: str, k: int, j: int) -> None:
    """Strides of a single feature or row are arbitrary, so they may cost compilations."""
    spelling, strides = SPELLINGS[name], max(name in TRANSPOSED, 2 * (min(k, j) == 1))
    report = check(spelling.layer(), lambda graph: spelling.tensors(graph, k, j), GRAPHS, strides)
    if min(k, j) > spelling.heads and k * j >= 64:
        assert_no_matrices_of_edges(report, k * j)


@pytest.mark.parametrize("width", by_default((1, 31, 64), 1, 31))
def test_widths(width: int) -> None:
    spelling = SPELLINGS["bmm"]
    check(spelling.layer(), lambda graph: spelling.tensors(graph, width, 33), SOME)


# ---------------------------------------------------------------- other sources of rows, types and matrices


def test_types_of_nodes() -> None:
    def typed(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, etype: Tensor) -> Tensor:
        """Each node by the matrix of its type, then its sums over edges: the type is that of its first number."""
        ntype = etype[torch.arange(x.size(0), device=x.device) % etype.size(0)]
        z = torch.bmm(x.unsqueeze(1), w[ntype]).squeeze(1)
        return z.new_zeros(z.shape).index_add(0, dst, z[src])

    graphs = tuple(graph for graph in SOME if len(graph.etype))
    report = check(typed, lambda graph: SPELLINGS["bmm"].tensors(graph, 9, 8), graphs)
    assert_no_matrices_of_edges(report, 72)


def test_types_of_nodes_given() -> None:
    def typed(x: Tensor, w: Tensor, ntype: Tensor) -> Tensor:
        return torch.einsum("nk,nkj->nj", x, w[ntype]).relu()

    compiled = graphweave.compile(typed)
    with collect() as report:
        for rows, types in ((30, 4), (0, 4), (2, 1), (700, 5)):
            x, w = torch.randn(rows, 12, dtype=torch.float64), torch.randn(types, 12, 7, dtype=torch.float64)
            assert_matches(compiled, typed, x, w, torch.randint(types, (rows,)), label=f"{rows} rows")
    assert_no_matrices_of_edges(report, 84)


def test_matrices_of_few_bases() -> None:
    """Schlichtkrull et al., 2.2: the matrix of a type is a sum of bases that all types share."""

    def typed(x: Tensor, share: Tensor, bases: Tensor, src: Tensor, dst: Tensor, etype: Tensor) -> Tensor:
        w = (share @ bases.flatten(1)).view(share.size(0), bases.size(1), bases.size(2))
        rows = torch.bmm(x[src].unsqueeze(1), w[etype]).squeeze(1)
        return rows.new_zeros(x.size(0), rows.size(1)).index_add(0, dst, rows)

    def tensors(graph: TypedEdges) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(9)
        shapes = (graph.nodes, 9), (graph.types, 2), (2, 9, 8)
        return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)

    assert_no_wide_rows_of_edges(check(typed, tensors, SOME), 72)


def test_segments() -> None:
    """Rows are sorted by type; the sizes say how many rows each type has."""

    def typed(x: Tensor, w: Tensor, lengths: Tensor) -> Tensor:
        return ops.segment_mm(x, w, lengths).tanh()

    compiled = graphweave.compile(typed)
    with collect() as report:
        for lengths in ([3, 0, 5], [0, 0], [4], [1, 1, 1, 1], [0, 0, 900, 1]):
            x = torch.randn(sum(lengths), 9, dtype=torch.float64)
            w = torch.randn(len(lengths), 9, 8, dtype=torch.float64)
            assert_matches(compiled, typed, x, w, torch.tensor(lengths), label=str(lengths))
    assert_no_matrices_of_edges(report, 72)


class Masked(nn.Module):
    """A product for each type, on the rows that have it; written back where they were, or summed."""

    def __init__(self, write: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        )
        self.write = write

    def forward(self, x: Tensor, src: Tensor, dst: Tensor, etype: Tensor) -> Tensor:
        rows = x[src]
        out = x.new_zeros(rows.size(0), 8)
        for i in range(3):
            mask = etype == i
            if self.write:
                out[mask] = rows[mask] @ self.weight[i]
            else:
                out = out + (rows * mask.unsqueeze(1)) @ self.weight[i]
        return x.new_zeros(x.size(0), 8).index_add(0, dst, out)


@pytest.mark.parametrize("write", [False, True])
def test_masks_of_types(write: bool) -> None:
    module = Masked(write)
    compiled = graphweave.compile(module)
    for graph in GRAPHS:
        etype = graph.etype % 3
        x = torch.randn(graph.nodes, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        assert_matches(compiled, module, x, graph.src, graph.dst, etype, module=module, label=graph.name)
    assert graphweave.counters()["eager_fallbacks"] == 0


# ---------------------------------------------------------------- what indices and tensors may be


@pytest.mark.parametrize("name", by_default(("bmm", "einsum-heads", "flat-index"), "bmm", "flat-index"))
def test_indices_of_32_bits_and_from_the_end(name: str) -> None:
    spelling = SPELLINGS[name]
    f = spelling.layer()
    compiled = graphweave.compile(f)
    for graph in (USUAL, BY_NAME["many rows of few types"]):
        x, w = spelling.tensors(graph, 9, 8)
        half = torch.arange(len(graph.etype)) % 2
        from_end = graph.src - half * graph.nodes, graph.dst, graph.etype - (1 - half) * graph.types
        for ends in (tuple(i.int() for i in (graph.src, graph.dst, graph.etype)), from_end):
            assert_matches(compiled, f, x, w, *ends, label=graph.name)


@pytest.mark.parametrize("name", by_default(("bmm", "matrix-first", "einsum-blocks"), "bmm", "matrix-first"))
def test_rows_and_matrices_with_strides(name: str) -> None:
    spelling = SPELLINGS[name]
    f = spelling.layer()
    compiled = graphweave.compile(f)
    for graph in (USUAL, BY_NAME["no edges"], BY_NAME["many rows of few types"]):
        x, w = spelling.tensors(graph, 9, 8)
        x = torch.cat([x, x], 1)[:, :: 2 if x.dim() == 1 else 1][:, : x.size(1)]
        w = w.transpose(0, -1).contiguous().transpose(0, -1)
        assert not w.is_contiguous()
        assert_matches(compiled, f, x, w, graph.src, graph.dst, graph.etype, label=graph.name)


@pytest.mark.parametrize("name", ["bmm", "flat-embedding", "gather_mm"])
@pytest.mark.parametrize("size", ["usual", "many rows of few types"])
def test_types_out_of_range(name: str, size: str) -> None:
    spelling, graph = SPELLINGS[name], BY_NAME[size]
    compiled = graphweave.compile(spelling.layer())
    x, w = spelling.tensors(graph, 9, 8)
    compiled(x, w, graph.src, graph.dst, graph.etype)
    lowest = -1 if name != "bmm" else -graph.types - 1
    for wrong in (graph.types, lowest):
        etype = graph.etype.clone()
        etype[7] = wrong
        with pytest.raises(IndexRangeError):
            compiled(x, w, graph.src, graph.dst, etype)
        src = graph.src.clone()
        src[7] = graph.nodes
        with pytest.raises(IndexRangeError):
            compiled(x, w, src, graph.dst, graph.etype)


def test_types_edited_in_place() -> None:
    """The order of edges by type is that of the tensor's present values."""
    spelling, graph = SPELLINGS["bmm"], BY_NAME["many rows of few types"]
    f = spelling.layer()
    compiled = graphweave.compile(f)
    x, w = spelling.tensors(graph, 9, 8)
    etype = graph.etype.clone()
    for _ in range(3):
        given = [v.clone().requires_grad_() for v in (x, w, x, w)]
        got, want = compiled(*given[:2], graph.src, graph.dst, etype), f(*given[2:], graph.src, graph.dst, etype)
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
        got.square().sum().backward()
        want.square().sum().backward()
        for a, b in zip(given[:2], given[2:], strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-8)
        etype[::3] = 2 - etype[::3]
        etype[1] = (etype[1] + 1) % 3


@pytest.mark.parametrize("compact", by_default((None, True, False), None, False))
def test_another_share_of_pairs_compiles_nothing(compact: bool | None) -> None:
    """Few sources and types with many edges each, then as many pairs as edges: the same code, other sizes."""
    spelling = SPELLINGS["bmm"]

    def f(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, etype: Tensor) -> Tensor:
        rows = spelling.rows(x, w, src, etype).tanh()
        return x.new_zeros(x.size(0), rows.size(1)).index_add(0, dst, rows)

    compiled = graphweave.compile(f, options={"compact": compact})
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(2))
    shared = TypedEdges("shared", 40, 3, order % 5, order % 40, order % 2)
    apart = TypedEdges("apart", 1500, 3, order % 1500, order % 40, order // 1500)
    with collect() as report:
        for graph in (shared, apart, BY_NAME["no edges"], BY_NAME["one edge"], USUAL):
            x, w = spelling.tensors(graph, 16, 16)
            assert_matches(compiled, f, x, w, graph.src, graph.dst, graph.etype, label=graph.name)
    assert graphweave.counters()["compilations"] == 1
    assert any("= distinct " in graph.ir for graph in report.graphs) is (compact is not False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    spelling = SPELLINGS["bmm"]
    f = spelling.layer()
    compiled = graphweave.compile(f)
    for graph in (USUAL, BY_NAME["many rows of few types"]):
        x, w = spelling.tensors(graph, 9, 8)
        ends = graph.src, graph.dst, graph.etype
        want = f(x.to(dtype).double(), w.to(dtype).double(), *ends)
        got = compiled(x.to(dtype), w.to(dtype), *ends)
        assert got.dtype == dtype
        scale = float(want.abs().max())
        worst = float((got.double() - want).abs().max()) / scale
        assert worst < (1e-5 if dtype is torch.float32 else 0.1), worst


@pytest.mark.parametrize("policy", ["never", "always"])
def test_policies_of_recomputation(policy: str) -> None:
    spelling = SPELLINGS["scaled"]
    f = spelling.layer()
    compiled = graphweave.compile(f, options={"recompute": policy})
    for graph in SOME:
        x, w = spelling.tensors(graph, 9, 8)
        assert_matches(compiled, f, x, w, graph.src, graph.dst, graph.etype, label=graph.name)
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_regions_agree_with_the_interpreter() -> None:
    spelling = SPELLINGS["einsum-heads"]
    f = spelling.layer()
    compiled = graphweave.compile(f, options={"verify": True, "compact": True})
    for graph in GRAPHS[:4]:
        x, w = spelling.tensors(graph, 9, 8)
        assert_matches(compiled, f, x, w, graph.src, graph.dst, graph.etype, label=graph.name)
