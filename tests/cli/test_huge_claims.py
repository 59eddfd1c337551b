"""Files that claim more than a machine can hold: one line and status 2, before memory is taken."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphweave.cli import main as cli
from graphweave.cli import train
from graphweave.data import machine_memory

HUGE = 10**15
SRC, DST, Y = np.array([0, 1, 2, 0]), np.array([1, 2, 0, 2]), np.array([0, 1, 0])
PLAIN = {"src": SRC, "dst": DST, "num_nodes": np.array(3), "y": Y}
SPARSE = {
    "feat_indptr": np.zeros(4, np.int64), "feat_indices": SRC[:0], "feat_data": np.ones(1),
    "feat_shape": np.array([3, HUGE]),
}  # fmt: skip
RDF = {"head": SRC, "rel": SRC * 0, "tail": DST, "y": Y, "num_nodes": np.array(3), "num_relations": np.array(1)}
KNOWLEDGE = {
    f"{part}_{column}": values
    for part in ("train", "valid", "test")
    for column, values in (("head", SRC), ("rel", SRC * 0), ("tail", DST))
} | {"num_nodes": np.array(3), "num_relations": np.array(1)}
TYPED = {
    "node_type_names": np.array(["a", "b"]), "node_counts": np.array([3, HUGE]), "edge_type_names": np.array(["a|r|a"]),
    "edge_r_src": SRC, "edge_r_dst": DST, "target": np.array("a"), "y": Y,
}  # fmt: skip

CLAIMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "nodes": ("gcn", PLAIN | {"num_nodes": np.array(HUGE)}, "'num_nodes' = 1000000000000000 would take"),
    "nodes without labels": ("gcn", {k: PLAIN[k] for k in ("src", "dst")} | {"num_nodes": np.array(HUGE)}, "PiB"),
    "nodes beyond int64": ("gcn", PLAIN | {"num_nodes": np.array(2**63 + 5, np.uint64)}, "'num_nodes' = 92233720368"),
    "sources beyond int64": ("gcn", PLAIN | {"src": SRC.astype(np.uint64) + 2**63}, "'src' must have numbers up to"),
    "classes": ("gcn", PLAIN | {"num_classes": np.array(HUGE)}, "'num_classes' = 1000000000000000 would take"),
    "a label": ("gcn", PLAIN | {"y": np.array([0, 1, HUGE])}, "label 1000000000000000 in 'y' would take"),
    "features": ("gcn", PLAIN | SPARSE, "'feat_shape' = [3, 1000000000000000] would take"),
    "relations of RDF": ("rgcn", RDF | {"num_relations": np.array(HUGE)}, "'num_relations' = 1000000000000000"),
    "nodes of RDF": ("rgcn", RDF | {"num_nodes": np.array(HUGE)}, "'num_nodes' = 1000000000000000 would take"),
    "entities": ("rgcn", KNOWLEDGE | {"num_nodes": np.array(HUGE)}, "'num_nodes' = 1000000000000000 would take"),
    "relations": ("rgcn", KNOWLEDGE | {"num_relations": np.array(HUGE)}, "'num_relations' = 1000000000000000"),
    "nodes of a type": ("rgcn", TYPED, "'node_counts' = [3, 1000000000000000] would take"),
}


def _refused(capsys: pytest.CaptureFixture[str], model: str, path: Path) -> str:
    """The line with which the command refuses a file."""
    status = cli.main(["train", "--model", model, "--data", str(path), "--epochs", "1", "--no-compile"])
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("claim", CLAIMS)
def test_counts(claim: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, arrays, message = CLAIMS[claim]
    path = tmp_path / "graph.npz"
    np.savez(path, **arrays)
    line = _refused(capsys, model, path)
    assert line.startswith("graphweave train: error: graph.npz: ") and message in line


def _with_header(path: Path, shape: tuple[int, ...], values: np.ndarray = SRC) -> None:
    """A graph whose 'src' says that it has this shape."""
    np.savez(path, **PLAIN)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
    members["src.npy"] = header.getvalue() + values.tobytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((500_000_000_000,), "array 'src' of int64 [500000000000] would take 3.6 TiB at least"),
        ((2**40, 2**40), "would take"),
        ((5,), "array 'src' must have 40 bytes for int64 [5] (got 32)"),
        ((3,), "array 'src' must have 24 bytes for int64 [3] (got 32)"),
        ((-4,), "not a readable .npz file"),
    ],
)
def test_headers(shape: tuple[int, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.npz"
    _with_header(path, shape)
    assert message in _refused(capsys, "gcn", path)


def test_what_a_machine_holds_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is the machine's memory, and no number of ours."""
    from graphweave.data import npz

    path = tmp_path / "graph.npz"
    np.savez(path, **PLAIN)
    assert npz(path).num_nodes == 3
    monkeypatch.setattr(machine_memory, "machine_bytes", lambda: None)
    assert npz(path).num_nodes == 3
    monkeypatch.setattr(machine_memory, "machine_bytes", lambda: 3 * 64 * 4 - 1)
    with pytest.raises(ValueError, match="'num_nodes' = 3 would take 768 bytes at least, and this machine has 767"):
        npz(path)


@pytest.mark.parametrize("error", [MemoryError("no"), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_model_too_large_for_the_machine(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(train, "run", fail)
    assert cli.main(["train", "--data", "karate"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "not enough memory for this graph and model" in captured.err
