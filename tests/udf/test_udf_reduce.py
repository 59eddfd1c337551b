"""Reduce functions called once on ragged mailboxes equal the same functions called in buckets, gradients included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import graphweave
from graphweave.core.settings import override
from tests.programs.graphs import EdgeList, zoo
from tests.udf.udf_patterns import HEADS, MAILBOX, NODES, Pattern, closures, on
from tests.udf.udf_support import assert_same, at_once, case_of, in_buckets

# one message has no unbiased variance: PyTorch says so where it computes one
pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")

ZOO = zoo()
TERMS = 64
"""Upper limit on the edges of a graph of the zoo."""


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    with override(eager_kernels=False):
        graphweave.reset_counters()
        yield


def check(
    pattern: Pattern, feature: tuple[int, ...], graphs: list[EdgeList], extra: tuple[torch.Tensor, ...] = ()
) -> None:
    for edges in graphs:
        for index in (torch.int64, torch.int32) if edges.name == "hub_dst" else (torch.int64,):
            case = case_of(edges, feature, index=index)
            got, want = at_once(case, pattern), in_buckets(case, pattern)
            assert_same(got, want, case.leaves + extra, TERMS)
    assert graphweave.counters()["bucketed_reductions"] == 0


@pytest.mark.parametrize("name", MAILBOX)
def test_mailbox(name: str) -> None:
    check(on("m", MAILBOX[name]), (3,), ZOO)


@pytest.mark.parametrize("name", NODES)
def test_mailbox_beside_nodes(name: str) -> None:
    check(NODES[name], (3,), ZOO)


@pytest.mark.parametrize("name", HEADS)
def test_mailbox_of_heads(name: str) -> None:
    check(HEADS[name], (2, 3), ZOO)


@pytest.mark.parametrize("name", closures(torch.zeros(0), torch.zeros(0)))
def test_closures_over_parameters(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_()
    bias = torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_()
    check(closures(weight, bias)[name], (3,), ZOO, (weight, bias))


@pytest.mark.parametrize("width", [1, 31, 33])
@pytest.mark.parametrize(
    "name", ["m.sum(1, False)", "softmax", "m.amax(1, True)", "view", "split", "matmul transposed"]
)
def test_widths(name: str, width: int) -> None:
    graphs = [e for e in ZOO if e.name in ("hub_dst", "no_edges", "bipartite_wide")]
    check(on("m", MAILBOX[name]), (width,), graphs)


def test_nodes_without_messages_have_zeros() -> None:
    edges = next(e for e in ZOO if e.name == "isolated")
    case = case_of(edges, (3,))
    lonely = torch.bincount(edges.dst, minlength=edges.num_dst) == 0
    assert lonely.any()
    for function in (
        NODES["update"],
        NODES["constant"],
        on("m", lambda m: m.logsumexp(1)),
        on("m", lambda m: m.all(1)),
    ):
        assert not at_once(case, function)["o"][lonely].any()


def test_messages_of_equal_maximum_share_the_gradient() -> None:
    src, dst = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0])
    case = case_of(EdgeList("tie", src, dst, 3, 1), (2,))
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    out = at_once(case, on("m", lambda m: m.amax(1)), lambda edges: {"m": x})
    (grad,) = torch.autograd.grad(out["o"].sum(), x)
    assert torch.equal(grad, torch.full_like(x, 1 / 3))


def test_in_place_operators_change_the_mailbox() -> None:
    def reduce(nodes: object) -> dict[str, torch.Tensor]:
        box = nodes.mailbox["m"]  # type: ignore[attr-defined]
        same = box
        box += 1
        box *= 2
        return {"o": same.sum(1)}

    check(reduce, (3,), ZOO)


def test_size_beside_what_is_not_of_nodes_is_exact() -> None:
    """A shared tensor divided by the number of messages is another tensor for each number: in buckets, never wrong."""
    edges = next(e for e in ZOO if e.name == "power_law")
    scale = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
    case = case_of(edges, (3,))

    def reduce(nodes: object) -> dict[str, torch.Tensor]:
        box = nodes.mailbox["m"]  # type: ignore[attr-defined]
        return {"o": box.sum(1) * (scale / box.shape[1])}

    with pytest.warns(UserWarning, match="together with what has no value for each node"):
        got = at_once(case, reduce)
    assert_same(got, in_buckets(case, reduce), (*case.leaves, scale), TERMS)
