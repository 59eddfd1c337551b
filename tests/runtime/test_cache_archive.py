"""`graphweave cache save` and `load`: what is compiled travels as one file, and nothing else comes with it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphweave.cli.main import main
from graphweave.core.counters import counters
from graphweave.core.errors import CacheError
from graphweave.core.settings import override
from graphweave.runtime import cache_archive, kernel_cache
from graphweave.runtime.toolchain import toolchain

KEY = "ab" * 32
CODE = b"machine code"


@pytest.fixture(autouse=True)
def a_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A compiler that nobody has to run."""
    tools = SimpleNamespace(identity="g++ 12 on this processor")
    monkeypatch.setattr(cache_archive, "toolchain", lambda: tools)
    yield tools


def fill(root: Path, code: bytes = CODE) -> Path:
    """A cache folder with one kernel, what is half written, a lock, and a data set."""
    kernels = root / "kernels"
    for folder in (root, kernels, kernels / "build-x", root / "tuning", root / "planetoid"):
        folder.mkdir(mode=0o700)
    (kernels / f"{KEY}.so").write_bytes(code)
    (kernels / f"{KEY}.sha256").write_text(hashlib.sha256(code).hexdigest())
    (kernels / f"{KEY}.cpp").write_text("int f();")
    for left_out in (kernels / f"{KEY}.lock", kernels / "a.cpp.1.part", kernels / "build-x" / "b.so"):
        left_out.write_text("")
    (root / "planetoid" / "cora.bin").write_text("data")
    (root / "tuning" / "k.json").write_text("{}")
    for path in root.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return root


def saved(tmp_path: Path) -> Path:
    with override(cache_dir=fill(tmp_path / "here")):
        cache_archive.save(tmp_path / "cache.tar.gz")
    return tmp_path / "cache.tar.gz"


def files_of(root: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if not name.endswith(".lock")}


CARRIED = {
    f"kernels/{KEY}.so": CODE,
    f"kernels/{KEY}.sha256": hashlib.sha256(CODE).hexdigest().encode(),
    f"kernels/{KEY}.cpp": b"int f();",
    "tuning/k.json": b"{}",
}


