"""Checkpoints and partitions delete only what they have written themselves, whatever else lies there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from graphweave.core.errors import DataError
from graphweave.distributed import marks, snapshots
from graphweave.distributed.graph_file import graph_file
from graphweave.distributed.load import load_part
from graphweave.distributed.ranks import ALONE
from graphweave.distributed.write import write_partition


def content_of(folder: Path) -> dict[str, bytes | str]:
    """All files and links below a folder, and their bytes."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }


def written(folder: Path, count: int, first: int | None = None) -> None:
    for i in range(count):
        number = snapshots.next_number(folder) if first is None else first + i
        snapshots.write(folder, number, {"weight": torch.full((3,), float(number))}, ALONE)


# ------------------------------------------------------------ checkpoints


def test_folders_of_others_stay(tmp_path: Path) -> None:
    """Names as ours, without our mark, with a mark of something else, with a file more, and links."""
    kept = tmp_path / "kept"
    for name in ("partial-results", "partial-1", "snapshot-1", "snapshot-2", "snapshot-x"):
        (kept / name).mkdir(parents=True)
        (kept / name / "thesis.tex").write_text("years of work")
    marks.mark(kept / "partial-results", "partition")
    (kept / "snapshot-2" / ".metadata").write_text("of another program")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    marks.mark(elsewhere, "snapshot")
    (elsewhere / ".metadata").write_text("")
    (kept / "partial-link").symlink_to(elsewhere)
    before, outside = content_of(kept), content_of(elsewhere)
    written(kept, 5)
    assert {name: content_of(kept).get(name) for name in before} == before
    assert content_of(elsewhere) == outside
    assert snapshots.numbers(kept) == [2, 6, 7], "the last two of ours, above all numbers that were there"


def test_two_of_ours_stay_and_what_was_left_unfinished_goes(tmp_path: Path) -> None:
    written(tmp_path, 4)
    assert snapshots.numbers(tmp_path) == [3, 4]
    (left := tmp_path / "partial-9").mkdir()
    marks.mark(left, "snapshot")
    (left / "__0_0.distcp").write_bytes(b"half")
    (left / ".metadata.tmp").write_bytes(b"")
    written(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshot-4", "snapshot-5"]
    assert snapshots.read(tmp_path, 5)["weight"].tolist() == [5.0] * 3


def test_a_snapshot_to_which_somebody_added_a_file_stays(tmp_path: Path) -> None:
    written(tmp_path, 1)
    (tmp_path / "snapshot-1" / "notes.txt").write_text("the good one")
    written(tmp_path, 4)
    assert (tmp_path / "snapshot-1" / "notes.txt").read_text() == "the good one"
    assert snapshots.read(tmp_path, 1)["weight"].tolist() == [1.0] * 3


def test_a_snapshot_replaces_one_of_ours_and_no_other_folder(tmp_path: Path) -> None:
    written(tmp_path, 2, first=1)
    written(tmp_path, 1, first=2)
    assert snapshots.numbers(tmp_path) == [1, 2]
    (tmp_path / "snapshot-3").mkdir()
    (tmp_path / "snapshot-3" / "mine").write_text("")
    with pytest.raises(OSError, match="snapshot-3 is not a snapshot of graphweave"):
        written(tmp_path, 1, first=3)
    assert (tmp_path / "snapshot-3" / "mine").exists() and snapshots.numbers(tmp_path) == [1, 2]


def test_a_snapshot_of_an_earlier_version_is_read_and_never_deleted(tmp_path: Path) -> None:
    written(tmp_path, 1)
    (tmp_path / "snapshot-1" / marks.MARK).unlink()
    assert snapshots.numbers(tmp_path) == [1]
    assert snapshots.read(tmp_path, 1)["weight"].tolist() == [1.0] * 3
    written(tmp_path, 4)
    assert snapshots.numbers(tmp_path) == [1, 4, 5]


# ------------------------------------------------------------ partitions


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "g.npz"
    np.savez(path, src=[0, 1, 2, 3], dst=[1, 2, 3, 0], num_nodes=4, feat=np.ones((4, 2), np.float32))
    return path


def partitioned(file: Path, folder: Path, num_parts: int = 2) -> None:
    write_partition(graph_file(file), num_parts, folder, method="random")


@pytest.mark.parametrize("name", ["part_7", "part_7/mine.npy", "manifest.json", ".spill/mine", "part_0"])
def test_a_folder_that_only_looks_like_a_partition_is_left_alone(name: str, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    if name in ("part_7", "part_0"):
        (out / name).mkdir(parents=True)
    else:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    before, folders = content_of(out), sorted(out.rglob("*"))
    with pytest.raises(DataError, match=r"must be new, or hold a partition \(got .*\)\. Name another folder"):
        partitioned(file, out)
    assert (content_of(out), sorted(out.rglob("*"))) == (before, folders)


@pytest.mark.parametrize(
    "name", ["part_7/mine", "part_1/nodes0.own.txt", "part_0/deep/er.npy", "notes.txt", ".spill/mine", "part_2"]
)
def test_what_somebody_put_into_a_partition_is_not_deleted(name: str, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    partitioned(file, out)
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    before = content_of(out)
    with pytest.raises(DataError, match="must be new, or hold a partition"):
        partitioned(file, out)
    assert content_of(out) == before
    load_part(out, 1)


def test_a_partition_is_replaced_whole_even_an_unfinished_or_damaged_one(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    partitioned(file, out, 3)
    (out / "manifest.json").write_text("{")
    (out / "manifest.json.123.part").write_text("{")
    (out / ".spill").mkdir()
    marks.mark(out / ".spill", "folder of a partition for the time of its writing")
    (out / ".spill" / "edges0").mkdir()
    partitioned(file, out, 2)
    assert sorted(path.name for path in out.iterdir()) == [marks.MARK, "manifest.json", "part_0", "part_1"]
    assert load_part(out, 1).num_parts == 2
