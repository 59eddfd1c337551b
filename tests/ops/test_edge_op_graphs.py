"""Every form of graph that operators on edges take, and what is wrong with one: the error names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex

import graphweave
from graphweave import Schedule, ops
from graphweave.core.errors import DataError, IndexRangeError, ScheduleError, SettingsError
from tests.programs.graphs import EdgeList, zoo
from tests.support import assert_matches

ZOO = {edges.name: edges for edges in zoo()}
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")


def as_coo(edges: EdgeList, values: Tensor) -> Tensor:
    """A with A[v, u] = value of an edge u -> v; parallel edges are entries of their own."""
    return torch.sparse_coo_tensor(torch.stack([edges.dst, edges.src]), values, (edges.num_dst, edges.num_src))


FORMS: dict[str, Callable[[EdgeList], Any]] = {
    "graph": lambda e: graphweave.heterograph({("a", "to", "b"): (e.src, e.dst)}, {"a": e.num_src, "b": e.num_dst}),
    "edge_index": lambda e: torch.stack([e.src, e.dst]),
    "pair": lambda e: (e.src.int(), e.dst.int()),
    "pyg": lambda e: EdgeIndex(torch.stack([e.src, e.dst]), sparse_size=(e.num_src, e.num_dst)),
    "pyg_unsized": lambda e: EdgeIndex(torch.stack([e.src, e.dst])),
}
MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "coo_of_parallel_edges": lambda a: a,
    "coo": lambda a: a.coalesce(),
    "csr": lambda a: a.to_sparse_csr(),
    "csc": lambda a: a.to_sparse_csc(),
}


@pytest.mark.parametrize("form", FORMS)
def test_graphs(form: str) -> None:
    for edges in (ZOO["bipartite"], ZOO["no_edges_no_src"], ZOO["hub_dst"]):
        u, v = torch.randn(edges.num_src, 3), torch.randn(edges.num_dst, 3)
        got = ops.spmm(FORMS[form](edges), "u_add_v", src=u, dst=v)
        want = torch.zeros_like(v).index_add(0, edges.dst, u[edges.src] + v[edges.dst])
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("layout", MATRICES)
def test_rows_of_a_matrix_are_destinations(layout: str) -> None:
    """A @ x, with gradients in the entries of A, which are what the message gets as `edge`."""
    for edges in (ZOO["bipartite_wide"], ZOO["duplicates"], ZOO["no_edges"]):
        values = torch.randn(edges.src.shape[0], dtype=torch.float64)
        x = torch.randn(edges.num_src, 3, dtype=torch.float64)
        for function in ("u_mul_e", lambda src, dst, edge: src * edge[:, None]):
            assert_matches(
                lambda w, x, e=edges, f=function: ops.spmm(MATRICES[layout](as_coo(e, w)), f, src=x),
                lambda w, x, e=edges: as_coo(e, w).to_dense() @ x,
                values, x, label=edges.name,
            )  # fmt: skip


def test_edges_given_beside_a_matrix_are_what_counts() -> None:
    edges = ZOO["hub_src"]
    x, w = torch.randn(edges.num_src, 3), torch.randn(edges.src.shape[0])
    got = ops.spmm(as_coo(edges, torch.ones_like(w)), "u_mul_e", src=x, edge=w)
    torch.testing.assert_close(got, as_coo(edges, w).to_dense() @ x)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_matrix_inside_a_compiled_function(layout: str, fresh_compiler: None) -> None:
    edges = ZOO["hub_dst"]
    a = MATRICES[layout](as_coo(edges, torch.randn(edges.src.shape[0])))
    x = torch.randn(edges.num_src, 3)

    def model(a: Tensor, x: Tensor) -> Tensor:
        return ops.spmm(a, "u_mul_e", src=torch.tanh(x)) + 1

    torch.testing.assert_close(graphweave.compile(model)(a, x), a.to_dense() @ torch.tanh(x) + 1)
    assert graphweave.counters()["graph_breaks"] == 0


def test_formats_are_built_once_a_graph() -> None:
    edges = ZOO["unsorted"]
    a = as_coo(edges, torch.ones(edges.src.shape[0])).to_sparse_csr()
    x = torch.randn(edges.num_src, 3)
    for call in (
        lambda: ops.spmm(a, "u_mul_e", src=x),
        lambda: ops.spmm(torch.stack([edges.src, edges.dst]), "copy_u", (torch.maximum, 0.0), src=x),
    ):
        call()
    graph = torch.stack([edges.src, edges.dst])
    for call in (
        lambda: ops.spmm(a, "u_mul_e", src=x),
        lambda: ops.spmm(graph, "copy_u", (torch.maximum, 0.0), src=x),
        lambda: ops.attend(graph, "u_dot_v", "copy_u", src=x, dst=x),
    ):
        call()
        before = graphweave.counters()
        call()
        after = graphweave.counters()
        assert after["format_builds"] == before["format_builds"]
        assert after["hoist_builds"] == before["hoist_builds"]


def test_number_of_destinations() -> None:
    """The rows of `dst`; else `num_dst`; else the rows of `src`."""
    graph, x = torch.tensor([[0, 1], [2, 0]]), torch.ones(4, 1)
    assert ops.spmm(graph, "copy_u", src=x).shape[0] == 4
    assert ops.spmm(graph, "copy_u", src=x, num_dst=3).shape[0] == 3
    assert ops.spmm(graph, "u_add_v", src=x, dst=torch.ones(6, 1)).shape[0] == 6
    assert ops.spmm(graph, "copy_e", edge=torch.ones(2), num_dst=5).shape[0] == 5
    with pytest.raises(DataError, match=r"num_dst must be given"):
        ops.spmm(graph, "copy_e", edge=torch.ones(2))
    with pytest.raises(DataError, match=r"num_dst is 3, but there are 6 destinations"):
        ops.spmm(graph, "u_add_v", src=x, dst=torch.ones(6, 1), num_dst=3)
    with pytest.raises(DataError, match=r"num_dst must be a number of rows \(got -1\)"):
        ops.spmm(graph, "copy_u", src=x, num_dst=-1)


# ---------------------------------------------------------------- bad input

GRAPH = torch.tensor([[0, 1, 2, 2, 3, 1], [1, 1, 0, 3, 3, 0]])
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
W = torch.randn(6, generator=torch.Generator().manual_seed(3))

BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "rows of src": (GRAPH, {"src": {"h": X, "k": X[:3]}}, r"src\['k'\] has 3 rows .* 4 sources"),
    "rows of dst": (graphweave.graph(GRAPH), {"src": X, "dst": X[:3]}, "dst has 3 rows .* 4 destinations"),
    "rows of edge": (GRAPH, {"src": X, "edge": W[:5]}, "edge has 5 rows .* 6 edges"),
    "a scalar": (GRAPH, {"src": torch.tensor(1.0)}, r"src must be a tensor \[rows, ...\] \(got a scalar"),
    "no tensor": (GRAPH, {"src": [1.0, 2.0]}, r"src must be a tensor or a dict of tensors \(got list\)"),
    "no tensors": (GRAPH, {"src": {"h": 3}}, r"src\['h'\] must be a tensor .*got int"),
    "dtype of graph": (GRAPH.float(), {"src": X}, r"graph\[0\] must be int32 or int64 \(got torch.float32\)"),
    "dtype of dst": ((GRAPH[0], GRAPH[1].bool()), {"src": X}, r"graph\[1\] must be int32 or int64 \(got torch.bool\)"),
    "shape of graph": (GRAPH.t(), {"src": X}, r"graph must be an edge_index of shape \[2, num_edges\] \(got \[6, 2\]"),
    "two dims": ((GRAPH, GRAPH), {"src": X}, r"graph\[0\] must have shape \[num_edges\]"),
    "lengths": ((GRAPH[0], GRAPH[1, 1:]), {"src": X}, r"graph\[0\] and graph\[1\] must have one length"),
    "kind of graph": ("graph", {"src": X}, "graph must be a graphweave.Graph.*got str"),
    "blocks": (lambda: torch.eye(4).to_sparse_bsr((2, 2)), {"src": X}, "graph must be"),
    "relations": (
        graphweave.heterograph({("a", "x", "a"): GRAPH, ("a", "y", "a"): GRAPH}), {"src": X},
        "graph must have one relation",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("operator", ["spmm", "sddmm", "attend"])
def test_arguments_that_do_not_fit(operator: str, case: str) -> None:
    graph, given, said = BAD[case]
    functions = {"spmm": ("copy_u", "sum"), "sddmm": ("copy_u",), "attend": ("copy_u", "copy_u")}[operator]
    with pytest.raises(DataError, match=said):
        getattr(ops, operator)(graph() if callable(graph) else graph, *functions, **given)


@pytest.mark.parametrize("reduce", ["sum", "max", (torch.maximum, 0.0)], ids=["sum", "max", "pair"])
def test_an_index_out_of_range(reduce: Any) -> None:
    for graph, said in (
        (torch.tensor([[0, 4], [1, 1]]), r"graph\[0\]: index 4 at position 1 is out of range for 4 sources"),
        (torch.tensor([[0, 1], [1, -1]]), r"graph\[1\]: index -1 at position 1 is out of range for 4 destinations"),
    ):
        with pytest.raises(IndexRangeError, match=said):
            ops.spmm(graph, "copy_u", reduce, src=X)
        with pytest.raises(IndexRangeError, match=said):
            ops.sddmm(graph, lambda src, dst, edge: src * dst, src=X, dst=X)


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x - x.mean(0), "norm": lambda x: x / x.norm(), "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(0).values, "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0),
    "softmax": lambda x: x.softmax(0), "product": lambda x: x @ x.t() @ x, "max": lambda x: x * (x == x.amax(0)),
    "batch_norm": nn.BatchNorm1d(3),
}  # fmt: skip


@pytest.mark.parametrize("how", MIXING)
def test_a_function_that_mixes_rows(how: str) -> None:
    mix = MIXING[how]

    def function(src: Tensor, dst: Tensor, edge: Any) -> Tensor:
        return mix(src)

    with pytest.raises(DataError, match=r"^message mixes rows"):
        ops.spmm(GRAPH, function, src=X)
    with pytest.raises(DataError, match=r"^edge_function mixes rows"):
        ops.sddmm(GRAPH, function, src=torch.ones(4, 3))
    with pytest.raises(DataError, match=r"^score mixes rows"):
        ops.attend(GRAPH, function, "copy_u", src=X)
    with pytest.raises(DataError, match=r"^value mixes rows"):
        ops.attend(GRAPH, "copy_u", function, src=X)


def test_a_combination_that_mixes_rows() -> None:
    with pytest.raises(DataError, match=r"^reduce mixes rows"):
        ops.spmm(GRAPH, "copy_u", (lambda x, y: x + y - y.mean(0), 0.0), src=X)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3).eval(), nn.Dropout(0.5))

    def forward(self, src: Tensor, dst: Tensor, edge: Any) -> Tensor:
        out: Tensor = self.layers(src)
        return out.softmax(-1).cumsum(1).flip(1)


def test_work_along_features_mixes_no_rows() -> None:
    """Norms, sorts and sums within a row, batch norm that is not training, random masks, a table of weights."""
    state = torch.get_rng_state()
    noisy = Noisy()
    torch.set_rng_state(state)
    table = torch.randn(3, 3)
    kinds = torch.tensor([0, 2, 1, 1, 0, 2])
    assert ops.spmm(GRAPH, noisy, src=X).shape == (4, 3)
    got = ops.spmm(GRAPH, lambda src, dst, edge: src * table[edge], src=X, edge=kinds)
    torch.testing.assert_close(got, torch.zeros(4, 3).index_add(0, GRAPH[1], X[GRAPH[0]] * table[kinds]))


def test_random_state_is_left_alone_by_the_check() -> None:
    torch.manual_seed(4)
    before = torch.get_rng_state()
    ops.sddmm(GRAPH, lambda src, dst, edge: src.square() + 0.125, src=X)
    assert torch.equal(torch.get_rng_state(), before)


WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "unknown message": (("u_mod_e",), "message must be a function of .* or one of copy_u, .*got 'u_mod_e'"),
    "no message": ((3,), r"message must be a function of \(src, dst, edge\).*got int"),
    "missing operand": (("u_mul_v",), r"message 'u_mul_v' reads one field of dst \(got none\)"),
    "unknown reducer": (("copy_u", "median"), "reduce must be one of sum, mean, max, min, prod, or a pair"),
    "function alone": (("copy_u", torch.maximum), "reduce must be one of .* or a pair"),
    "identity": (("copy_u", (torch.maximum, "0")), r"reduce must be a pair .*got str"),
    "no tensor": ((lambda src, dst, edge: 3,), r"message must return a tensor \(got int\)"),
    "a scalar": ((lambda src, dst, edge: src.sum(),), "message must return one row for each edge"),
    "rows of sources": ((lambda src, dst, edge: X * 2,), "message must return one row for each edge"),
    "tensor of edges in a closure": (
        (lambda src, dst, edge: src * W[:, None],), "message could not be computed for 5 of the edges alone",
    ),
    "bools": (("copy_u", "max"), "reduce 'max' takes real numbers .*torch.bool"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_messages_and_reducers_that_do_not_fit(case: str) -> None:
    functions, said = WRONG[case]
    with pytest.raises(DataError, match=said):
        ops.spmm(GRAPH, *functions, src=X > 0 if case == "bools" else X)


def test_several_tensors_for_a_built_in() -> None:
    with pytest.raises(DataError, match=r"message 'copy_u' reads one field of src \(got 2 in a dict\)"):
        ops.spmm(GRAPH, "copy_u", src={"a": X, "b": X})
    assert torch.equal(ops.spmm(GRAPH, "copy_u", src={"a": X}), ops.spmm(GRAPH, "copy_u", src=X))


def test_scores_and_values_that_do_not_fit() -> None:
    x = torch.randn(4, 2, 3)
    with pytest.raises(DataError, match=r"score returned rows of shape \[3\] for values of \[2, 3\]"):
        ops.attend(GRAPH, lambda src, dst, edge: src[:, 0], "copy_u", src=x)
    with pytest.raises(DataError, match=r"score returned rows of shape \[2, 3\] for values of \[2\]"):
        ops.attend(GRAPH, "copy_u", lambda src, dst, edge: src[..., 0], src=x)
    with pytest.raises(DataError, match="score must return floating-point numbers"):
        ops.attend(GRAPH, lambda src, dst, edge: src[..., 0].long(), "copy_u", src=x)


def test_what_is_no_schedule_is_refused() -> None:
    for call in (
        lambda: ops.spmm(GRAPH, "copy_u", src=X, schedule="rows"),
        lambda: ops.sddmm(GRAPH, "copy_u", src=X, schedule=None),
        lambda: ops.attend(GRAPH, "copy_u", "copy_u", src=X, schedule=3),
    ):
        with pytest.raises(SettingsError, match="schedule must be 'auto'"):
            call()


SCHEDULES = {
    "walk": Schedule(walk="edges", chunks=3),
    "tiles": Schedule(feature_tile=4),
    "partitions": Schedule(source_partitions=2, feature_tile=2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_changes_no_result(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    index = torch.randint(9, (2, 60), generator=generator)
    x = torch.randn(9, 8, generator=generator, dtype=torch.float64, requires_grad=True)

    def call(schedule: Any) -> Tensor:
        return ops.spmm(index, lambda src, dst, edge: torch.tanh(src - dst), src=x, dst=x, schedule=schedule)

    want, got = call("auto"), call(SCHEDULES[name])
    torch.testing.assert_close(got, want)
    noise = torch.randn(want.shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(got, x, noise), torch.autograd.grad(want, x, noise))


def test_a_schedule_of_an_operator_reaches_its_kernels() -> None:
    def lines(schedule: Any) -> set[str]:
        return set(ops.spmm.text(GRAPH, "copy_u", src=X, schedule=schedule).splitlines())

    assert any("unroll" in line for line in lines(Schedule(unroll=2)) - lines("auto"))


def test_schedules_that_no_kernel_can_take_are_refused() -> None:
    with pytest.raises(ScheduleError, match="gpu_rows"):
        ops.spmm(GRAPH, "copy_u", src=X, schedule=Schedule(gpu_rows=4))


@pytest.mark.parametrize("door", [graphweave.compile, lambda f: torch.compile(f, backend="aot_eager")])
def test_an_operator_with_a_schedule_is_compiled_by_itself(door: Callable[..., Any], fresh_compiler: None) -> None:
    def within(x: Tensor) -> Tensor:
        y = ops.spmm(GRAPH, "copy_u", src=2 * x, schedule=SCHEDULES["walk"])
        y = y + ops.attend(GRAPH, "u_dot_v", "copy_u", src=x, dst=x, schedule=SCHEDULES["walk"])
        return y + ops.sddmm(GRAPH, "copy_u", src=x, schedule=SCHEDULES["walk"]).sum(0)

    torch.testing.assert_close(door(within)(X), within(X))
