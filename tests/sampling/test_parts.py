"""Parts of a graph against parts found node by node and edge by edge, over the awkward graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.core.errors import DataError, IndexRangeError
from graphweave.distributed.part import GraphPart
from graphweave.distributed.parts import EDGES, NODES, EdgeType, parts_of
from graphweave.runtime.halo_room import take_room
from tests.programs.graphs import EdgeList, zoo

ZOO = zoo()
SQUARE = [graph for graph in ZOO if graph.square]


def assigned(count: int, num_parts: int, seed: int = 0) -> Tensor:
    return torch.randint(num_parts, (count,), generator=torch.Generator().manual_seed(seed))


def assert_are_parts_of(
    parts: list[GraphPart], edges: dict[EdgeType, Tensor], num_nodes: dict[str, int], owners: dict[str, Tensor]
) -> None:
    """The definition, node by node and edge by edge, in Python's lists and sets."""
    asks = {  # nodes into which an edge leads from another part
        (name[2], v) for name, index in edges.items() for u, v in index.t().tolist()
        if owners[name[0]][u] != owners[name[2]][v]
    }  # fmt: skip
    for part in parts:
        rank = part.rank
        for kind, nodes in part.nodes.items():
            owner = owners[kind].tolist()

            def place(v: int, kind: str = kind) -> tuple[bool, int]:
                return (kind, v) in asks, v

            own = sorted((v for v in range(num_nodes[kind]) if owner[v] == rank), key=place)
            read = {
                int(u) for name, index in edges.items() if name[0] == kind
                for u, v in index.t().tolist() if owners[name[2]][v] == rank
            }  # fmt: skip
            assert nodes.own.tolist() == own
            others = [u for u in read if owner[u] != rank]
            assert nodes.halo.tolist() == [
                u for q in range(part.num_parts) for u in sorted((u for u in others if owner[u] == q), key=place)
            ]
            assert nodes.halo_counts.tolist() == [
                sum(owner[u] == q for u in read) if q != rank else 0 for q in range(part.num_parts)
            ]
            assert nodes.total == num_nodes[kind]
            begin = 0
            for q, count in enumerate(nodes.send_counts.tolist()):
                sent = nodes.own[nodes.send[begin : begin + count]].tolist()
                halo = parts[q].nodes[kind].halo.tolist()
                assert sent == [u for u in halo if owner[u] == rank], "what q reads of this part, in q's order"
                begin += count
            assert begin == nodes.send.numel()
        assert {*part.edges} == {*edges}
        for name, index in edges.items():
            mine = part.edges[name]
            src, dst = index.tolist()
            row = {v: i for i, v in enumerate(part.nodes[name[2]].own.tolist())}
            expected = sorted((e for e in range(len(dst)) if dst[e] in row), key=lambda e: row[dst[e]])
            assert mine.ids.tolist() == expected, "sorted by destination, else in order"
            sources = torch.cat([part.nodes[name[0]].own, part.nodes[name[0]].halo])
            assert sources[mine.edge_index[0]].tolist() == [src[e] for e in mine.ids.tolist()]
            assert part.nodes[name[2]].own[mine.edge_index[1]].tolist() == [dst[e] for e in mine.ids.tolist()]
            assert mine.total == len(dst)


@pytest.mark.parametrize("graph", SQUARE, ids=lambda graph: graph.name)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_parts_of_awkward_graphs(graph: EdgeList, dtype: torch.dtype) -> None:
    index, count = torch.stack([graph.src, graph.dst]).to(dtype), graph.num_dst
    for num_parts in (1, 2, 3, 5):
        owner = assigned(count, num_parts).to(dtype)
        x, weight = torch.randn(count, 3), torch.randn(index.shape[1])
        parts = parts_of(index, count, owner, num_parts, node_data={"x": x}, edge_data={"w": weight})
        assert [part.rank for part in parts] == list(range(num_parts))
        assert_are_parts_of(parts, {EDGES: index}, {NODES: count}, {NODES: owner})
        for part in parts:
            assert torch.equal(part.nodes[NODES].data["x"], x[part.nodes[NODES].own])
            assert torch.equal(part.edges[EDGES].data["w"], weight[part.edges[EDGES].ids])
            assert part.edge_index.dtype == torch.int64


