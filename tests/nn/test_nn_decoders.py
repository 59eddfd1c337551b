"""Decoders of triples against sums computed triple by triple and against PyG's, forward and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.func import functional_call

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.errors import DataError
from graphweave.nn import rotat_e
from tests.support import assert_matches

R, F, N = 3, 6, 7

HEAD, REL, TAIL = torch.tensor([0, 2, 6, 6]), torch.tensor([2, 0, 1, 2]), torch.tensor([1, 2, 0, 3])


def decoder_of(kind: Any) -> Any:
    torch.manual_seed(3)
    return kind(R, F).double()


def nodes_of(rows: int = N) -> Tensor:
    return torch.randn(rows, F, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def dist_mult(decoder: Any, h: Tensor, r: int, t: Tensor) -> Tensor:
    return sum((a * w * b for a, w, b in zip(h, decoder.weight[r], t, strict=True)), torch.zeros(()))


def rotat(decoder: Any, h: Tensor, r: int, t: Tensor) -> Tensor:
    rotated = torch.complex(*h.chunk(2)) * torch.polar(torch.ones_like(decoder.theta[r]), decoder.theta[r])
    out: Tensor = decoder.gamma - (rotated - torch.complex(*t.chunk(2))).abs().sum()
    return out


KINDS: dict[str, tuple[Any, Any]] = {"dist_mult": (gnn.DistMult, dist_mult), "rotat_e": (gnn.RotatE, rotat)}


@pytest.mark.parametrize("count", [4, 1, 0])
@pytest.mark.parametrize("name", KINDS)
def test_scores(name: str, count: int) -> None:
    kind, reference = KINDS[name]
    decoder = decoder_of(kind)
    head, rel, tail = HEAD[:count], REL[:count], TAIL[:count]

    def looped(x: Tensor) -> Tensor:
        rows = [reference(decoder, x[h], int(r), x[t]) for h, r, t in zip(head, rel, tail, strict=True)]
        return torch.stack(rows) if rows else x.new_zeros(0)

    assert_matches(
        lambda x: decoder(x[head], rel, x[tail]), looped, nodes_of(), module=decoder, backward=count > 0
    )  # fmt: skip


@pytest.mark.parametrize("step", [1, 2 * N * F, 1 << 22])
@pytest.mark.parametrize("name", KINDS)
def test_scores_against_all_nodes(name: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotat_e, "_MAX_DIFFERENCES", step)
    kind, reference = KINDS[name]
    decoder = decoder_of(kind)

    def looped(x: Tensor) -> list[Tensor]:
        rels = [int(r) for r in REL]
        tails = [reference(decoder, x[h], r, x[n]) for h, r in zip(HEAD, rels, strict=True) for n in range(N)]
        heads = [reference(decoder, x[n], r, x[t]) for r, t in zip(rels, TAIL, strict=True) for n in range(N)]
        return [torch.stack(scores).view(len(rels), N) for scores in (tails, heads)]

    assert_matches(
        lambda x: [decoder.tails(x[HEAD], REL, x), decoder.heads(x, REL, x[TAIL])], looped, nodes_of(), module=decoder
    )


@pytest.mark.parametrize("name", KINDS)
def test_no_nodes_and_no_triples(name: str) -> None:
    decoder, x, no = decoder_of(KINDS[name][0]), nodes_of(), torch.zeros(0, dtype=torch.int64)
    assert decoder.tails(x[HEAD], REL, x[:0]).shape == (4, 0)
    assert decoder.tails(x[no], no, x).shape == (0, N) and decoder.heads(x, no, x[no]).shape == (0, N)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", KINDS)
def test_compiled(name: str) -> None:
    decoder = decoder_of(KINDS[name][0])

    def all_scores(x: Tensor, head: Tensor, rel: Tensor, tail: Tensor) -> list[Tensor]:
        h, t = x.index_select(0, head), x.index_select(0, tail)
        return [decoder(h, rel, t), decoder.tails(h, rel, x), decoder.heads(x, rel, t)]

    compiled = gw.compile(all_scores)
    for count, rows in ((4, N), (2, 9)):
        assert_matches(
            lambda x, n=count: compiled(x, HEAD[:n], REL[:n], TAIL[:n]),
            lambda x, n=count: all_scores(x, HEAD[:n], REL[:n], TAIL[:n]),
            nodes_of(rows), module=decoder,
        )  # fmt: skip
    counts = gw.counters()
    assert counts["graph_breaks"] == 0 and counts["eager_fallbacks"] == 0 and counts["compilations"] == 1


def test_dist_mult_is_that_of_pyg() -> None:
    decoder, x = decoder_of(gnn.DistMult), nodes_of()
    theirs = pyg.DistMult(N, R, F).double()
    parameters = {"node_emb.weight": x, "rel_emb.weight": decoder.weight}
    want = functional_call(theirs, parameters, (HEAD, REL, TAIL))
    torch.testing.assert_close(decoder(x[HEAD], REL, x[TAIL]), want)


def test_rotat_e_of_one_number_is_that_of_pyg() -> None:
    """PyG's takes the root of the sum of squared moduli, which for one number is the modulus."""
    decoder, x = gnn.RotatE(R, 2, gamma=3.0).double(), nodes_of()[:, :2]
    theirs = pyg.RotatE(N, R, 1, margin=3.0).double()
    parameters = {"node_emb.weight": x[:, :1], "node_emb_im.weight": x[:, 1:], "rel_emb.weight": decoder.theta}
    want = functional_call(theirs, parameters, (HEAD, REL, TAIL))
    torch.testing.assert_close(decoder(x[HEAD], REL, x[TAIL]), want)


def test_gradient_where_a_modulus_is_zero() -> None:
    decoder, x = decoder_of(gnn.RotatE), torch.zeros(1, F, dtype=torch.float64, requires_grad=True)
    one = torch.zeros(1, dtype=torch.int64)
    decoder(x, one, x).sum().backward()
    decoder.tails(x, one, x).sum().backward()
    assert x.grad is not None and bool((x.grad == 0).all()) and bool((decoder.theta.grad == 0).all())


def test_scores_of_inverse_relations() -> None:
    """The rotation by -theta takes tails to heads: the paper's inversion pattern. DistMult is symmetric."""
    decoder, x = decoder_of(gnn.RotatE), nodes_of()
    inverse = gnn.RotatE(R, F).double()
    inverse.theta.data = -decoder.theta.data
    torch.testing.assert_close(decoder(x[HEAD], REL, x[TAIL]), inverse(x[TAIL], REL, x[HEAD]))
    symmetric = decoder_of(gnn.DistMult)
    torch.testing.assert_close(symmetric(x[HEAD], REL, x[TAIL]), symmetric(x[TAIL], REL, x[HEAD]))


def test_wrong_options_and_representation() -> None:
    with pytest.raises(DataError, match="feats must be even"):
        gnn.RotatE(2, 5)
    assert "num_rels=3, feats=6" in repr(gnn.RotatE(R, F)) and "num_rels=3, feats=6" in repr(gnn.DistMult(R, F))
