"""Reduce functions with kernels: eager calls, and inside compiled modules. One graph, one compilation for all sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.settings import override
from graphweave.udf.run import apply_edges, apply_nodes, update_all
from tests.programs.graphs import zoo
from tests.udf.udf_patterns import HEADS, MAILBOX, NODES, Pattern, closures, on
from tests.udf.udf_support import Case, assert_same, case_of, frames_of, in_buckets, sends

# one message has no unbiased variance: PyTorch says so where it computes one
pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")

ZOO = {e.name: e for e in zoo()}
SIZES = ("hub_dst", "power_law")


def clean() -> None:
    counts = graphweave.counters()
    assert counts["graph_breaks"] == counts["eager_fallbacks"] == counts["bucketed_reductions"] == 0


def check_eager(pattern: Pattern, feature: tuple[int, ...], extra: tuple[Tensor, ...] = ()) -> None:
    """Results equal those of buckets; the second graph, of another size, compiles nothing."""
    compilations = []
    for name in SIZES:
        case = case_of(ZOO[name], feature)
        got = update_all(case.ends, case.frames, sends, pattern)
        assert_same(got, in_buckets(case, pattern), case.leaves + extra, 64)
        compilations.append(graphweave.counters()["compilations"])
    assert compilations[0] == compilations[1] > 0
    assert graphweave.counters()["kernel_launches"] > 0
    clean()


def slow(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


MORE = slow("m.mean(-2, False)", "m.amax(1, True)", "m.std(1, True)", "root of size", "bmm", "cat", "reshape", "norm 3")


@pytest.mark.parametrize("name", ["m.argmax(1, False)", "divided by size", "view", "split", *MORE])
def test_eager_calls(name: str, fresh_compiler: None) -> None:
    check_eager(on("m", MAILBOX[name]), (3,))


@pytest.mark.parametrize(
    "name", ["attention", "expand", *slow("attention by bmm", "pairwise margin", "where", "repeat")]
)
def test_eager_calls_beside_nodes(name: str, fresh_compiler: None) -> None:
    check_eager(NODES[name], (3,))


def test_eager_call_with_heads(fresh_compiler: None) -> None:
    check_eager(HEADS["softmax of heads"], (2, 3))


@pytest.mark.parametrize("name", ["matmul", *slow("attention")])
def test_eager_calls_with_parameters(name: str, fresh_compiler: None) -> None:
    weight, bias = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 3), (3,)))
    check_eager(closures(weight, bias)[name], (3,), (weight, bias))


def test_operators_with_a_tensor_on_the_right(fresh_compiler: None) -> None:
    """In a trace, `mailbox / tensor` and `mailbox @ tensor` arrive as reflected calls of the tensor."""
    square = torch.tensor([[1.0, 2, 0], [0, -1, 3], [0, 0, 2]], dtype=torch.float64)
    row = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    check_eager(on("m", lambda m: (m @ square).sum(1) - (square @ m.transpose(1, 2)).sum(2)), (3,))
    check_eager(on("m", lambda m: (m / row - m + (m - row) + m.abs() ** row).sum(1)), (3,))
    check_eager(on("m", lambda m: (row / (m.abs() + 1) + row**m + (row - m)).sum(1)), (3,))


def test_indices_of_32_bits(fresh_compiler: None) -> None:
    case = case_of(ZOO["hub_dst"], (3,), index=torch.int32)
    got = update_all(case.ends, case.frames, sends, NODES["attention"])
    assert_same(got, in_buckets(case, NODES["attention"]), case.leaves, 64)
    clean()


@pytest.mark.slow
def test_the_zoo_compiles_a_few_times(fresh_compiler: None) -> None:
    for edges in ZOO.values():
        case = case_of(edges, (3,))
        got = update_all(case.ends, case.frames, sends, NODES["attention"])
        assert_same(got, in_buckets(case, NODES["attention"]), case.leaves, 64)
    assert graphweave.counters()["compilations"] <= 6
    clean()


def test_numbers_of_closures_are_compiled_in(fresh_compiler: None) -> None:
    """Dims and heads make shapes; a number that changes all the time becomes a symbol before PyTorch gives up."""
    case = case_of(ZOO["hub_dst"], (6,))
    for number in range(10):

        def reduce(nodes: Any, heads: int = 2) -> dict[str, Tensor]:
            box = nodes.mailbox["m"]
            return {"o": box.view(*box.shape[:2], heads, -1).softmax(1).sum(-1).amax(1) * number}  # noqa: B023

        with torch.no_grad():
            got = update_all(case.ends, case.frames, sends, reduce)
            assert_same(got, in_buckets(case, reduce), (), 64)
    assert graphweave.counters()["compilations"] < 10
    clean()


class Attention(nn.Module):
    """GAT's layer of `heads` heads."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.lin = nn.Linear(6, 6, dtype=torch.float64)
        self.score = nn.Parameter(torch.randn(heads, 3, dtype=torch.float64))

    def message(self, edges: Any) -> dict[str, Tensor]:
        logits = ((edges.src["z"] + edges.dst["z"]) * self.score).sum(-1)
        return {"m": edges.src["z"], "s": torch.nn.functional.leaky_relu(logits, 0.2) + edges.data["w"].unsqueeze(-1)}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        box = nodes.mailbox["m"]
        weights = nodes.mailbox["s"].softmax(1).view(*box.shape[:2], self.heads, 1)
        return {"o": (weights * box).sum(1)}

    def frames(self, case: Case, x: Tensor) -> Any:
        z = self.lin(x).view(-1, self.heads, 3)
        return frames_of({"z": z}, {"z": z}, {"w": case.frames.edge["w"]})

    def forward(self, case: Case, x: Tensor) -> Tensor:
        return update_all(case.ends, self.frames(case, x), self.message, self.reduce)["o"]


