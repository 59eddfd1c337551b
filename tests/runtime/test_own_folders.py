"""Folders whose files are run: made for the user alone, and not used if somebody else could write to them."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graphweave.cli import machine
from graphweave.core import log, own_folders
from graphweave.core.errors import CacheError
from graphweave.core.settings import override
from graphweave.runtime import headers, kernel_cache, toolchain, triton_kernel
from graphweave.tuning import store
from tests.patience import outputs
from tests.runtime.test_kernel_cache import environment, run

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes of folders say nothing on Windows")
needs_precompiled = pytest.mark.skipif(
    toolchain.available() is None or not toolchain.toolchain().precompiles, reason="needs g++ or zig"
)
needs_cxx = pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")
needs_triton = pytest.mark.skipif(triton_kernel.triton_version() is None, reason="Triton is not installed")
needs_root = pytest.mark.skipif(getattr(os, "geteuid", int)() != 0, reason="only root can give files away")

STRANGER = 54321
MODULE = "import math\n\n\ndef answer():\n    return {}\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(headers, "_checked", set())
    monkeypatch.setattr(log, "_warned", set())
    with override(cache_dir=tmp_path / "cache", sanitize=()):
        kernel_cache.forget()
        triton_kernel.forget()
        yield tmp_path / "cache"
        kernel_cache.forget()
        triton_kernel.forget()


@pytest.fixture
def umask_000() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def answer(n: int) -> int:
    return int(triton_kernel.module(MODULE.format(n)).answer())


# ------------------------------------------------------------ what is made


@needs_cxx
@pytest.mark.usefixtures("umask_000")
def test_every_folder_that_is_made_is_closed_to_others(cache: Path) -> None:
    with override(cache_dir=cache / "deep" / "er"):
        assert run(101) == 1101
        headers.precompile(toolchain.toolchain(), kernel_cache.directory())
        store.save({"key": "a"}, {"found": 1})
        assert store.load({"key": "a"}) == {"found": 1}
        if triton_kernel.triton_version() is not None:
            assert answer(7) == 7
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    assert {"deep", "er", "kernels", "headers", "graphweave", "tuning"} <= {folder.name for folder in folders}
    assert {str(folder): oct(mode_of(folder)) for folder in folders if mode_of(folder) != 0o700} == {}
    run_files = [path for s in ("*.so", "*.gch", "kernels.h", "k*.py") for path in cache.rglob(s)]
    assert run_files and not [path for path in run_files if mode_of(path) & 0o022]


@needs_cxx
@pytest.mark.usefixtures("umask_000")
def test_kernels_built_under_any_umask_are_found_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        first = kernel_cache.shared_object("int first;\n", toolchain.toolchain())
        before = first.stat().st_mtime_ns, first.stat().st_ino
        assert kernel_cache.shared_object("int first;\n", toolchain.toolchain()) == first
    assert first.stat().st_ino == before[1] and not caplog.text


def test_threads_may_make_one_folder_at_once(tmp_path: Path) -> None:
    for i in range(20):
        folder = tmp_path / str(i) / "a" / "b" / "c"
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(own_folders.make_own, [folder] * 4))
        assert {mode_of(path) for path in (folder, *folder.parents[:3])} == {0o700}


# ------------------------------------------------------------ what is not used


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def _open_to_a_group(folder: Path) -> None:
    folder.chmod(0o770)


def _replaceable(folder: Path) -> None:
    folder.parent.chmod(0o777)


def _of_another_user(folder: Path) -> None:
    os.chown(folder, STRANGER, STRANGER)


WAYS = [
    pytest.param(_open_to_all, "mode 0777"),
    pytest.param(_open_to_a_group, "mode 0770"),
    pytest.param(_replaceable, "everybody may replace it"),
    pytest.param(_of_another_user, f"belongs to user {STRANGER}", marks=needs_root),
]


@needs_cxx
@pytest.mark.parametrize(("spoil", "said"), WAYS)
def test_libraries_that_others_could_have_put_there_are_not_loaded(
    cache: Path, spoil: Callable[[Path], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder has a library with the right name and its digest, so nothing but the folder tells."""
    folder = cache / "kernels"
    planted = kernel_cache.shared_object("int planted;\n", toolchain.toolchain())
    content = sorted(path.name for path in folder.iterdir())
    spoil(folder)
    with caplog.at_level(logging.WARNING):
        found = [kernel_cache.shared_object(f"int {name};\n", toolchain.toolchain()) for name in ("planted", "other")]
    assert all(path.is_relative_to(own_folders.temporary_folder()) for path in found)
    assert caplog.text.count("cannot keep kernels in") == 1
    assert said in caplog.text and "chmod 700" in caplog.text
    assert sorted(path.name for path in folder.iterdir()) == content and planted.exists()
    assert mode_of(own_folders.temporary_folder()) == 0o700


