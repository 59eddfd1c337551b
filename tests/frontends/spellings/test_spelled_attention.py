"""Attention that is spelled out by products and a softmax becomes one call that stores no tensor of pairs: values and
every gradient against eager mode in float64, NaN included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import graphweave
from graphweave.frontends.calls.dynamo_calls import call_name
from graphweave.frontends.dynamo import backend
from graphweave.frontends.spellings import spelled_attention
from graphweave.frontends.spellings.spelled_attention import join_attention
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

HEADS, HEAD = 2, 3
WIDTH = HEADS * HEAD
KEYS, FEW_KEYS = 19, 16
"""Keys of a graph, and so many or fewer with which the compiled graph stays as it is."""


class Operands:
    """What an attention reads: q [graphs, heads, queries, 3], k and v, and masks and numbers of pairs."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> None:
        self.q, self.k, self.v, self.bias, self.mask = q, k, v, bias, mask

    @property
    def of_keys(self) -> Tensor:
        """bool [graphs, 1, 1, keys]."""
        return self.mask[:, :1, :1]


def plain(o: Operands) -> Tensor:
    return torch.softmax(o.q @ o.k.transpose(-1, -2), dim=-1) @ o.v


def scaled(o: Operands) -> Tensor:
    return F.softmax(torch.matmul(o.q, o.k.transpose(2, 3)) / math.sqrt(HEAD), -1).matmul(o.v)


def scaled_before(o: Operands) -> Tensor:
    return nn.Softmax(dim=-1)((o.q * HEAD**-0.5) @ o.k.mT) @ o.v


def biased(o: Operands) -> Tensor:
    return ((o.q @ o.k.mT + o.bias) * 0.5).softmax(-1) @ o.v


def biased_otherwise(o: Operands) -> Tensor:
    scores = o.bias[:1, :, :1] + 0.7 * (o.q @ o.k.mT) - o.bias
    return scores.softmax(-1) @ o.v


def masked(o: Operands) -> Tensor:
    scores = (o.q @ o.k.mT + o.bias).masked_fill(o.mask, -torch.inf)
    return scores.softmax(-1) @ o.v


def filled(o: Operands) -> Tensor:
    scores = (o.q @ o.k.mT).masked_fill(o.mask, -1e9) / 2
    return scores.softmax(-1) @ o.v


def shown(o: Operands) -> Tensor:
    scores = torch.where(o.of_keys, -1e9, torch.where(~o.mask, o.q @ o.k.mT, -1e9))
    return scores.softmax(-1) @ o.v


def added(o: Operands) -> Tensor:
    shift = torch.zeros_like(o.bias).masked_fill(o.mask, -torch.inf)
    return (o.q @ o.k.mT + shift).softmax(-1) @ o.v


def in_place(o: Operands) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", o.q, o.k)
    scores /= 2
    scores += o.bias
    scores.masked_fill_(o.of_keys, -torch.inf)
    return scores.softmax(-1) @ o.v


def with_casts(o: Operands) -> Tensor:
    scores = (o.q @ o.k.mT).double().contiguous()
    return scores.softmax(-1, dtype=torch.float64).type_as(o.q) @ o.v


def heads_last(o: Operands) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (o.q, o.k, o.v))
    scores = torch.einsum("bnhd,bmhd->bnmh", q, k) + o.bias.permute(0, 2, 3, 1)
    return torch.einsum("bnmh,bmhe->bnhe", scores.softmax(2), v).transpose(1, 2)


def keys_first(o: Operands) -> Tensor:
    """Scores [graphs, keys, heads, queries], with queries and values in other places of the products, too."""
    scores = torch.einsum("bhjd, bhid -> bjhi", o.k, o.q) + o.bias[:, :, :, 0].permute(0, 1, 2)[:, None]
    return torch.einsum("bhje,bjhi->ehib", o.v, scores.softmax(1)).permute(3, 1, 2, 0)


def one_letter_twice(o: Operands) -> Tensor:
    """The letter of the features is another dim's in the second product."""
    return torch.einsum("...ij,...jd->...id", torch.einsum("...id,...jd->...ij", o.q, o.k).softmax(-1), o.v)


def by_bmm(o: Operands) -> Tensor:
    q, k, v, bias = (x.flatten(0, 1) for x in (o.q, o.k, o.v, o.bias))
    weights = F.softmax(torch.baddbmm(bias, q, k.transpose(1, 2)), dim=-1)
    return torch.bmm(weights, v).unflatten(0, (-1, HEADS))


def of_one_graph(o: Operands) -> Tensor:
    """Attention among rows without a batch, of queries that others have written to before."""
    q = o.q[0, 0] * 1
    q += 1
    scores = (q @ o.k[0, 0].T).masked_fill(o.mask[0, 0], -torch.inf)
    return scores.softmax(-1) @ o.v[0, 0] + 0 * o.bias.sum()


def averaged(o: Operands) -> Tensor:
    """Weights whose average nobody reads."""
    weights = (o.q @ o.k.mT).softmax(-1)
    weights.mean(1).sum(-1)
    return weights @ o.v


