"""`graphweave partition`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from graphweave.cli.edge_time import measured_edge_seconds
from graphweave.cli.main import main
from graphweave.distributed.load import load_part
from graphweave.distributed.manifest import read_manifest
from tests.programs.graphs import zoo

GRAPH = zoo()[-1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "g.npz"
    np.savez(path, src=GRAPH.src, dst=GRAPH.dst, num_nodes=30, feat=torch.randn(30, 8), y=np.arange(30) % 3)
    return path


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that the command prints when it returns 2."""
    try:
        status = main(["partition", *argv])
    except SystemExit as exit:
        status = exit.code
    captured = capsys.readouterr()
    assert status == 2 and captured.out == ""
    assert captured.err.endswith("\n") and captured.err.count("\n") == 1
    return captured.err


def test_it_writes_parts_and_says_so(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "parts"
    assert main(["partition", str(file), "--parts", "3", "--method", "ldg", "--seed", "5", "--out", str(out)]) == 0
    assert "30 nodes, 60 edges, 3 parts by ldg" in " ".join(capsys.readouterr().out.split())
    assert (read_manifest(out).method, read_manifest(out).seed) == ("ldg", 5)
    assert sum(load_part(out, rank, 3).edge_index.shape[1] for rank in range(3)) == 60


def test_symmetric_adds_reverses(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    assert main(["partition", str(file), "--parts", "2", "--symmetric", "--out", str(out)]) == 0
    both = {(a, b) for a, b in zip(GRAPH.src.tolist(), GRAPH.dst.tolist(), strict=True) if a != b}
    assert read_manifest(out).num_edges == [len(both | {(b, a) for a, b in both})]


def test_the_report(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, written = tmp_path / "parts", tmp_path / "report.json"
    argv = ["partition", str(file), "--parts", "2", "--method", "random", "--out", str(out), "--report"]
    options = ["--edge-time", "10", "--bandwidth", "2", "--latency", "3"]
    assert main([*argv, *options, "--json", str(written)]) == 0
    printed = capsys.readouterr().out
    assert "halo rows" in printed and "replication factor" in printed and "communication hidden" in printed
    found = json.loads(written.read_text())
    assert found["widths"] == [8, 64, 3], "features, 64, classes"
    assert (found["bandwidth"], found["latency"]) == (2e9, pytest.approx(3e-6))
    assert found["step"]["one rank"] == pytest.approx(60 * 10e-9)
    assert main(["partition", str(out), "--report", *options, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == found, "a partition is reported without being made again"
    assert main(["partition", str(out), "--report", *options, "--widths", "4,2", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["exchanged widths"] == [2]


@pytest.mark.slow
def test_the_time_of_an_edge_is_measured() -> None:
    assert 1e-10 < measured_edge_seconds((8, 8, 4), 10.0) < 1e-5


def test_bad_input_gets_one_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "parts")]
    name = str(file)
    assert "--parts N and --out DIR must be given" in refused(capsys, name)
    assert "--parts: must be a whole number above 0 (got '0')" in refused(capsys, name, "--parts", "0", *out)
    assert "invalid choice: 'kl'" in refused(capsys, name, "--parts", "2", "--method", "kl", *out)
    many = "--parts must be 30 at most, the nodes of g.npz (got 1000). Choose fewer parts, so that each has a node."
    assert refused(capsys, name, "--parts", "1000", *out) == f"graphweave partition: error: {many}\n"
    assert "nowhere.npz: no such file" in refused(capsys, "nowhere.npz", "--parts", "2", *out)
    assert "no arrays .npy in this folder" in refused(capsys, str(tmp_path), "--parts", "2", *out)
    assert "as 64,64,16 (got '64')" in refused(capsys, name, "--widths", "64")
    assert "--json writes the report" in refused(capsys, name, "--parts", "2", *out, "--json", "-")
    assert "must be new, or hold a partition" in refused(capsys, name, "--parts", "2", "--out", str(tmp_path))
    assert f"{name} must be a folder (got a file)" in refused(capsys, name, "--parts", "2", "--out", name)
    unwritable = refused(capsys, name, "--parts", "2", "--out", "/proc/parts")
    assert "parts cannot be written to /proc/parts" in unwritable and "Name another folder" in unwritable
    np.savez(tmp_path / "bad.npz", src=[0, 9], dst=[0, 1], num_nodes=3)
    bad = refused(capsys, str(tmp_path / "bad.npz"), "--parts", "2", *out)
    said = "bad.npz: node 9 in 'src' is out of range: there are 3 nodes. Correct the file."
    assert bad == f"graphweave partition: error: {said}\n"
    assert main(["partition", name, "--parts", "2", "--method", "random", *out]) == 0
    capsys.readouterr()
    assert "is a partition already" in refused(capsys, str(tmp_path / "parts"))
    (tmp_path / "parts" / "manifest.json").write_text("{")
    assert "manifest.json is damaged" in refused(capsys, str(tmp_path / "parts"), "--report")


def test_arrays_that_are_not_used_are_told(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(file, **np.load(file), weight=np.ones(60))
    assert main(["partition", str(file), "--parts", "2", "--method", "ldg", "--out", str(tmp_path / "parts")]) == 0
    said = "g.npz: 'weight' is not used. docs/data.md has the names that are read."
    assert capsys.readouterr().err == f"graphweave partition: note: {said}\n"


def test_without_pymetis_other_methods_are_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    said = refused(capsys, str(file), "--parts", "2", "--out", str(tmp_path / "parts"))
    assert "needs the package pymetis (not found). Install it, or pass 'ldg' or 'random'." in said
