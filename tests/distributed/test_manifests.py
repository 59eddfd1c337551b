"""Manifests and parts that somebody has altered, digests included: refused in one line, and no path leads elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphweave.cli.main import main
from graphweave.core.errors import DataError
from graphweave.distributed import full_graph
from graphweave.distributed.graph_file import EdgeStream, GraphFile, graph_file
from graphweave.distributed.load import load_part
from graphweave.distributed.manifest import _digest, digest_of, read_manifest
from graphweave.distributed.methods import AllNodes, random_parts
from graphweave.distributed.parts import parts_of
from graphweave.distributed.report import rank_loads
from graphweave.distributed.write import write_partition


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    generator = torch.Generator().manual_seed(0)
    names = {"node_type_names": ["a", "b"], "node_counts": [20, 30], "edge_type_names": ["a|to|b", "b|on|b"]}
    edges = {
        f"edge_{name}_{end}": torch.randint(count, (80,), generator=generator)
        for name, *counts in (("to", 20, 30), ("on", 30, 30))
        for end, count in zip(("src", "dst"), counts, strict=True)
    }
    feat = torch.randn(30, 4, generator=generator)
    np.savez(folder / "g.npz", **names, **edges, feat_b=feat, target="b", y=np.arange(30) % 3, num_classes=3)
    write_partition(graph_file(folder / "g.npz"), 2, folder / "parts", method="random")
    return folder / "parts"


@pytest.fixture
def parts(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "parts")
    return tmp_path / "parts"


def rewritten(parts: Path, alter: Callable[[dict[str, Any]], object]) -> None:
    """The manifest after `alter`, with the digest of its new content."""
    content = json.loads((parts / "manifest.json").read_text())
    content.pop("sha256")
    alter(content)
    (parts / "manifest.json").write_text(json.dumps({**content, "sha256": _digest(content)}))


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        at: Any = content
        for key in path[:-1]:
            at = at[key]
        if value is None:
            del at[path[-1]]
        else:
            at[path[-1]] = value

    return alter


def moved(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    """Array `old` of part 1 under the name `new`."""

    def alter(content: dict[str, Any]) -> None:
        arrays = content["parts"][1]["arrays"]
        arrays[new] = arrays.pop(old)

    return alter


def named(new: str) -> Callable[[dict[str, Any]], None]:
    """The features of nodes called `new` everywhere, so that types and arrays agree."""

    def alter(content: dict[str, Any]) -> None:
        content["node_data"][1] = [new if key == "feat" else key for key in content["node_data"][1]]
        for part in content["parts"]:
            part["arrays"][f"nodes1.data.{new}"] = part["arrays"].pop("nodes1.data.feat")

    return alter


OWN = ("parts", 1, "arrays", "nodes1.own")
ALTERED = {
    "a path": (moved("nodes1.own", "../../nodes1.own"), "arrays of part 1 are not those"),
    "an absolute path": (moved("edges0.ids", "/etc/passwd"), "arrays of part 1 are not those"),
    "a path as a name of data": (named("x/../../../feat"), "'node_data' must be names"),
    "a path of Windows": (named("..\\feat"), "'node_data' must be names"),
    "a name with a zero": (named("feat\0"), "'node_data' must be names"),
    "a name of a kilobyte": (named("f" * 1000), "'node_data' must be names"),
    "no array": (put(*OWN, value=None), "arrays of part 1 are not those"),
    "an array more": (put("parts", 0, "arrays", "more", value={}), "arrays of part 0 are not those"),
    "no field": (put("seed", value=None), "its fields are not those"),
    "a field more": (put("more", value=1), "its fields are not those"),
    "a part's field more": (put("parts", 0, "more", value=1), "fields of part 0 are not those"),
    "parts as a number": (put("parts", value=3), "'parts' must be at least one part"),
    "no parts": (put("parts", value=[]), "'parts' must be at least one part"),
    "a part as a list": (put("parts", 1, value=[]), "'parts' must be at least one part"),
    "types as a list": (put("node_types", value=[1, 2]), "'node_types' must be types and counts"),
    "a count as a text": (put("node_types", "a", value="20"), "'node_types' must be types and counts"),
    "a count as a float": (put("node_types", "a", value=20.0), "'node_types' must be types and counts"),
    "a negative count": (put("node_types", "a", value=-1), "'node_types' must be types and counts"),
    "a huge count": (put("num_edges", 0, value=2**70), "'num_edges' must be a count"),
    "another total": (put("node_types", "a", value=21), "'num_own' of the parts do not add up"),
    "other edges": (put("num_edges", 0, value=81), "'num_edges' of the parts do not add up"),
    "more cut": (put("cut_edges", 0, value=81), "more edges are cut than there are"),
    "an unknown type": (put("edge_types", 0, value=["a", "to", "c"]), "a node type that is not in"),
    "a type twice": (put("edge_types", 1, value=["a", "to", "b"]), "'edge_types' has one twice"),
    "a pair as a type": (put("edge_types", 0, value=["a", "b"]), "must be triples of texts"),
    "a type of objects": (put(*OWN, "dtype", value="|O"), "has the type '|O'"),
    "an unknown type of numbers": (put(*OWN, "dtype", value="<i9"), "has the type '<i9'"),
    "code as a type": (put(*OWN, "dtype", value="i4,(1"), "has the type"),
    "numbers of 32 bits": (put(*OWN, "dtype", value="<i4"), "must be of 64-bit integers"),
    "a shape of texts": (put(*OWN, "shape", value=["3"]), "must have a type, a shape and a digest"),
    "another shape": (put(*OWN, "shape", value=[3]), "must have the shape"),
    "a huge shape": (put("parts", 0, "arrays", "edges0.ids", "shape", value=[2**62]), "has the shape"),
    "few rows": (put("parts", 1, "arrays", "nodes1.data.feat", "shape", value=[1, 4]), "must have .* rows"),
    "no digest": (put(*OWN, "sha256", value="0"), "has no digest"),
    "classes as a text": (put("num_classes", value="3"), "'num_classes' must be a count"),
    "a seed as a text": (put("seed", value="3"), "'seed' must be an integer"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALTERED)
def test_altered_manifests_are_refused(name: str, parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter, words = ALTERED[name]
    rewritten(parts, alter)
    with pytest.raises(DataError, match=rf"manifest\.json is no manifest of a partition: .*{words.replace('|', '.')}"):
        load_part(parts, 1)
    assert main(["partition", str(parts), "--report", "--edge-time", "1"]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and not said.out


def test_a_rewritten_manifest_is_taken_as_it_is(parts: Path) -> None:
    """The changes above are refused for what they are, not because somebody rewrote the manifest."""
    rewritten(parts, lambda content: content.update(seed=7))
    assert read_manifest(parts).seed == 7 and load_part(parts, 1).rank == 1


ODD = ("[]", "3", "null", '"manifest"', "{}", "[" * 100_000, '{"a":' * 100_000, "{", "\0", "NaN", "9" * 10_000)


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:8].encode().hex())
def test_odd_manifests_get_one_line(text: str, parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (parts / "manifest.json").write_text(text)
    assert main(["partition", str(parts), "--report"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "manifest.json" in said


# ------------------------------------------------------------ arrays


def altered(parts: Path, key: str, alter: Callable[[np.ndarray], None]) -> None:
    """An array of part 1 after `alter`, with right digests everywhere."""
    file = parts / "part_1" / f"{key}.npy"
    array = np.load(file)
    alter(array)
    np.save(file, array)
    rewritten(parts, put("parts", 1, "arrays", key, "sha256", value=digest_of(file)))


def set_to(value: int, at: Any = -1) -> Callable[[np.ndarray], None]:
    def alter(array: np.ndarray) -> None:
        array[at] = value

    return alter


WRONG = {
    "own beyond": ("nodes1.own", set_to(30), "own nodes beyond 30 of node type 'b'"),
    "own below 0": ("nodes1.own", set_to(-1), "own nodes beyond 30 of node type 'b'"),
    "halo beyond": ("nodes0.halo", set_to(20), "halo nodes beyond 20 of node type 'a'"),
    "sent beyond": ("nodes1.send", set_to(2**40), "rows to send beyond .* of node type 'b'"),
    "halo counts": ("nodes1.halo_counts", set_to(0, 0), "counts by rank that do not add up to .* halo rows"),
    "negative counts": ("nodes1.halo_counts", lambda a: a.__iadd__([9, -9]), "counts by rank that do not add up"),
    "counts of itself": ("nodes1.send_counts", lambda a: a.__setitem__(slice(None), a[::-1].copy()), "counts by rank"),
    "source beyond": ("edges0.index", set_to(2**40, (0, 3)), r"sources beyond .* of edge type \('a', 'to', 'b'\)"),
    "source below 0": ("edges0.index", set_to(-1, (0, 3)), "sources beyond"),
    "destination beyond": ("edges2.index", set_to(2**40, (1, -1)), "destinations beyond"),
    "destinations fall": ("edges0.index", set_to(0, (1, -1)), "destinations that are not sorted"),
    "edge beyond": ("edges0.ids", set_to(80), "numbers of edges beyond 80"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_do_not_fit_together_are_refused_though_their_digests_are_right(name: str, parts: Path) -> None:
    key, alter, words = WRONG[name]
    altered(parts, key, alter)
    with pytest.raises(DataError, match=rf"part_1 is no part of a graph: {words}"):
        load_part(parts, 1)
    assert load_part(parts, 0).rank == 0


def test_the_report_refuses_counts_that_do_not_add_up(parts: Path) -> None:
    rank_loads(parts)
    altered(parts, "nodes1.halo_counts", set_to(0, 0))
    with pytest.raises(DataError, match="counts of halo rows do not add up"):
        rank_loads(parts)
    (parts / "part_1" / "nodes1.send_counts.npy").write_bytes(b"")
    with pytest.raises(DataError, match="damaged or truncated"):
        rank_loads(parts)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    """Each part is whole for itself, but they are of two graphs."""
    generator = torch.Generator().manual_seed(0)
    graphs = [
        parts_of(torch.randint(20, (2, 60), generator=generator), 20, torch.arange(20) % 2, 2) for _ in range(2)
    ]  # fmt: skip
    counts = [[full_graph._counts(part) for part in parts] for parts in graphs]
    assert [full_graph._counts_that_differ(each) for each in counts] == [None, None]
    said = full_graph._counts_that_differ([counts[0][0], counts[1][1]])
    assert said is not None and re.fullmatch(r"rank \d sends \d+ rows of '_N' to rank \d, which expects \d+", said)
    assert "other node types" in (full_graph._counts_that_differ([counts[0][0], {}]) or "")


# ------------------------------------------------------------ the command line


@pytest.mark.parametrize("value", ["2**70", str(2**70), str(2**63), "-1", "1.5", "x"])
@pytest.mark.parametrize("command", ["train", "partition"])
def test_seeds_that_are_none_get_one_line(command: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [command, "g.npz", "--parts", "2"] if command == "partition" else [command, "--data", "karate"]
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--seed", value])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert "--seed: must be " in said and repr(value) in said


def test_the_largest_seed_is_taken(written: Path, tmp_path: Path) -> None:
    file, seed = written.parent / "g.npz", str(2**63 - 1)
    for method in ("random", "ldg"):
        out = tmp_path / method
        argv = ["partition", str(file), "--parts", "2", "--method", method, "--out", str(out), "--seed", seed]
        assert main(argv) == 0
        assert read_manifest(out).seed == 2**63 - 1


@pytest.mark.parametrize("option", ["--parts", "--piece"])
def test_counts_beyond_64_bits_get_one_line(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["partition", "g.npz", option, str(2**63)])
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{option}: must be below 2^63" in said


@pytest.mark.parametrize("count", [2**31, 2**40, 2**63 - 1])
def test_numbers_of_parts_have_a_bound(count: int, written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["partition", str(written.parent / "g.npz"), "--out", str(written.parent / "many"), "--parts", str(count)]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"(got {count})" in said
    assert not (written.parent / "many").exists()


def test_weights_times_parts_fit_into_64_bits() -> None:
    stream = EdgeStream("g", 1, 1, ())
    many = AllNodes(GraphFile("g", {"a": 1}, {("a", "to", "a"): stream}, {}), {"a": torch.tensor([2**40])}, 1, Path())
    assert random_parts(many, 2**21, 0).tolist() == [2**20]
    with pytest.raises(DataError, match="num_parts must be smaller for a graph of this size"):
        random_parts(many, 2**22, 0)


def test_a_name_that_is_too_long_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        ["partition", "a" * 5000, "--parts", "2", "--out", "x"],
        ["train", "--data", "karate", "--resume", "a" * 5000],
    ):
        assert main(argv) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "File name too long" in said


def test_a_header_that_ends_in_the_middle_is_no_traceback(tmp_path: Path) -> None:
    """NumPy's reader of headers raises an error of Python's tokenizer for this one."""
    np.savez(tmp_path / "g.npz", src=[0], dst=[0], num_nodes=1)
    content = (tmp_path / "g.npz").read_bytes()
    (tmp_path / "g.npz").write_bytes(content.replace(b"{'descr'", b"{(descr'", 1))
    with pytest.raises(DataError, match=r"g\.npz: not a readable \.npz file"):
        graph_file(tmp_path / "g.npz")