@pytest.mark.parametrize("how", ["compiled", "eager"])
def test_attention_layer(how: str, fresh_compiler: None) -> None:
    torch.manual_seed(1)
    model = Attention()
    run = graphweave.compile(model) if how == "compiled" else model
    compilations = []
    for name in SIZES:
        case = case_of(ZOO[name], (6,))
        x = case.frames.src["x"]
        reference = in_buckets(Case(case.ends, model.frames(case, x), ()), model.reduce, model.message)
        assert_same({"o": run(case, x)}, reference, (*model.parameters(), x, case.frames.edge["w"]), 64)
        compilations.append(graphweave.counters()["compilations"])
    assert compilations[0] == compilations[1] > 0
    assert graphweave.counters()["kernel_launches"] > 0
    clean()


@pytest.mark.parametrize("name", ["attention by bmm", *slow("pairwise margin", "update")])
def test_inside_a_compiled_module(name: str, fresh_compiler: None) -> None:
    class Layer(nn.Module):
        def forward(self, case: Case) -> dict[str, Tensor]:
            return update_all(case.ends, case.frames, sends, NODES[name])

    run = graphweave.compile(Layer())
    compilations = []
    for graph in SIZES:
        case = case_of(ZOO[graph], (3,))
        assert_same(run(case), in_buckets(case, NODES[name]), case.leaves, 64)
        compilations.append(graphweave.counters()["compilations"])
    assert compilations[0] == compilations[1]
    clean()


def test_update_and_apply(fresh_compiler: None) -> None:
    case = case_of(ZOO["isolated"], (3,))

    def apply(nodes: Any) -> dict[str, Tensor]:
        return {"h": torch.relu(nodes.data["o"] + nodes.data["q"])}

    def on_edges(edges: Any) -> dict[str, Tensor]:
        return {"d": (edges.src["x"] * edges.dst["q"]).sum(-1), "n": edges.edges()[2] * 2}

    def everything() -> dict[str, Tensor]:
        out = update_all(case.ends, case.frames, sends, NODES["update"], apply)
        edges = apply_edges(case.ends, case.frames, on_edges)
        nodes = apply_nodes(
            case.ends.dst_rows, case.frames, case.frames.dst, lambda nodes: {"z": nodes.data["z"].exp()}
        )
        return {**out, **edges, **nodes}

    got = everything()
    with override(eager_kernels=False):
        want = everything()
    assert_same(got, want, case.leaves, 64)
    clean()
