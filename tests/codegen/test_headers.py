"""The headers of kernels: which there are, where the compiler finds them, and their precompiled form."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest
import torch

import graphweave
from graphweave.analysis.facts import Facts
from graphweave.codegen.cpp.native import Header, includes
from graphweave.compiler.plan import PlanName, make_plan
from graphweave.core.options import Target, options_for
from graphweave.core.settings import override
from graphweave.core.types import DType, Fold
from graphweave.execute.dump import dump_plan
from graphweave.runtime import headers, kernel_cache, sources, toolchain
from graphweave.runtime.toolchain import Toolchain
from tests.programs.examples import moving
from tests.sanitizer_support import NATIVE

SMALL = '#include <graphweave/base.h>\nextern "C" int answer() { return 42; }\n'
TEXT = "#include <graphweave/vectors.h>\n" + SMALL

needs_precompiled = pytest.mark.skipif(
    toolchain.available() is None or not toolchain.toolchain().precompiles, reason="needs g++ or zig"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(headers, "_refused", set())
    monkeypatch.setattr(headers, "_checked", set())
    with override(cache_dir=tmp_path, sanitize=()):
        kernel_cache.forget()
        yield tmp_path / "kernels"
        kernel_cache.forget()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Every command of the compiler, as it is run."""
    toolchain.toolchain()  # the compiler has been probed before
    seen: list[tuple[str, ...]] = []
    run = toolchain.run_compiler

    def noted(command: tuple[str, ...], text: str = "", what: str = "") -> object:
        seen.append(command)
        return run(command, text)

    monkeypatch.setattr(toolchain, "run_compiler", noted)
    monkeypatch.setattr(headers, "run_compiler", noted)
    return seen


def answer(text: str) -> int:
    return int(ctypes.CDLL(str(kernel_cache.shared_object(text, toolchain.toolchain()))).answer())


def included_from(flags: tuple[str, ...]) -> Path:
    return Path(flags[flags.index("-I") + 1])


# ---------------------------------------------------------------- the list of headers


def test_what_generated_text_may_include_is_there() -> None:
    assert {f"{name}.h" for name in get_args(Header)} <= set(sources.headers())
    used = sources.included(includes(get_args(Header)) + sources.source("sampling.cpp"))
    assert used == set(sources.headers()), "a header that nothing includes"


def test_another_header_is_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernel_cache.key_of(TEXT, toolchain.toolchain()), sources.digest()
    changed = {**sources.headers(), "vectors.h": sources.headers()["vectors.h"] + b"\n"}
    monkeypatch.setattr(sources, "headers", lambda: changed)
    monkeypatch.setattr(sources, "digest", sources.digest.__wrapped__)
    after = kernel_cache.key_of(TEXT, toolchain.toolchain()), sources.digest()
    assert before[0] != after[0] and before[1] != after[1]


# ---------------------------------------------------------------- copies of headers


def test_a_copy_of_the_headers_lies_beside_the_kernels(cache: Path) -> None:
    assert answer(SMALL) == 42
    (root,) = (path for path in (cache / "headers").iterdir() if path.is_dir())
    assert {p.name: p.read_bytes() for p in (root / "graphweave").iterdir()} == sources.headers()
    assert not list(root.glob("build-*"))


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_copy_is_written_again(cache: Path, damage: str) -> None:
    broken = included_from(headers.include_flags(cache)) / "graphweave" / "base.h"
    if damage == "changed":
        broken.write_text("#error\n")
    else:
        broken.unlink()
    assert answer(SMALL) == 42
    assert broken.read_bytes() == sources.headers()["base.h"]


def test_headers_of_other_versions_are_deleted_when_they_are_no_longer_used(cache: Path) -> None:
    old, recent = cache / "headers" / ("0" * 16), cache / "headers" / ("1" * 16)
    foreign = cache / "headers" / "of somebody else"
    for folder in (old, recent, foreign):
        (folder / "graphweave").mkdir(parents=True)
    for folder in (old, foreign):
        os.utime(folder, (time.time() - 30 * 24 * 3600,) * 2)
    mine = included_from(headers.include_flags(cache))
    assert mine.exists() and recent.exists() and not old.exists()
    assert foreign.exists()


def test_a_text_without_our_headers_is_compiled_as_it_stands(cache: Path, commands: list[tuple[str, ...]]) -> None:
    assert answer(SMALL.replace("graphweave/base.h", "cstdint")) == 42
    assert not [c for c in commands if "-I" in c or "-include" in c or "c++-header" in c]


def test_all_native_files_are_in_the_package() -> None:
    assert {path.name for path in (NATIVE / "graphweave").glob("*.h")} == set(sources.headers())
    assert sources.source("formats.cpp") == (NATIVE / "formats.cpp").read_text()


