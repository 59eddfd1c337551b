"""Blocks have DGL's semantics: destinations first among the sources, and nested from the output nodes to the input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave as gw
import graphweave.function as fn
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.sampling import BlockSampler
from tests.programs.graphs import EdgeList, zoo


def mean_of_neighbours(graph: gw.Graph, x: Tensor) -> Tensor:
    with graph.local_scope():
        graph.srcdata["h"] = x
        graph.update_all(fn.copy_u("h", "m"), fn.mean("m", "n"))
        return graph.dstdata["n"]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("zoo_graph", [g for g in zoo() if g.square and g.num_dst], ids=lambda g: g.name)
def test_blocks_of_all_neighbours_give_what_the_whole_graph_gives(zoo_graph: EdgeList, dtype: torch.dtype) -> None:
    graph = gw.graph((zoo_graph.src.to(dtype), zoo_graph.dst.to(dtype)), num_nodes=zoo_graph.num_dst)
    x = torch.randn(zoo_graph.num_dst, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = x
    for _ in range(2):
        whole = whole + mean_of_neighbours(graph, whole).tanh()
    seeds = torch.arange(0, zoo_graph.num_dst, 2).flip(0)
    inputs, outputs, blocks = BlockSampler(graph, [-1, -1]).sample(seeds)
    assert torch.equal(outputs, seeds)
    h = x[inputs]
    for block in blocks:
        assert block.idtype == dtype
        h = h[: block.num_dst_nodes()] + mean_of_neighbours(block, h).tanh()
    torch.testing.assert_close(h, whole[seeds], rtol=1e-6, atol=1e-6)


def test_blocks_are_nested_and_sorted_and_draw_their_fanouts() -> None:
    generator = torch.Generator().manual_seed(3)
    src, dst = torch.randint(500, (2, 6_000), generator=generator)
    graph = gw.graph((src, dst), num_nodes=500)
    inputs, outputs, blocks = BlockSampler(graph, [2, 5], seed=1).sample(torch.arange(20))
    assert torch.equal(blocks[0].srcdata[gw.NID], inputs)
    assert torch.equal(blocks[1].dstdata[gw.NID], outputs)
    assert torch.equal(blocks[0].dstdata[gw.NID], blocks[1].srcdata[gw.NID])
    for block, fanout in zip(blocks, [2, 5], strict=True):
        u, v = block.edges()
        from_nodes, to_nodes = block.srcdata[gw.NID], block.dstdata[gw.NID]
        assert torch.equal(from_nodes[: to_nodes.numel()], to_nodes)
        assert torch.equal(src[block.edata[gw.EID]], from_nodes[u])
        assert torch.equal(dst[block.edata[gw.EID]], to_nodes[v])
        degrees = torch.bincount(dst, minlength=500)[to_nodes]
        assert torch.equal(block.in_degrees(), degrees.clamp(max=fanout)), "a destination did not draw in this block"
        assert formats.perm(Index(v, block.num_dst_nodes())) is None


def test_blocks_of_several_relations() -> None:
    rates = (torch.arange(60) % 30, torch.arange(60) % 7)
    graph = gw.heterograph({("user", "rates", "item"): rates, ("item", "rated", "user"): rates[::-1]})
    fanouts = [{"rates": 1, "rated": -1}, {"rates": 4, "rated": 2}]
    inputs, outputs, blocks = BlockSampler(graph, fanouts).sample({"item": torch.tensor([3, 0])})
    assert outputs["item"].tolist() == [3, 0]
    assert blocks[1].num_edges("rates") == 8
    assert blocks[0].num_edges("rates") == 2, "the items draw again"
    assert blocks[0].num_edges("rated") == int(graph.in_degrees(blocks[1].srcnodes["user"].data[gw.NID], "rated").sum())
    for block in blocks:
        for start, name, end in block.canonical_etypes:
            u, v = block.edges(etype=name)
            of = block.edges[name].data[gw.EID]
            real = graph.edges(etype=name)
            assert torch.equal(block.nodes[start].data[gw.NID][u], real[0][of])
            assert torch.equal(block.nodes[end].data[gw.NID][v], real[1][of])
    assert {t: rows.numel() for t, rows in inputs.items()} == {t: blocks[0].num_nodes(t) for t in ("item", "user")}


def test_probabilities_of_edges() -> None:
    graph = gw.graph(([1, 2, 3], [0, 0, 0]), num_nodes=4)
    graph.edata["p"] = torch.tensor([0.0, 1.0, 0.0])
    _, _, (block,) = BlockSampler(graph, [3], prob="p").sample(torch.tensor([0]))
    assert block.edata[gw.EID].tolist() == [1]


@pytest.mark.parametrize(
    ("options", "seeds", "error", "said"),
    [
        ({"fanouts": []}, [0], DataError, "expected a list of fanouts"),
        ({"fanouts": [{}]}, [0], DataError, "has none in some layer"),
        ({"prob": "p"}, [0], DataError, "no edges have a field 'p'"),
        ({}, [], DataError, "got none"),
        ({}, [1, 1], DataError, "got some twice"),
        ({}, [4], IndexRangeError, "index 4 at position 0 is out of range for 4 nodes"),
    ],
)
def test_what_cannot_be_sampled_is_one_clear_error(
    options: dict[str, Any], seeds: list[int], error: type[Exception], said: str
) -> None:
    graph = gw.graph(([1, 2, 3], [0, 0, 0]), num_nodes=4)
    given: dict[str, Any] = {"fanouts": [2], **options}
    with pytest.raises(error, match=said):
        BlockSampler(graph, **given).sample(torch.tensor(seeds, dtype=torch.int64))