@needs_cxx
@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o666), pytest.param(_of_another_user, marks=needs_root)])
def test_a_library_that_others_could_write_is_built_again(cache: Path, spoil: Callable[[Path], None]) -> None:
    built = kernel_cache.shared_object("int mine;\n", toolchain.toolchain())
    spoil(built)
    inode = built.stat().st_ino
    assert kernel_cache.shared_object("int mine;\n", toolchain.toolchain()) == built
    assert built.stat().st_ino != inode and not mode_of(built) & 0o022 and built.stat().st_uid == os.geteuid()


@needs_cxx
def test_a_link_in_place_of_a_library_is_built_again(cache: Path, tmp_path: Path) -> None:
    built = kernel_cache.shared_object("int mine;\n", toolchain.toolchain())
    (elsewhere := tmp_path / "elsewhere.so").write_bytes(built.read_bytes())
    built.unlink()
    built.symlink_to(elsewhere)
    assert kernel_cache.shared_object("int mine;\n", toolchain.toolchain()) == built
    assert not built.is_symlink()


@needs_cxx
@needs_precompiled
@pytest.mark.parametrize("inner", ["headers/*", "headers/*/graphweave", "headers/*/*/kernels.h.gch"])
def test_headers_that_others_could_have_put_there_are_not_compiled(cache: Path, inner: str) -> None:
    headers.precompile(toolchain.toolchain(), cache / "kernels")
    (spoiled,) = (path for path in (cache / "kernels").glob(inner) if path.suffix != ".lock")
    spoiled.chmod(0o777)
    headers._checked.clear()
    built = kernel_cache.shared_object("#include <immintrin.h>\n#include <graphweave/base.h>\n", toolchain.toolchain())
    if spoiled.is_dir():
        assert built.is_relative_to(own_folders.temporary_folder())
    else:
        headers.precompile(toolchain.toolchain(), cache / "kernels")
        assert mode_of(spoiled) == 0o600, "the precompiled form is made again"


