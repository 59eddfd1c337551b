"""The precompiled header of kernels: made once, used by every kernel, and no part of what a kernel is."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphweave.core.settings import override
from graphweave.runtime import headers, kernel_cache, toolchain
from graphweave.runtime.toolchain import Toolchain

TEXT = '#include <immintrin.h>\nextern "C" int answer() { return 42; }\n'

pytestmark = pytest.mark.skipif("clang" in (toolchain.available() or "clang"), reason="needs g++")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(headers, "_refused", set())
    with override(cache_dir=tmp_path, sanitize=()):
        kernel_cache.forget()
        yield tmp_path / "kernels"
        kernel_cache.forget()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Every command of the compiler, as it is run."""
    toolchain.toolchain()  # probed before
    seen: list[tuple[str, ...]] = []
    run = toolchain.run_compiler

    def noted(command: tuple[str, ...], text: str = "") -> object:
        seen.append(command)
        return run(command, text)

    monkeypatch.setattr(toolchain, "run_compiler", noted)
    monkeypatch.setattr(headers, "run_compiler", noted)
    return seen


def answer(text: str) -> int:
    return int(ctypes.CDLL(str(kernel_cache.shared_object(text, toolchain.toolchain()))).answer())


def test_headers_are_read_once_for_all_kernels(cache: Path, commands: list[tuple[str, ...]]) -> None:
    assert answer(TEXT) == 42
    assert answer(TEXT.replace("42", "43")) == 43
    made = [c for c in commands if "c++-header" in c]
    started = [c for c in commands if "-include" in c]
    assert len(made) == 1 and len(started) == 2
    header = Path(started[0][started[0].index("-include") + 1])
    assert header.with_name("kernels.h.gch").exists() and cache in header.parents


def test_a_text_without_the_large_header_is_compiled_as_it_stands(cache: Path, commands: list[tuple[str, ...]]) -> None:
    assert answer(TEXT.replace("immintrin.h", "cstdint")) == 42
    assert not [c for c in commands if "-include" in c or "c++-header" in c]


def test_without_a_precompiled_header_kernels_are_compiled_all_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = toolchain.toolchain()
    refusing = Toolchain((*tools.command, "-no-such-flag"), tools.version, tools.flags, tools.openmp, tools.cpu)
    assert headers.flags_for(TEXT, refusing, cache) == ()
    assert headers.flags_for(TEXT, refusing, cache) == ()
    assert answer(TEXT) == 42


def test_sanitized_kernels_and_clang_read_the_headers_themselves(cache: Path) -> None:
    tools = toolchain.toolchain()
    sanitized = Toolchain(tools.command, tools.version, (*tools.flags, "-fsanitize=address"), tools.openmp, tools.cpu)
    clang = Toolchain(("clang++",), "Debian clang version 14", tools.flags, tools.openmp, tools.cpu)
    assert headers.flags_for(TEXT, sanitized, cache) == headers.flags_for(TEXT, clang, cache) == ()