def test_a_dumped_kernel_compiles_where_it_lies(tmp_path: Path) -> None:
    x, edge_index = torch.randn(5, 3), torch.tensor([[0, 1, 1], [4, 4, 0]])
    with override(dump=tmp_path / "dump"):
        graphweave.compile(lambda x, e: torch.zeros_like(x).index_add(0, e[1], torch.exp(x[e[0]])))(x, edge_index)
    (text,) = (tmp_path / "dump").glob("*.cpp")
    assert "<graphweave/elementary.h>" in text.read_text()
    built = str(tmp_path / "built.o")
    command = (*toolchain.toolchain().command, "-std=c++17", "-c", f"-I{text.parent}", str(text), "-o", built)
    done = toolchain.run_compiler(command)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("target", "suffixes"), [("cpp", ["cpp", "py"]), ("triton", ["py", "py"])])
def test_a_dumped_kernel_is_named_by_its_language(tmp_path: Path, target: Target, suffixes: list[str]) -> None:
    with override(dump=tmp_path / "dump"):
        dump_plan(
            make_plan(PlanName("test"), Facts(moving((3,), DType.i64, Fold.sum, 0.0)), options_for(target), {}),
            "wrapper",
        )
    files = sorted((tmp_path / "dump").glob("*_*"))
    assert [f.name.rpartition(".")[2] for f in files if f.suffix in (".cpp", ".py")] == suffixes
    assert files[-1].read_text() == "wrapper"
    kernel = next(f for f in files if f.suffix == f".{suffixes[0]}").read_text()
    assert ("@triton.jit" in kernel) is (target == "triton")


# ---------------------------------------------------------------- precompiled headers


def made(commands: list[tuple[str, ...]]) -> int:
    """How often the precompiled header was made."""
    return sum("c++-header" in command for command in commands)


@needs_precompiled
def test_a_precompiled_header_is_made_after_some_runs_without_it_and_then_used_by_all(
    cache: Path, commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "_RUNS_WORTH_A_HEADER", 2)
    tools = toolchain.toolchain()
    for number in (42, 43):
        assert not headers.is_due(tools, cache)
        assert answer(TEXT.replace("42", str(number))) == number
    assert answer(SMALL) == 42  # does not read <immintrin.h>
    assert headers.is_due(tools, cache) and not made(commands) and not [c for c in commands if "-include" in c]
    headers.precompile(tools, cache)
    assert made(commands) == 1 and not headers.is_due(tools, cache)
    for text in (TEXT.replace("42", "44"), SMALL.replace("42", "45")):
        assert answer(text) in (44, 45)
        command = next(c for c in reversed(commands) if "-shared" not in c or "-include" in c)  # zig links last
        header = Path(command[command.index("-include") + 1])
        assert header.with_name("kernels.h.gch").exists() and cache in header.parents


@needs_precompiled
def test_a_damaged_precompiled_header_is_not_used_and_made_again(
    cache: Path, commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "_RUNS_WORTH_A_HEADER", 1)
    tools = toolchain.toolchain()
    headers.precompile(tools, cache)
    flags = headers.flags_for(TEXT, tools, cache)
    compiled = Path(flags[flags.index("-include") + 1]).with_name("kernels.h.gch")
    content = bytearray(compiled.read_bytes())
    compiled.write_bytes(content[: len(content) // 2])
    headers._checked.clear()  # as in a new process
    assert answer(TEXT) == 42 and "-include" not in commands[-1]
    assert headers.is_due(tools, cache)
    headers.precompile(tools, cache)
    assert headers.flags_for(TEXT, tools, cache) == flags and made(commands) == 2


@needs_precompiled
def test_who_makes_the_precompiled_header_at_once_makes_it_once(cache: Path, commands: list[tuple[str, ...]]) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: headers.precompile(toolchain.toolchain(), cache), range(3)))
    assert made(commands) == 1


@needs_precompiled
def test_without_a_precompiled_header_kernels_are_compiled_all_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "_RUNS_WORTH_A_HEADER", 1)
    tools = toolchain.toolchain()
    refusing = Toolchain((*tools.command, "-no-such-flag"), tools.version, tools.flags, tools.cpu)
    assert headers.flags_for(TEXT, refusing, cache) == headers.include_flags(cache)
    assert headers.is_due(refusing, cache)
    headers.precompile(refusing, cache)
    assert not headers.is_due(refusing, cache), "it is tried once"
    assert headers.flags_for(TEXT, refusing, cache) == headers.include_flags(cache)
    assert answer(TEXT) == 42


def test_sanitized_kernels_and_clang_read_the_headers_themselves(cache: Path) -> None:
    tools = toolchain.toolchain()
    sanitized = Toolchain(tools.command, tools.version, (*tools.flags, "-fsanitize=address"), tools.cpu)
    clang = Toolchain(("clang++",), "Debian clang version 14", tools.flags, tools.cpu)
    for other in (sanitized, clang):
        assert headers.flags_for(TEXT, other, cache) == headers.include_flags(cache)
