"""Partitions on disk: their parts are those of `parts_of`; what is damaged, unfinished or of another run is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from graphweave.core.errors import DataError
from graphweave.data import npz, relational, rmat
from graphweave.distributed.graph_file import graph_file, joined_pieces
from graphweave.distributed.load import load_part
from graphweave.distributed.manifest import read_manifest
from graphweave.distributed.methods import EDGES_OF_A_ROW, METHODS, stretches, weights_of
from graphweave.distributed.part import GraphPart
from graphweave.distributed.parts import EDGES, NODES, EdgeType, parts_of
from graphweave.distributed.write import write_partition
from tests.programs.graphs import EdgeList, zoo

SQUARE = [graph for graph in zoo() if graph.square]
DATA = Path(os.environ.get("GRAPHWEAVE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def saved(path: Path, graph: EdgeList, **more: object) -> Path:
    np.savez(path, src=graph.src, dst=graph.dst, num_nodes=graph.num_dst, **more)  # type: ignore[arg-type]
    return path


def same_parts(found: list[GraphPart], expected: list[GraphPart]) -> None:
    for part, other in zip(found, expected, strict=True):
        assert (part.rank, part.num_parts, [*part.nodes], [*part.edges]) == (
            other.rank, other.num_parts, [*other.nodes], [*other.edges]
        )  # fmt: skip
        pairs = zip(
            [*part.nodes.values(), *part.edges.values()], [*other.nodes.values(), *other.edges.values()], strict=True
        )
        for a, b in pairs:
            for name, value in vars(b).items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(getattr(a, name), value), name
                    assert getattr(a, name).dtype == value.dtype, name
            assert a.total == b.total
            assert [*a.data] == [*b.data]
            for key, rows in b.data.items():
                assert torch.equal(a.data[key], rows) and a.data[key].dtype == rows.dtype, key


def loaded(folder: Path) -> list[GraphPart]:
    num_parts = read_manifest(folder).num_parts
    return [load_part(folder, rank, num_parts) for rank in range(num_parts)]


def owners(parts: list[GraphPart], kind: str = NODES) -> torch.Tensor:
    """The owner of each node of a type."""
    found = torch.full((parts[0].nodes[kind].total,), -1)
    for part in parts:
        found[part.nodes[kind].own] = part.rank
    return found


@pytest.mark.parametrize(
    ("method", "piece"), [("metis", 3), ("random", 3), ("ldg", 3), pytest.param("ldg", 1 << 22, marks=pytest.mark.slow)]
)
def test_awkward_graphs_on_disk_are_those_in_memory(method: str, piece: int, tmp_path: Path) -> None:
    """Pieces of 3 edges go through files; larger ones stay in memory."""
    for graph in SQUARE:
        folder = tmp_path / graph.name
        x = torch.randn(graph.num_dst, 3)
        y = torch.arange(graph.num_dst) % 3
        file = saved(tmp_path / f"{graph.name}.npz", graph, feat=x, y=y)
        manifest = write_partition(graph_file(file), 3, folder, method=method, piece=piece)
        assert manifest == read_manifest(folder) and manifest.method == method
        found = loaded(folder)
        owner = owners(found)
        rest = {key: npz_mask(file, key) for key in ("train_mask", "val_mask", "test_mask")}
        data = {"feat": x, "y": y, **rest}
        same_parts(found, parts_of(torch.stack([graph.src, graph.dst]), graph.num_dst, owner, 3, node_data=data))
        assert manifest.cut_edges == [int((owner[graph.src] != owner[graph.dst]).sum())]
        assert not (folder / ".spill").exists()


def npz_mask(file: Path, key: str) -> torch.Tensor:
    return getattr(npz(file), key)


def typed_file(path: Path) -> Path:
    generator = torch.Generator().manual_seed(1)
    np.savez(
        path, node_type_names=["a", "b", "c"], node_counts=[5, 9, 2], edge_type_names=["a|to|b", "b|on|b", "c|no|a"],
        edge_to_src=torch.randint(5, (20,), generator=generator),
        edge_to_dst=torch.randint(9, (20,), generator=generator),
        edge_on_src=torch.randint(9, (7,), generator=generator),
        edge_on_dst=torch.randint(9, (7,), generator=generator), edge_no_src=np.zeros(0, np.int32),
        edge_no_dst=np.zeros(0, np.int32), target="b", y=np.arange(9) % 2, num_classes=2,
        feat_a=torch.randn(5, 2), feat_b_indptr=np.arange(10), feat_b_indices=np.arange(9) % 4,
        feat_b_data=np.float32([2]), feat_b_shape=[9, 4],
    )  # fmt: skip
    return path


@pytest.mark.parametrize("method", METHODS)
def test_graphs_with_types(method: str, tmp_path: Path) -> None:
    file = typed_file(tmp_path / "typed.npz")
    with np.load(file) as arrays:
        src, dst, on = (
            arrays["edge_to_src"],
            arrays["edge_to_dst"],
            np.stack([arrays[f"edge_on_{e}"] for e in ("src", "dst")]),
        )
        x = torch.from_numpy(arrays["feat_a"])
    to, loops = torch.from_numpy(np.stack([src, dst])), torch.from_numpy(on)
    none = torch.empty((2, 0), dtype=torch.int64)
    edges: dict[EdgeType, torch.Tensor] = {
        ("a", "to", "b"): to, ("b", "rev_to", "a"): to.flip(0), ("b", "on", "b"): loops,
        ("b", "rev_on", "b"): loops.flip(0), ("c", "no", "a"): none, ("a", "rev_no", "c"): none,
    }  # fmt: skip
    sparse = torch.zeros(9, 4)
    sparse[torch.arange(9), torch.arange(9) % 4] = 2
    masks = relational(file)
    data = {"a": {"feat": x}, "b": {"feat": sparse, "y": torch.arange(9) % 2}}
    for key in ("train_mask", "val_mask", "test_mask"):
        data["b"][key] = getattr(masks, key)[5:14]
    write_partition(graph_file(file), 2, tmp_path / "parts", method=method, piece=4)
    found = loaded(tmp_path / "parts")
    owner = {kind: owners(found, kind) for kind in "abc"}
    same_parts(found, parts_of(edges, {"a": 5, "b": 9, "c": 2}, owner, 2, node_data=data))
    assert read_manifest(tmp_path / "parts").num_classes == 2


def test_triples_have_their_relations_and_inverses(tmp_path: Path) -> None:
    rows = {"head": [0, 1, 2], "rel": [0, 1, 0], "tail": [1, 2, 0]}
    np.savez(tmp_path / "rdf.npz", num_nodes=3, num_relations=2, y=[0, -1, 1], **rows)
    np.savez(tmp_path / "kg.npz", num_nodes=3, num_relations=2, **{
        f"{split}_{key}": values for split in ("train", "valid", "test") for key, values in rows.items()
    })  # fmt: skip
    for name in ("rdf", "kg"):
        write_partition(graph_file(tmp_path / f"{name}.npz"), 2, tmp_path / name, method="random")
        parts = loaded(tmp_path / name)
        index = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
        etype = torch.tensor([0, 1, 0, 2, 3, 2])
        data = {key: torch.empty(0) for key in parts[0].nodes[NODES].data}
        assert [*data] == (["y", "train_mask", "val_mask", "test_mask"] if name == "rdf" else [])
        expected = parts_of(index, 3, owners(parts), 2, edge_data={"etype": etype})
        for part, other in zip(parts, expected, strict=True):
            assert torch.equal(part.edge_index, other.edge_index)
            assert torch.equal(part.edges[EDGES].data["etype"], other.edges[EDGES].data["etype"])


def test_layouts_of_one_graph(tmp_path: Path) -> None:
    """Sources or `indptr`, compressed or not, an archive or a folder of arrays."""
    src = torch.tensor([0, 0, 2, 2, 2, 5])
    dst = torch.tensor([1, 3, 3, 5, 0, 0])
    indptr = torch.tensor([0, 2, 2, 5, 5, 5, 6])
    np.savez(tmp_path / "a.npz", src=src, dst=dst, num_nodes=6)
    np.savez_compressed(tmp_path / "b.npz", src=src.int(), dst=dst.int(), num_nodes=6)
    np.savez(tmp_path / "c.npz", indptr=indptr, dst=dst.int(), num_nodes=6)
    (tmp_path / "d").mkdir()
    for key, value in (("indptr", indptr), ("dst", dst), ("num_nodes", np.int64(6))):
        np.save(tmp_path / "d" / f"{key}.npy", value)
    for name in ("a.npz", "b.npz", "c.npz", "d"):
        for piece in (1, 2, 4, 100):
            stream = graph_file(tmp_path / name).edges[EDGES]
            found = [torch.cat(ends) for ends in zip(*stream.pieces(piece), strict=True)]
            assert torch.equal(found[0], src) and torch.equal(found[1], dst), (name, piece)
    assert isinstance(graph_file(tmp_path / "a.npz").edges[EDGES].segments[0][1], np.memmap)
    assert isinstance(graph_file(tmp_path / "d").edges[EDGES].segments[0][1], np.memmap)


def test_symmetric_edges(tmp_path: Path) -> None:
    file = saved(tmp_path / "g.npz", SQUARE[6])
    assert torch.equal(
        torch.stack([*next(graph_file(file, symmetric=True).edges[EDGES].pieces(1 << 20))]),
        npz(file, symmetric=True).edge_index,
    )


@pytest.mark.parametrize("method", METHODS)
def test_parts_are_balanced_by_rows_and_edges_and_follow_the_seed(method: str, tmp_path: Path) -> None:
    index = rmat(2_000, 20_000, seed=1)
    np.savez(tmp_path / "g.npz", src=index[0], dst=index[1], num_nodes=2_000)
    graph = graph_file(tmp_path / "g.npz")
    manifests = [
        write_partition(graph, 4, tmp_path / f"parts{i}", method=method, seed=seed, piece=piece)
        for i, (seed, piece) in enumerate([(0, 1 << 22), (0, 1_000), (1, 1 << 22)])
    ]
    assert manifests[0] == manifests[1], "the size of pieces changes nothing"
    assert manifests[0].parts != manifests[2].parts
    sizes = [part.num_edges[0] + EDGES_OF_A_ROW * part.num_own[0] for part in manifests[0].parts]
    weights = weights_of(torch.bincount(index[1], minlength=2_000))
    total = int(weights.sum())
    assert sum(sizes) == total and max(sizes) <= 1.05 * total / 4 + int(weights.max())


@pytest.mark.parametrize(("method", "most"), [("metis", 0.12), ("random", 0.8), ("ldg", 0.55)])
def test_parts_follow_communities(method: str, most: float, tmp_path: Path) -> None:
    """Four communities, whose numbers are mixed, with a tenth of the edges between them. A random cut is 0.75."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(2_000, (20_000,), generator=generator)
    within = (src + 4 * torch.randint(500, (20_000,), generator=generator)) % 2_000
    strange = torch.rand(20_000, generator=generator) < 0.1
    dst = torch.where(strange, torch.randint(2_000, (20_000,), generator=generator), within)
    np.savez(tmp_path / "g.npz", src=src, dst=dst, num_nodes=2_000)
    cut = write_partition(graph_file(tmp_path / "g.npz"), 4, tmp_path / "parts", method=method).cut_edges[0]
    assert cut < most * 20_000