def test_what_is_compiled_comes_to_another_folder_with_the_users_permissions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, there = tmp_path / "cache.tar.gz", tmp_path / "there"
    with override(cache_dir=fill(tmp_path / "here")):
        assert main(["cache", "save", str(file)]) == 0
    before = os.umask(0)
    try:
        with override(cache_dir=there):
            assert main(["cache", "load", str(file)]) == 0
    finally:
        os.umask(before)
    assert files_of(there) == CARRIED
    assert "4 files" in capsys.readouterr().out
    for path in (there, *there.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077 or path.suffix == ".lock", path


def test_entries_that_are_there_stay(tmp_path: Path) -> None:
    file = saved(tmp_path)
    with override(cache_dir=fill(tmp_path / "there", b"own code")):
        done = cache_archive.load(file)
        assert (done.files, done.left) == (0, 4)
    assert (tmp_path / "there" / "kernels" / f"{KEY}.so").read_bytes() == b"own code"


def test_half_an_entry_is_made_whole(tmp_path: Path) -> None:
    file, there = saved(tmp_path), tmp_path / "there"
    fill(there, b"own code")
    (there / "kernels" / f"{KEY}.so").unlink()
    with override(cache_dir=there):
        assert cache_archive.load(file).files == 3
    assert files_of(there).items() >= CARRIED.items()


def test_damaged_kernels_and_those_of_others_are_not_saved(tmp_path: Path) -> None:
    root = fill(tmp_path / "here")
    (root / "kernels" / f"{KEY}.so").write_bytes(b"damaged")
    (root / "tuning" / "k.json").chmod(0o666)
    with override(cache_dir=root):
        done = cache_archive.save(tmp_path / "c")
    assert (done.files, done.left) == (2, 2)


@pytest.mark.parametrize("what", ["graphweave", "torch", "Python", "system", "compiler and processor"])
def test_another_kind_of_machine_is_refused_by_name(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(tmp_path)
    here = cache_archive.kind_of_machine()
    monkeypatch.setattr(cache_archive, "kind_of_machine", lambda: {**here, what: "another"})
    with override(cache_dir=tmp_path / "there"), pytest.raises(CacheError, match=f"{what} another \\(got .*Save one"):
        cache_archive.load(file)
    assert files_of(tmp_path / "there") == {}


def edited(file: Path, edit: Callable[[dict[str, Any], list[tuple[tarfile.TarInfo, bytes]]], None]) -> Path:
    """The file with its manifest and members changed by `edit`."""
    with tarfile.open(file) as archive:
        members = [(m, archive.extractfile(m).read()) for m in archive.getmembers()]  # type: ignore[union-attr]
    manifest = json.loads(members.pop(0)[1])
    edit(manifest, members)
    first, text = tarfile.TarInfo("manifest.json"), json.dumps(manifest).encode()
    out = file.with_name("edited.tar.gz")
    with tarfile.open(out, "w:gz") as archive:
        for member, content in [(first, text), *members]:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out


def added(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[..., None]:
    """Adds a member, and says so in the manifest."""

    def edit(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        manifest["members"][name] = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
        members.append((member, b""))

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        added("../evil"), added("/tmp/evil"), added("kernels/../../evil"), added("kernels//evil"), added(".hidden"),
        added("planetoid/evil"), added("kernels/x.lock"), added("kernels/a\\b"), added("manifest.json/x/.."),
        added("kernels/link", tarfile.SYMTYPE, "/etc/passwd"), added("kernels/link", tarfile.LNKTYPE, "/etc/passwd"),
        added("kernels/pipe", tarfile.FIFOTYPE), added("kernels/folder", tarfile.DIRTYPE),
    ],
)  # fmt: skip
def test_nothing_is_written_outside_the_folder(tmp_path: Path, edit: Callable[..., None]) -> None:
    file = edited(saved(tmp_path), edit)
    with override(cache_dir=tmp_path / "there"), pytest.raises(CacheError, match="files of its manifest only"):
        cache_archive.load(file)
    assert files_of(tmp_path / "there") == {} and not (tmp_path / "evil").exists()


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    file, there, elsewhere = saved(tmp_path), tmp_path / "there", tmp_path / "elsewhere"
    (there / "kernels").mkdir(parents=True, mode=0o700)
    there.chmod(0o700)
    elsewhere.write_text("mine")
    (there / "kernels" / f"{KEY}.cpp").symlink_to(elsewhere)
    with override(cache_dir=there):
        cache_archive.load(file)
    assert elsewhere.read_text() == "mine"
    assert not (there / "kernels" / f"{KEY}.cpp").is_symlink()


def changed_bytes(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members[0] = members[0][0], b"x" * len(members[0][1])


def lost_member(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members.pop()


def other_format(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    manifest["format"] = 99


@pytest.mark.parametrize(
    ("edit", "message"),
    [(changed_bytes, "is damaged"), (lost_member, "missing"), (other_format, r"expected format 1 .*got 99")],
)
def test_a_damaged_file_changes_nothing(tmp_path: Path, edit: Callable[..., None], message: str) -> None:
    file = edited(saved(tmp_path), edit)
    with override(cache_dir=tmp_path / "there"), pytest.raises(CacheError, match=message):
        cache_archive.load(file)
    assert files_of(tmp_path / "there") == {}


def test_what_is_no_such_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in {"text": b"hello", "empty": b"", "half": saved(tmp_path).read_bytes()[:200]}.items():
        (tmp_path / name).write_bytes(content)
        with override(cache_dir=tmp_path / "there"):
            assert main(["cache", "load", str(tmp_path / name)]) == 2
        assert "expected a file that `graphweave cache save` has written" in capsys.readouterr().err
    with override(cache_dir=tmp_path / "there"):
        assert main(["cache", "load", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    with override(cache_dir=tmp_path / "nothing"):
        assert main(["cache", "save", str(tmp_path / "c")]) == 2
    assert "Compile something first" in capsys.readouterr().err


def test_a_loaded_kernel_runs_without_being_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_archive, "toolchain", toolchain)
    text = 'extern "C" int carried() { return 7; }\n'
    with override(cache_dir=tmp_path / "here"):
        kernel_cache.shared_object(text, toolchain())
        cache_archive.save(tmp_path / "c")
    before = counters()
    with override(cache_dir=tmp_path / "there"):
        cache_archive.load(tmp_path / "c")
        kernel_cache.forget()
        assert kernel_cache.library(text).carried() == 7
    assert counters()["kernel_builds"] == before["kernel_builds"]
    assert torch.__version__ == cache_archive.kind_of_machine()["torch"]