@needs_cxx
def test_the_cache_of_root_may_be_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image may bring kernels that root has built. Root can alter what any user runs anyway."""
    if os.geteuid() != 0:
        pytest.skip("needs files of root")
    built = kernel_cache.shared_object("int of_root;\n", toolchain.toolchain())
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert kernel_cache.shared_object("int of_root;\n", toolchain.toolchain()) == built


@needs_cxx
def test_eviction_leaves_files_of_others(cache: Path) -> None:
    folder = kernel_cache.shared_object("int one;\n", toolchain.toolchain()).parent
    for name in ("model.cpp", "libmine.so"):
        (folder / name).write_text("not a kernel")
    assert kernel_cache.evict(folder, 0) == 0
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["libmine.so", "model.cpp"]


# ------------------------------------------------------------ Triton's modules


@needs_triton
@pytest.mark.parametrize(("spoil", "said"), WAYS)
def test_modules_that_others_could_have_put_there_are_not_run(
    cache: Path, spoil: Callable[[Path], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(str(triton_kernel.module(MODULE.format(1)).__file__))
    assert path.parent == cache / "triton"
    triton_kernel.forget()
    spoil(path.parent)
    with caplog.at_level(logging.WARNING):
        found = triton_kernel.module(MODULE.format(1))
        assert (found.answer(), answer(2)) == (1, 2)
    assert Path(str(found.__file__)).is_relative_to(own_folders.temporary_folder())
    assert caplog.text.count("cannot keep kernels in") == 1 and said in caplog.text


@needs_triton
def test_no_folder_with_a_name_that_others_can_guess(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache.write_text("in the way")
    monkeypatch.setattr(own_folders, "_temporary", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (guessed := tmp_path / f"graphweave-triton-{os.getuid()}").mkdir(mode=0o777)
    assert answer(3) == 3
    assert not list(guessed.iterdir())


@needs_triton
@pytest.mark.parametrize("damage", [b"", b"def answer():\n    return 666\n", b"\xff\xfe"])
def test_a_damaged_module_is_written_again(cache: Path, damage: bytes) -> None:
    path = Path(str(triton_kernel.module(MODULE.format(4)).__file__))
    whole = path.read_bytes()
    triton_kernel.forget()
    path.write_bytes(damage)
    assert answer(4) == 4
    assert path.read_bytes() == whole


@needs_triton
def test_compiled_modules_next_to_the_text_are_not_run(cache: Path) -> None:
    path = Path(str(triton_kernel.module(MODULE.format(5)).__file__))
    triton_kernel.forget()
    other = path.with_name("other.py")
    other.write_text(MODULE.format(666))
    subprocess.run([sys.executable, "-c", f"import py_compile; py_compile.compile({str(other)!r})"], check=True)
    (compiled,) = (path.parent / "__pycache__").glob("other*.pyc")
    header = b"".join(
        (
            compiled.read_bytes()[:8],
            *(int(n).to_bytes(4, "little") for n in (path.stat().st_mtime, path.stat().st_size)),
        )
    )
    compiled.with_name(compiled.name.replace("other", path.stem)).write_bytes(header + compiled.read_bytes()[16:])
    assert answer(5) == 5


@needs_triton
def test_a_comment_is_part_of_a_module_s_key_and_declares_no_encoding(cache: Path) -> None:
    """In UTF-7 the second line of this text would be code."""
    text = "# coding: utf-7\n#+AAo-def answer(): return 666\n\ndef answer():\n    return len('ä')\n"
    assert triton_kernel.key_of(text) != triton_kernel.key_of(text.replace("utf-7", "utf-8"))
    found = triton_kernel.module(text)
    assert found.answer() == 1
    lines = Path(str(found.__file__)).read_text(encoding="utf-8").splitlines()
    assert lines[found.answer.__code__.co_firstlineno - 1] == "def answer():"


@needs_triton
@pytest.mark.slow
def test_processes_racing_for_one_module_all_get_it(cache: Path) -> None:
    program = "import tests.runtime.test_own_folders as t; print(t.answer(9))"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment(cache / "kernels"), stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert [outputs(racer)[0].strip() for racer in racers] == ["9"] * 3
    assert [path.suffix for path in (cache / "triton").iterdir()] == [".py"]


# ------------------------------------------------------------ the rest


def test_a_choice_of_tuning_that_others_could_have_written_is_ignored(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.save({"key": "a"}, {"found": 1})
    (path,) = (cache / "tuning").iterdir()
    path.chmod(0o666)
    assert store.load({"key": "a"}) is None
    assert "others may write to it" in caplog.text


def test_the_doctor_says_who_could_write(cache: Path) -> None:
    own_folders.make_own(cache / "kernels")
    assert machine.caches()["kernels"]["why"] is None
    (cache / "kernels").chmod(0o777)
    assert machine.caches()["kernels"]["why"] == "others may write to it, since it has mode 0777"
    json.dumps(machine.caches())


def test_a_temporary_folder_belongs_to_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_folders, "_temporary", None)
    mine = own_folders.temporary_folder()
    assert own_folders.temporary_folder() == mine
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)  # as in a child after a fork
    other = own_folders.temporary_folder()
    assert other != mine
    own_folders._remove(process, mine)
    assert mine.exists(), "a child removes the folder of its parent"
    monkeypatch.undo()
    own_folders._remove(process, mine)
    own_folders._remove(process, other)
    assert not mine.exists() and not other.exists()


def test_no_folder_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (blocker := tmp_path / "file").write_text("")
    monkeypatch.setattr(own_folders, "_temporary", (os.getpid(), blocker))
    with pytest.raises(CacheError, match=r"writable directory.*GRAPHWEAVE_CACHE_DIR"):
        own_folders.in_own_folder(blocker / "kernels", own_folders.make_own, logging.getLogger("graphweave"))
