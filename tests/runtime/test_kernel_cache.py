"""The disk cache of kernels under damage, concurrency, bad directories and a byte bound."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import graphweave
from graphweave import extend
from graphweave.core import own_folders
from graphweave.core.counters import counters, reset_counters
from graphweave.core.errors import CacheError, CompileError
from graphweave.core.settings import override
from graphweave.runtime import entries, kernel_cache
from graphweave.runtime.launch import Work, uniform_chunks
from graphweave.runtime.toolchain import toolchain
from tests import extend_operators, patience  # noqa: F401  # the first defines operators


def text_adding(n: int) -> str:
    return (
        "#include <cstdint>\n"
        'extern "C" int32_t add(void* const* ptrs, const int64_t* sizes, const int64_t*, int64_t, int32_t) {\n'
        f"    static_cast<int64_t*>(ptrs[0])[0] = sizes[0] + {n};\n"
        "    return 0;\n"
        "}\n"
    )


def run(n: int) -> int:
    out = torch.zeros(1, dtype=torch.int64)
    kernel_cache.load(text_adding(n), "add")([out.data_ptr()], [1000], uniform_chunks(1, Work()), 1)
    return int(out)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with override(cache_dir=tmp_path):
        kernel_cache.forget()
        reset_counters()
        yield tmp_path / "kernels"
        kernel_cache.forget()


def built(folder: Path, n: int) -> Path:
    return folder / f"{kernel_cache.key_of(text_adding(n), toolchain())}.so"


def test_built_once_then_found_in_memory_then_on_disk(cache: Path) -> None:
    assert run(1) == 1001
    assert run(1) == 1001
    assert (counters()["kernel_builds"], counters()["kernel_cache_hits"]) == (1, 0)
    kernel_cache.forget()
    assert run(1) == 1001
    assert (counters()["kernel_builds"], counters()["kernel_cache_hits"]) == (1, 1)
    assert counters()["kernel_launches"] == 3
    assert built(cache, 1).with_suffix(".cpp").read_text() == text_adding(1)
    assert not list(cache.glob("build-*"))


def test_another_text_or_flag_is_another_key(cache: Path) -> None:
    keys = {kernel_cache.key_of(text_adding(n), toolchain()) for n in (1, 2)}
    with override(sanitize=("undefined",)):
        keys.add(kernel_cache.key_of(text_adding(1), toolchain()))
    assert len(keys) == 3


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "digest", "no digest", "garbage digest"])
def test_damage_is_found_before_loading(cache: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    # Built but not yet loaded: dlopen would recognise a path that it has loaded before.
    library = kernel_cache.shared_object(text_adding(100 + len(damage)), toolchain())
    data = bytearray(library.read_bytes())
    match damage:
        case "truncate":
            library.write_bytes(data[: len(data) // 2])
        case "empty":
            library.write_bytes(b"")
        case "flip":
            data[len(data) // 3] ^= 0x10
            library.write_bytes(data)
        case "digest":
            library.with_suffix(".sha256").write_text("0" * 64)
        case "no digest":
            library.with_suffix(".sha256").unlink()
        case "garbage digest":
            library.with_suffix(".sha256").write_bytes(b"\xff\xfe\x00")
    with caplog.at_level(logging.WARNING):
        assert run(100 + len(damage)) == 1100 + len(damage)
    assert (counters()["kernel_builds"], counters()["kernel_damaged"]) == (2, 1)
    assert "damaged" in caplog.text
    assert kernel_cache.shared_object(text_adding(100 + len(damage)), toolchain()) == library
    assert counters()["kernel_cache_hits"] == 1


def environment(cache: Path) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "GRAPHWEAVE_CACHE_DIR": str(cache.parent), "PYTHONPATH": path}


def test_processes_racing_for_one_kernel_build_it_once(cache: Path) -> None:
    program = (
        "import sys, tests.runtime.test_kernel_cache as t; from graphweave.core.counters import counters\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "assert t.run(7) == 1007\n"
        "print(counters()['kernel_builds'])\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment(cache), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    answers = [patience.outputs(racer)[0].strip() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert sorted(answers) == ["0", "0", "1"]


def test_an_unusable_directory_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")  # stops even root, who ignores permission bits
    kernel_cache.forget()
    with override(cache_dir=blocker), caplog.at_level(logging.WARNING):
        assert run(11) == 1011
        assert run(12) == 1012
    kernel_cache.forget()
    assert caplog.text.count("cannot keep kernels in") == 1
    assert blocker.read_text() == "not a directory"


def test_no_directory_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setattr(own_folders, "_temporary", (os.getpid(), blocker))
    with override(cache_dir=blocker), pytest.raises(CacheError, match=r"writable directory.*GRAPHWEAVE_CACHE_DIR"):
        run(13)


def test_least_recently_used_kernels_are_evicted(cache: Path) -> None:
    for n in (21, 22, 23):
        run(n)
        os.utime(built(cache, n), (n, n))
    kernel_cache.forget()
    run(21)  # used again, so 22 is now the oldest
    sizes = sum(built(cache, n).with_suffix(s).stat().st_size for n in (21, 23) for s in (".so", ".cpp"))
    kernel_cache.evict(cache, sizes)
    assert [built(cache, n).exists() for n in (21, 22, 23)] == [True, False, True]
    assert not list(cache.glob(f"{built(cache, 22).stem}*"))
    kernel_cache.evict(cache, 0, keep=[built(cache, 21)])
    assert [path.stem for path in cache.glob("*.so")] == [built(cache, 21).stem]


def test_the_folder_is_looked_through_as_it_fills(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    evict = entries.Kind.evict
    monkeypatch.setattr(
        entries.Kind, "evict", lambda *args, **kwargs: looks.append(evict(*args, **kwargs)) or looks[-1]
    )
    for n in (51, 52, 53):
        run(n)
    assert len(looks) == 1
    with override(cache_bytes=kernel_cache.contents(cache).bytes):
        for n in (54, 55):
            run(n)
            assert kernel_cache.contents(cache).bytes <= looks[0] * 3.2
    assert not built(cache, 51).exists()


def test_a_bound_smaller_than_one_kernel_still_runs(cache: Path) -> None:
    with override(cache_bytes=0):
        assert run(31) == 1031
        assert run(32) == 1032
    assert len(list(cache.glob("*.so"))) == 1


def test_text_that_does_not_compile_keeps_its_source(cache: Path) -> None:
    with pytest.raises(CompileError) as caught:
        kernel_cache.load("not C++\n", "nothing")
    (source,) = cache.glob("*.cpp")
    assert str(source) in str(caught.value)
    assert source.read_text() == "not C++\n"
    assert not list(cache.glob("*.so"))


def test_a_missing_symbol_is_an_error(cache: Path) -> None:
    with pytest.raises(AttributeError, match="subtract"):
        kernel_cache.load(text_adding(1), "subtract")


# ---------------------------------------------------------------- texts that are compiled together


def text_of(n: int) -> str:
    return f'#include <cstdint>\nextern "C" int32_t number_{n}() {{ return {n}; }}\n'


def numbers(*wanted: int) -> list[int]:
    libraries = kernel_cache.libraries([text_of(n) for n in wanted])
    return [library[f"number_{n}"]() for n, library in zip(wanted, libraries, strict=True)]


def library_of(folder: Path, n: int) -> Path:
    return folder / f"{kernel_cache.key_of(text_of(n), toolchain())}.so"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that the compiler was given, in order."""
    seen: list[str] = []
    compile_shared = kernel_cache.compile_shared

    def noted(source: Path, *args: object) -> None:
        seen.append(source.name)
        compile_shared(source, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(kernel_cache, "compile_shared", noted)
    return seen


def test_texts_are_compiled_together_and_found_one_by_one(cache: Path, runs: list[str]) -> None:
    assert numbers(1, 2, 3, 2) == [1, 2, 3, 2]
    assert len(runs) == 1 and (counters()["kernel_builds"], counters()["kernel_cache_hits"]) == (3, 0)
    files = [library_of(cache, n) for n in (1, 2, 3)]
    assert len({file.stat().st_ino for file in files}) == 1
    assert [file.with_suffix(".cpp").read_text() for file in files] == [text_of(n) for n in (1, 2, 3)]
    for n in (3, 1):
        kernel_cache.forget()
        assert numbers(n) == [n]
    assert len(runs) == 1 and counters()["kernel_cache_hits"] == 2 and not list(cache.glob("build-*"))


def test_only_what_is_missing_or_damaged_is_compiled(cache: Path, runs: list[str]) -> None:
    numbers(11)
    kernel_cache.forget()
    assert numbers(11, 12, 13) == [11, 12, 13]
    kernel_cache.forget()
    library_of(cache, 12).with_suffix(".sha256").write_text("0" * 64)
    assert numbers(13, 12, 11) == [13, 12, 11]
    assert runs == [f"{library_of(cache, 11).stem}.cpp", "together.cpp", f"{library_of(cache, 12).stem}.cpp"]
    assert (counters()["kernel_builds"], counters()["kernel_damaged"]) == (4, 1)


def test_a_text_that_the_compiler_refuses_is_named_and_the_others_can_be_compiled(cache: Path, runs: list[str]) -> None:
    wrong = "not C++\n"
    with pytest.raises(CompileError) as caught:
        kernel_cache.libraries([text_of(21), wrong, text_of(22)])
    assert f"kept at {cache / kernel_cache.key_of(wrong, toolchain())}.cpp" in str(caught.value)
    assert runs[0] == "together.cpp" and not list(cache.glob("build-*"))
    assert numbers(21, 22) == [21, 22]


def test_texts_that_cannot_be_one_text_are_compiled_by_themselves(cache: Path, runs: list[str]) -> None:
    texts = [f'static int part() {{ return {n}; }}\nextern "C" int whole() {{ return part(); }}\n' for n in (1, 2)]
    assert [library.whole() for library in kernel_cache.libraries(texts)] == [1, 2]
    assert len(runs) == 3


def test_the_bytes_of_texts_that_were_compiled_together_count_once(cache: Path) -> None:
    numbers(31, 32, 33, 34)
    once = library_of(cache, 31).stat().st_size + sum(len(text_of(n)) for n in (31, 32, 33, 34))
    assert once - 4 <= kernel_cache.contents(cache).bytes <= once
    with override(cache_bytes=0):  # what is needed now stays
        kernel_cache.forget()
        assert numbers(34, 35, 36) == [34, 35, 36]
    assert {path.stem for path in cache.glob("*.so")} == {library_of(cache, n).stem for n in (34, 35, 36)}


def test_where_files_have_one_name_only_each_text_has_a_copy(
    cache: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(entries.os, "link", refuse)
    assert numbers(41, 42) == [41, 42]
    kernel_cache.forget()
    assert numbers(42) == [42] and len(runs) == 1
    assert library_of(cache, 41).stat().st_ino != library_of(cache, 42).stat().st_ino


def test_processes_that_need_some_of_the_same_texts_do_not_wait_for_each_other_forever(cache: Path) -> None:
    program = (
        "import sys, tests.runtime.test_kernel_cache as t; from graphweave.core.counters import counters\n"
        "print('ready', flush=True); wanted = [*map(int, sys.stdin.readline().split())]\n"
        "assert t.numbers(*wanted) == wanted\n"
        "print(counters()['kernel_builds'])\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment(cache), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer, wanted in zip(racers, ("51 52", "52 53", "53 51"), strict=True):
        assert racer.stdin is not None
        racer.stdin.write(f"{wanted}\n")
        racer.stdin.flush()
    answers = [patience.outputs(racer)[0].strip() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert sum(map(int, answers)) == 3


@pytest.mark.usefixtures("fresh_compiler")
def test_kernels_with_one_declared_operator_are_compiled_together_whatever_its_bodies_were(
    cache: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator is declared anew between the two compilations, with another body."""
    given: list[str] = []
    libraries = kernel_cache.libraries

    def noted(texts: Sequence[str]) -> list[ctypes.CDLL]:
        given.extend(text for text in texts if "gw_op_gwtest__softsign" in text)
        return libraries(texts)

    x, src, dst = torch.randn(4, 3), torch.tensor([0, 1, 2]), torch.tensor([3, 3, 0])
    for body in ("x / (1 + gw_abs(x))", "x / (gw_abs(x) + 1)"):
        torch.compiler.reset()
        with extend.pointwise("gwtest::softsign", body), monkeypatch.context() as patch:
            patch.setattr(kernel_cache, "libraries", noted)
            graphweave.compile(lambda x: torch.ops.gwtest.softsign(torch.zeros_like(x).index_add(0, dst, x[src])))(x)
    assert len(set(given)) == 2
    kernel_cache.forget()
    runs.clear()
    with override(cache_dir=cache.parent / "another"):
        libraries(given)
    assert runs == ["together.cpp"]
