"""What a compiler has said of itself is asked once on a machine, and again when anything about it changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphweave.core.settings import override
from graphweave.runtime import compiler_answers, toolchain
from tests import fresh_process

pytestmark = pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")

COMPILER = shutil.which("g++") or shutil.which("clang++") or ""


class Asked:
    """A compiler in a folder of its own, and a count of the questions about it."""

    def __init__(self, folder: Path) -> None:
        self.path, self.times = folder / "g++", 0
        self.path.write_bytes(b"\x7fELF, as far as anybody looks")
        self.path.chmod(0o755)

    def __call__(self, *asked: str) -> tuple[str, tuple[str, ...]] | None:
        return compiler_answers.answer_of((str(self.path),), asked, self._ask)

    def _ask(self) -> tuple[str, tuple[str, ...]]:
        self.times += 1
        return "g++ 99", ("-O3", "-march=native")


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[Asked]:
    with override(cache_dir=tmp_path / "cache"):
        yield Asked(tmp_path)


def answer_file() -> Path:
    (path,) = compiler_answers.directory().glob("*.json")
    return path


def test_a_question_is_asked_once(compiler: Asked) -> None:
    assert compiler("native") == compiler("native") == ("g++ 99", ("-O3", "-march=native"))
    assert compiler.times == 1
    compiler("x86-64")
    assert compiler.times == 2
    assert [p.name for p in compiler_answers.directory().iterdir() if p.suffix != ".json"] == []


@pytest.mark.parametrize("change", ["content", "time", "variable"])
def test_another_compiler_is_asked_again(change: str, compiler: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler("native")
    if change == "content":
        compiler.path.write_bytes(b"\x7fELF, of another release")
    elif change == "time":
        os.utime(compiler.path, (1, 1))
    else:
        monkeypatch.setenv("COMPILER_PATH", "/elsewhere")
    compiler("native")
    assert compiler.times == 2


@pytest.mark.parametrize("harm", ["cut short", "other flags", "no answer", "others may write"])
def test_a_file_that_is_not_as_we_wrote_it_is_not_used(harm: str, compiler: Asked) -> None:
    compiler("native")
    path = answer_file()
    whole = path.read_bytes()
    if harm == "cut short":
        path.write_bytes(whole[:-5])
    elif harm == "other flags":
        path.write_bytes(whole.replace(b"-O3", b"-O9"))
    elif harm == "no answer":
        path.write_bytes(b"")
    else:
        path.chmod(0o622)
    assert compiler("native") == ("g++ 99", ("-O3", "-march=native"))
    assert compiler.times == 2


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes say nothing")
def test_a_folder_in_which_others_may_write_is_left_alone(compiler: Asked) -> None:
    folder = compiler_answers.directory()
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    compiler("native"), compiler("native")
    assert compiler.times == 2
    assert not list(folder.iterdir())


@pytest.mark.parametrize("kind", ["a script", "a link to another program"])
def test_what_only_starts_a_compiler_is_asked_each_time(kind: str, compiler: Asked, tmp_path: Path) -> None:
    compiler.path.unlink()
    if kind == "a script":
        compiler.path.write_text("#!/bin/sh\nexec true\n")
        compiler.path.chmod(0o755)
    else:
        (tmp_path / "ccache").write_bytes(b"\x7fELF")
        (tmp_path / "ccache").chmod(0o755)
        compiler.path.symlink_to(tmp_path / "ccache")
    compiler("native"), compiler("native")
    assert compiler.times == 2


PROGRAM = """
import sys
from collections.abc import Iterator
started = []
sys.addaudithook(lambda event, given: started.append(given[1]) if event == "subprocess.Popen" else None)
from graphweave.runtime import kernel_cache
kernel_cache.load('extern "C" int answer() { return 42; }', "answer")
print(len(started))
"""


def test_a_process_whose_kernels_are_on_disk_starts_no_compiler(tmp_path: Path) -> None:
    environment = {**os.environ, "GRAPHWEAVE_CACHE_DIR": str(tmp_path), "GRAPHWEAVE_CXX": COMPILER}
    started = [int(fresh_process.checked(PROGRAM, environment)) for _ in range(2)]
    assert started[0] >= 4
    assert started[1] == 0