JOINED: dict[str, Callable[[Operands], Tensor]] = {
    f.__name__.replace("_", " "): f
    for f in (
        plain, scaled, scaled_before, biased, biased_otherwise, masked, filled, shown, added, in_place, with_casts,
        heads_last, keys_first, one_letter_twice, by_bmm, of_one_graph, averaged,
    )
}  # fmt: skip


def read_weights(o: Operands) -> Tensor:
    weights = (o.q @ o.k.mT).softmax(-1)
    return weights @ o.v + weights.mean()


def read_scores(o: Operands) -> Tensor:
    scores = o.q @ o.k.mT
    return scores.softmax(-1) @ o.v + scores.mean()


def written_between(o: Operands) -> Tensor:
    bias = o.bias * 1
    scores = o.q @ o.k.mT + bias
    bias.mul_(0)
    return scores.softmax(-1) @ o.v + bias.sum()


def over_queries(o: Operands) -> Tensor:
    return (o.q @ o.k.mT).softmax(-2) @ o.v


def clamped(o: Operands) -> Tensor:
    return (o.q @ o.k.mT).clamp(-1, 1).softmax(-1) @ o.v


def shifted_behind_the_mask(o: Operands) -> Tensor:
    return ((o.q @ o.k.mT).masked_fill(o.mask, -1.0) + o.bias).softmax(-1) @ o.v


def of_few_keys(o: Operands) -> Tensor:
    k, v = o.k[:, :, :7], o.v[:, :, :7]
    return (o.q @ k.mT).softmax(-1) @ v


def of_float32(o: Operands) -> Tensor:
    return (o.q @ o.k.mT).softmax(-1, dtype=torch.float32).double() @ o.v


def repeated(o: Operands) -> Tensor:
    """Queries that all graphs share."""
    return (o.q[:1] @ o.k.mT).softmax(-1) @ o.v


KEPT: dict[str, Callable[[Operands], Tensor]] = {
    f.__name__.replace("_", " "): f
    for f in (
        read_weights, read_scores, written_between, over_queries, clamped, shifted_behind_the_mask, of_few_keys,
        of_float32, repeated,
    )
}  # fmt: skip


def operands(graphs: int, queries: int, keys: int, *, empty: bool) -> list[Tensor]:
    """The tensors of `Operands`; with `empty`, some queries are to read nothing."""
    random = torch.Generator().manual_seed(graphs + queries)
    shapes = ((queries, HEAD), (keys, HEAD), (keys, HEAD), (queries, keys))
    tensors = [torch.randn(graphs, HEADS, *s, dtype=torch.float64, generator=random) for s in shapes]
    mask = torch.rand(graphs, HEADS, queries, keys, generator=random) < 0.4
    mask[..., :1] = False
    if empty:
        mask[:1, :, :1] = True
    for x in tensors[:3]:
        torch._dynamo.mark_static(x, 3)  # the width, as in a model, where matrices decide it
    return [*(x.requires_grad_() for x in tensors), mask]


def results(function: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    out = function(*given)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    grads = torch.autograd.grad(out, given[:4], weight, allow_unused=True)
    return [out, *(torch.zeros(()) if g is None else g for g in grads)]


def check(function: Callable[[Operands], Tensor], door: str) -> None:
    def of_tensors(*given: Tensor) -> Tensor:
        return function(Operands(*given))

    options = {"backend": "graphweave", "dynamic": True, "fullgraph": True}
    compiled: Any = graphweave.compile(of_tensors) if door == "compile" else torch.compile(of_tensors, **options)
    for sizes, empty in (((3, KEYS, KEYS), False), ((3, KEYS, KEYS), True), ((2, KEYS, 40), False), ((1, 1, 1), False)):
        given = operands(*sizes, empty=empty)
        torch.testing.assert_close(results(compiled, given), results(of_tensors, given), equal_nan=True)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each graph that was compiled, whether attention was found in it."""
    found: list[bool] = []

    def join(module: fx.GraphModule) -> bool:
        found.append(join_attention(module))
        module.graph.lint()
        assert not found[-1] or "softmax" not in map(call_name, module.graph.nodes)
        return found[-1]

    monkeypatch.setattr(backend, "join_attention", join)
    monkeypatch.setattr(spelled_attention, "FEW_KEYS", FEW_KEYS)
    return found


@pytest.mark.parametrize("door", by_default(["compile", "backend"], "compile"))
@pytest.mark.parametrize("name", by_default(JOINED, "in place"))
def test_attention_is_one_call(name: str, door: str, joined: list[bool]) -> None:
    check(JOINED[name], door)
    assert joined[0]


@pytest.mark.parametrize("name", by_default(KEPT, "written between"))
def test_what_reads_pairs_keeps_them(name: str, joined: list[bool]) -> None:
    check(KEPT[name], "compile")
    assert not joined[0]


def test_gradients_of_gradients(joined: list[bool]) -> None:
    *tensors, mask = operands(2, KEYS, KEYS, empty=False)

    def second(function: Callable[..., Tensor]) -> list[Tensor]:
        grads = torch.autograd.grad(function(*tensors, mask).sin().sum(), tensors, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in grads), tensors))

    def of_tensors(*given: Tensor) -> Tensor:
        return masked(Operands(*given))

    torch.testing.assert_close(second(graphweave.compile(of_tensors)), second(of_tensors))
    assert joined[0]
