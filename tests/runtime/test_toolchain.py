"""Finding a compiler and its flags, and the chunks of kernels without edges."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from graphweave.core.errors import CompileError, ToolchainError
from graphweave.core.settings import override
from graphweave.runtime import kernel_cache, toolchain
from graphweave.runtime.launch import MAX_CHUNKS, Work, uniform_chunks
from tests.sanitizer_support import sanitized


@pytest.mark.parametrize("arch", ["x86-64-v3", "x86-64"])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of x86-64")
def test_kernels_are_compiled_for_the_processor_that_the_setting_names(arch: str) -> None:
    source = 'extern "C" int wide() {\n#ifdef __AVX2__\nreturn 2;\n#else\nreturn 0;\n#endif\n}\n'
    with override(arch=arch):
        flags = [flag.replace("_", "-") for flag in toolchain.toolchain().flags]  # zig writes x86_64_v3
        assert f"-march={arch}" in flags
        assert kernel_cache.library(source).wide() == (2 if arch == "x86-64-v3" else 0)


def test_a_processor_that_the_compiler_does_not_know_is_refused() -> None:
    with override(arch="x86-64-v99"), pytest.raises(ToolchainError, match=r"GRAPHWEAVE_ARCH .*'x86-64-v99'"):
        toolchain.toolchain()


def test_flags_keep_floating_point_honest() -> None:
    flags = toolchain.toolchain().flags
    assert "-ffast-math" not in flags
    assert {"-O3", "-std=c++17", "-fPIC"} <= set(flags)
    assert toolchain.available() == toolchain.toolchain().version


def test_no_compiler_is_reported_with_what_was_tried() -> None:
    with override(cxx="/nonexistent/c++"):
        assert toolchain.available() is None
        with pytest.raises(ToolchainError, match=r"/nonexistent/c\+\+: not found.*GRAPHWEAVE_CXX"):
            toolchain.toolchain()
    with override(cxx="false"), pytest.raises(ToolchainError, match="false: does not accept"):
        toolchain.toolchain()


def test_flags_the_compiler_refuses_are_left_out(tmp_path: Path) -> None:
    picky = tmp_path / "picky"
    picky.write_text('#!/bin/sh\ncase "$*" in *-march=native*) exit 1;; esac\nexec g++ "$@"\n')
    picky.chmod(0o755)
    with override(cxx=str(picky)):
        tools = toolchain.toolchain()
    assert "-march=native" not in tools.flags
    assert "-fno-math-errno" in tools.flags


def test_the_compilers_words_reach_the_error(tmp_path: Path) -> None:
    source = tmp_path / "bad.cpp"
    source.write_text("int f() { return undeclared_thing; }\n")
    with pytest.raises(CompileError, match="undeclared_thing") as caught:
        toolchain.compile_shared(source, tmp_path / "bad.so")
    assert str(source) in str(caught.value)


@pytest.mark.sanitize
def test_sanitized_kernels_stop_at_a_bad_access(tmp_path: Path) -> None:
    program = (
        "import ctypes\n"
        "from pathlib import Path\n"
        "from graphweave.runtime.toolchain import compile_shared\n"
        f"source = Path({str(tmp_path)!r}) / 'k.cpp'\n"
        'source.write_text(\'#include <cstdlib>\\nextern "C" int peek(int i) {'
        " int* p = (int*)malloc(8); p[0] = i; int v = p[i]; free(p); return v; }')\n"
        "compile_shared(source, source.with_suffix('.so'))\n"
        "peek = ctypes.CDLL(str(source.with_suffix('.so'))).peek\n"
        "assert peek(0) == 0\n"
        "peek(2)\n"
    )
    done = sanitized(program, "address")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.parametrize("rows", [0, 1, 2, 31, 1000, 169_343, 50_000_000])
@pytest.mark.parametrize(
    "work", [Work(0), Work(), Work(33), Work(64, tile=64), Work(448, 1 << 17, tile=64), Work(100_000, tile=16)]
)
def test_uniform_chunks_cover_the_rows(rows: int, work: Work) -> None:
    chunks = uniform_chunks(rows, work)
    assert chunks.dtype == torch.int64
    assert chunks[0] == 0
    assert chunks[-1] == rows
    assert (chunks[1:-1] % work.tile == 0).all()
    sizes = chunks.diff()
    assert 1 <= sizes.numel() <= MAX_CHUNKS
    assert sizes.numel() == 1 or sizes.max() - sizes[:-1].min() <= work.tile
    if rows > 0:
        assert sizes.min() >= 1
    if sizes.numel() > 1:
        assert (int(sizes.max()) + work.tile) * max(work.row, 1) >= work.chunk
    assert uniform_chunks(rows, work) is chunks