@pytest.mark.parametrize("graph", ZOO, ids=lambda graph: graph.name)
def test_parts_of_graphs_with_types(graph: EdgeList) -> None:
    """Two relations between two types, and one without edges that leads back."""
    index = torch.stack([graph.src, graph.dst])
    nodes = {"a": graph.num_src, "b": graph.num_dst}
    none = torch.empty((2, 0), dtype=torch.int64)
    edges = {("a", "to", "b"): index, ("b", "back", "a"): index.flip(0), ("b", "never", "b"): none}
    owners = {"a": assigned(graph.num_src, 3), "b": assigned(graph.num_dst, 3, seed=1)}
    parts = parts_of(edges, nodes, owners, 3, edge_data={("a", "to", "b"): {"w": torch.arange(index.shape[1])}})
    assert_are_parts_of(parts, edges, nodes, owners)
    for part in parts:
        assert torch.equal(part.edges["a", "to", "b"].data["w"], part.edges["a", "to", "b"].ids)


def test_parts_that_are_empty_have_no_halo_or_are_all_halo() -> None:
    index = torch.tensor([[0, 0, 1, 1], [2, 3, 2, 3]])
    empty, sources, sinks = parts_of(index, 4, torch.tensor([1, 1, 2, 2]), 3)
    assert empty.nodes[NODES].num_own == empty.nodes[NODES].num_halo == empty.edge_index.numel() == 0
    assert sources.nodes[NODES].num_halo == 0 and sources.edge_index.shape == (2, 0)
    assert sources.nodes[NODES].send_counts.tolist() == [0, 0, 2]
    assert sinks.edge_index.tolist() == [[2, 3, 2, 3], [0, 0, 1, 1]]


def test_only_behind_all_own_rows_is_room_for_halo_rows() -> None:
    """Behind the first rows of a part lie its other rows, which nobody may write to. The first taker keeps the room."""
    index = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1]])
    part = parts_of(index, 4, torch.tensor([0, 0, 1, 1]), 2, node_data={"x": torch.randn(4, 3)})[0]
    x, taker, other = part.nodes[NODES].data["x"], part, torch.nn.Module()
    assert x.shape == (2, 3) and part.nodes[NODES].num_halo == 2
    assert not take_room(x[:1], taker) and not take_room(x[1:], taker) and not take_room(x.clone(), taker)
    assert take_room(x, taker) and take_room(x, taker) and not take_room(x, other)


def test_what_does_not_fit_together_is_refused() -> None:
    index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(DataError, match=r"num_parts must be at least 1 \(got 0\)"):
        parts_of(index, 3, torch.zeros(3, dtype=torch.int64), 0)
    with pytest.raises(DataError, match=r"integers \[3\] \(got torch.int64 \[2\]\)"):
        parts_of(index, 3, torch.zeros(2, dtype=torch.int64), 2)
    with pytest.raises(IndexRangeError, match="index 2 at position 1 is out of range for 2 parts"):
        parts_of(index, 3, torch.tensor([0, 2, 0]), 2)
    with pytest.raises(IndexRangeError, match=r"destinations .* index 2 at position 1 is out of range for 2 nodes"):
        parts_of(index, 2, torch.tensor([0, 1]), 2)
    with pytest.raises(DataError, match=r"edges of .* integers \[2, edges\]"):
        parts_of(index.float(), 3, torch.zeros(3, dtype=torch.int64), 2)
    with pytest.raises(DataError, match=r"node_data 'x' of '_N' must have 3 rows \(got \[2, 4\]\)"):
        parts_of(index, 3, torch.zeros(3, dtype=torch.int64), 2, node_data={"x": torch.zeros(2, 4)})
    with pytest.raises(DataError, match="without 'b'"):
        parts_of({("a", "r", "b"): index}, {"a": 3}, {"a": torch.zeros(3, dtype=torch.int64)}, 2)
    with pytest.raises(DataError, match="mappings by node type"):
        parts_of({EDGES: index}, 3, torch.zeros(3, dtype=torch.int64), 2)