def test_greedy_parts_follow_their_definition(tmp_path: Path) -> None:
    """Every node by the formula, in Python; nodes without a tie."""
    graph = SQUARE[-1]
    file = saved(tmp_path / "g.npz", graph)
    write_partition(graph_file(file), 3, tmp_path / "parts", method="ldg", piece=5)
    found = owners(loaded(tmp_path / "parts")).tolist()
    weights = weights_of(torch.bincount(graph.dst, minlength=graph.num_dst)).tolist()
    capacity = -(-105 * sum(weights) // 300)
    loads, decided = [0, 0, 0], 0
    edges = [*zip(graph.src.tolist(), graph.dst.tolist(), strict=True)]
    for v in range(graph.num_dst):
        placed = [u if w == v else w for u, w in edges if v in (u, w) and u != w and max(u, w) == v]
        joined = [sum(found[u] == p for u in placed) for p in range(3)]
        room = [joined[p] * (capacity - loads[p]) if loads[p] + weights[v] <= capacity else 0 for p in range(3)]
        best = [(room[p], -loads[p]) for p in range(3)]
        assert best[found[v]] == max(best)
        decided += max(room) > 0
        loads[found[v]] += weights[v]
    assert decided > 10


def test_stretches_hold_few_edges() -> None:
    counts = torch.tensor([0, 5, 1, 1, 9, 0, 0, 1, 1, 1])
    for most in (1, 2, 3, 100):
        bounds = stretches(counts, most).tolist()
        assert bounds[0] == 0 and bounds[-1] == 10
        assert all(int(counts[a + 1 : b].sum()) < most for a, b in pairwise(bounds))
    assert stretches(counts[:0], 3).tolist() == [0]


# ---------------------------------------------------------------- what is refused


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    file = saved(tmp_path / "g.npz", SQUARE[-1], feat=torch.randn(30, 4))
    write_partition(graph_file(file), 2, tmp_path / "parts", method="random")
    return tmp_path / "parts"


def refused(folder: Path, match: str, rank: int = 1, num_parts: int | None = None, verify: bool = True) -> None:
    with pytest.raises(DataError, match=match):
        load_part(folder, rank, num_parts, verify=verify)


def test_ranks_that_there_are_not(partition: Path) -> None:
    refused(partition, r"for 2 ranks \(got 3\). Run as many", num_parts=3)
    refused(partition, r"rank must be from 0 to 1 .*\(got 2\)", rank=2)


def test_damaged_parts_are_refused_by_name(partition: Path) -> None:
    file = partition / "part_1" / "nodes0.data.feat.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(partition, r"part_1/nodes0.data.feat.npy is damaged or of another partition: its digest")
    assert load_part(partition, 0).rank == 0
    assert load_part(partition, 1, verify=False).rank == 1
    file.write_bytes(whole[:-4])
    refused(partition, r"part_1/nodes0.data.feat.npy is damaged or truncated", verify=False)
    file.write_bytes(whole[:20])
    refused(partition, r"part_1/nodes0.data.feat.npy is damaged or truncated", verify=False)
    file.unlink()
    refused(partition, r"part_1/nodes0.data.feat.npy: no such file")


def test_a_part_of_another_run_is_refused(partition: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_partition(graph_file(tmp_path / "g.npz"), 2, other, method="random", seed=1)
    for file in (other / "part_1").iterdir():
        file.replace(partition / "part_1" / file.name)
    refused(partition, "of another partition")


def test_damaged_and_absent_manifests_are_refused(partition: Path, tmp_path: Path) -> None:
    file = partition / "manifest.json"
    text = file.read_text()
    file.write_text(text.replace('"seed": 0', '"seed": 1'))
    refused(partition, "manifest.json is damaged: its digest")
    file.write_text(text[:-10])
    refused(partition, r"manifest.json is damaged \(")
    file.write_text(text.replace('"version": 2', '"version": 7'))
    refused(partition, r"has version 7 \(expected 2\)")
    file.write_text("{}")
    refused(partition, "is not the manifest of a partition")
    file.unlink()
    refused(partition, "holds no partition, or not a whole one")
    refused(tmp_path / "nowhere", "no such file")


def test_an_interrupted_run_leaves_no_manifest(
    partition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("graphweave.distributed.write.digest_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_partition(graph_file(tmp_path / "g.npz"), 2, partition, method="random")
    refused(partition, "not a whole one")
    write_partition(graph_file(tmp_path / "g.npz"), 2, partition, method="random")
    assert load_part(partition, 1).num_parts == 2


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    file = saved(tmp_path / "g.npz", SQUARE[-1])
    with pytest.raises(DataError, match=r"must be new, or hold a partition \(got g.npz in it\)"):
        write_partition(graph_file(file), 2, tmp_path)
    with pytest.raises(DataError, match="must be a folder"):
        write_partition(graph_file(file), 2, file)
    with pytest.raises(DataError, match=r"num_parts and piece must be at least 1 \(got 0 and 1\)"):
        write_partition(graph_file(file), 0, tmp_path / "parts", piece=1)
    with pytest.raises(DataError, match=r"method must be one of metis, random, ldg \(got 'kl'\)"):
        write_partition(graph_file(file), 2, tmp_path / "parts", method="kl")


def test_what_is_written_to_a_part_does_not_reach_its_files(partition: Path) -> None:
    part = load_part(partition, 0)
    part.nodes[NODES].data["feat"].zero_()
    assert bool(load_part(partition, 0).nodes[NODES].data["feat"].any())


def test_rows_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    feat = torch.randn(30, 4)
    feat[7, 2] = torch.nan
    file = saved(tmp_path / "g.npz", SQUARE[-1], feat=feat)
    with pytest.raises(DataError, match=r"g.npz: features 'feat' must be finite \(row 7"):
        write_partition(graph_file(file), 2, tmp_path / "parts", method="random")


def test_nodes_that_there_are_not_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", src=[0, 5], dst=[1, 0], num_nodes=3)
    with pytest.raises(DataError, match=r"g.npz: node 5 in 'src' is out of range: there are 3 nodes"):
        write_partition(graph_file(tmp_path / "g.npz"), 2, tmp_path / "parts", method="random")


def test_a_relation_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    edges = {f"edge_{name}_{end}": [0] for name in ("to", "rev_to") for end in ("src", "dst")}
    names = ["a|to|b", "b|rev_to|a"]
    np.savez(tmp_path / "g.npz", node_type_names=["a", "b"], node_counts=[1, 1], edge_type_names=names, **edges)
    with pytest.raises(DataError, match=r"has 'b|rev_to|a' or its reverse twice"):
        graph_file(tmp_path / "g.npz")


# ---------------------------------------------------------------- larger graphs

PEAK = """
import resource, sys
import torch
from graphweave.distributed.graph_file import graph_file
from graphweave.distributed.write import write_partition

torch.set_num_threads(1)
write_partition(graph_file(sys.argv[2]), 2, sys.argv[4], method=sys.argv[1], piece=50_000)  # warms up
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_partition(graph_file(sys.argv[3]), 4, sys.argv[4], method=sys.argv[1], piece=50_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "ldg"])
def test_memory_is_that_of_a_piece(method: str, tmp_path: Path) -> None:
    """4M edges in 64 MB of arrays, of which only what a piece and the nodes need is in memory."""
    nodes = 20_000
    for name, edges in (("small", 100_000), ("large", 4_000_000)):
        index = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(0))
        np.savez(tmp_path / f"{name}.npz", src=index[0], dst=index[1], num_nodes=nodes)
    paths = [str(tmp_path / name) for name in ("small.npz", "large.npz", "parts")]
    done = subprocess.run([sys.executable, "-c", PEAK, method, *paths], capture_output=True, text=True, check=True)
    grown = int(done.stdout) << 10
    assert grown < 32 << 20, f"{grown} bytes beside those of a small graph"
    manifest = json.loads((tmp_path / "parts" / "manifest.json").read_text())
    assert sum(part["num_edges"][0] for part in manifest["parts"]) == 4_000_000


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", ["cora", "rdf_aifb", "het_acm", "wn18rr", "het_ogbn_mag_10pct", "web_cnr2000"])
def test_real_graphs(name: str, tmp_path: Path) -> None:
    if not (DATA / f"{name}.npz").is_file():
        pytest.skip(f"{DATA / name}.npz is absent")
    graph = graph_file(DATA / f"{name}.npz")
    manifest = write_partition(graph, 4, tmp_path / "parts", piece=100_000)
    parts = loaded(tmp_path / "parts")
    edges = {name: torch.stack(joined_pieces(of.pieces(1 << 20))) for name, of in graph.edges.items()}
    owner = {kind: owners(parts, kind) for kind in graph.num_nodes}
    data = {
        kind: {key: torch.from_numpy(rows.rows(np.arange(graph.num_nodes[kind]))) for key, rows in of.items()}
        for kind, of in graph.node_data.items()
    }
    edge_data = {
        name: {key: torch.from_numpy(rows.rows(np.arange(of.num_edges))) for key, rows in of.data.items()}
        for name, of in graph.edges.items()
    }
    same_parts(parts, parts_of(edges, graph.num_nodes, owner, 4, node_data=data, edge_data=edge_data))
    assert sum(manifest.cut_edges) < 0.6 * graph.num_edges
