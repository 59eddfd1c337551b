"""The compiler of the package ziglang: it is found where there is no other one, and compiles and links in two steps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from graphweave.core.errors import ToolchainError
from graphweave.core.settings import override
from graphweave.runtime import kernel_cache, toolchain, zig

TEXT = 'extern "C" int answer() { return 42; }\n'

# Leaves out the flags that only zig knows, and writes down each run with the folders of its caches.
STAND_IN = """#!/bin/sh
echo "$* | $ZIG_GLOBAL_CACHE_DIR | $ZIG_LOCAL_CACHE_DIR" >> "{log}"
subcommand=$1; shift
case "$subcommand" in
version) echo 0.99; exit;;
cc) [ -e "{log}.refuse" ] && {{ echo "undefined symbol" >&2; exit 1; }};;
esac
for flag in "$@"; do
  shift
  if [ -n "$skip" ]; then skip=; continue; fi
  case "$flag" in
  -target|-Xclang) skip=1;;
  *) set -- "$@" "$flag";;
  esac
done
PATH=/usr/bin:/bin exec "{gcc}" "$@"
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the runs of a stand-in for ziglang, on a machine with no other compiler."""
    gcc = shutil.which("g++")
    if gcc is None:
        pytest.skip("the stand-in runs g++")
    package, nothing, log = tmp_path / "site" / "ziglang", tmp_path / "bin", tmp_path / "runs"
    package.mkdir(parents=True)
    nothing.mkdir()
    (package / "__init__.py").touch()
    (package / "zig").write_text(STAND_IN.format(log=log, gcc=gcc))
    (package / "zig").chmod(0o755)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PATH", str(nothing))
    toolchain._find.cache_clear()
    with override(cxx=None, cache_dir=tmp_path / "cache", sanitize=()):
        yield log
    toolchain._find.cache_clear()


def last(log: Path) -> tuple[list[str], Path, Path]:
    """The words of the last run, and the folders of zig's caches."""
    words, *folders = log.read_text().splitlines()[-1].split(" | ")
    return words.split(), Path(folders[0]), Path(folders[1])


def test_the_package_is_used_where_there_is_no_other_compiler(runs: Path, tmp_path: Path) -> None:
    assert kernel_cache.library(TEXT).answer() == 42
    tools = toolchain.toolchain()
    assert tools.command == (str(tmp_path / "site" / "ziglang" / "zig"), "c++") and tools.version.endswith("zig 0.99")
    words, kept, scratch = last(runs)
    assert words[0] == "cc" and "-shared" in words and any("libstdc++.so" in word for word in words)
    assert kept == scratch and not scratch.exists()
    assert not list(tmp_path.rglob("*.o")) and not (tmp_path / "cache" / "zig").exists()


def test_other_compilers_come_first(runs: Path) -> None:
    assert [command[0] for command in toolchain._candidates(None)[:2]] == ["g++", "clang++"]
    assert zig.is_zig(toolchain._candidates(None)[2])
    assert toolchain._candidates("icpx -O1") == (("icpx", "-O1"),)
    assert not runs.exists()


def test_what_needs_a_library_of_zigs_own_is_linked_in_zigs_way(runs: Path, tmp_path: Path) -> None:
    runs.with_name("runs.refuse").touch()
    assert kernel_cache.library(TEXT).answer() == 42
    words, kept, scratch = last(runs)
    assert words[0] == "c++" and "-shared" in words and "-nostdlib" not in words
    assert kept == tmp_path / "cache" / "zig" and kept.is_dir() and not scratch.exists()


def test_sanitizers_are_refused(runs: Path) -> None:
    with override(sanitize=("address",)), pytest.raises(ToolchainError, match=r"zig c\+\+: has no sanitizers"):
        toolchain.toolchain()
    assert not runs.exists()


@pytest.mark.parametrize(
    ("command", "linker"),
    [
        ("zig c++", "zig cc"),
        ("/opt/zig c++ -g", "/opt/zig cc"),
        ("ccache zig c++", "ccache zig cc"),
        ("python -m ziglang c++", "python -m ziglang cc"),
        ("g++ -I/opt/zig -std=c++17", None),
        ("c++", None),
    ],
)
def test_commands_that_run_zig_are_known(command: str, linker: str | None) -> None:
    assert zig.is_zig(command.split()) == (linker is not None)
    if linker is not None:
        assert " ".join(zig.with_subcommand(command.split(), "cc")) == linker


PROGRAM = """
import shutil
import torch
import graphweave
from graphweave.runtime import threads, toolchain

assert not any(map(shutil.which, ("g++", "clang++", "gcc", "cc", "c++", "make", "ld", "as")))
torch.set_num_threads(2)
torch.manual_seed(0)


def attend(x, edge_index, weight):
    src, dst = edge_index
    score = torch.exp(torch.tanh(x[src] @ weight + x[dst] @ weight))
    total = torch.zeros_like(x).index_add(0, dst, score[:, None] * x[src])
    return torch.nn.functional.softplus(total / torch.zeros(len(x), 1, dtype=x.dtype).index_add(0, dst, score[:, None]))


for dtype in (torch.float32, torch.float64, torch.bfloat16):
    x = torch.randn(300, 33, dtype=dtype)
    weight = torch.randn(33, dtype=dtype) / 6
    edge_index = torch.cat([torch.randint(300, (2, 3000)), torch.arange(300).expand(2, 300)], 1)
    results = []
    for call, given in ((graphweave.compile(attend), x), (attend, x.double())):
        leaf, factor = given.clone().requires_grad_(), weight.detach().to(given.dtype, copy=True).requires_grad_()
        result = call(leaf, edge_index, factor)
        result.square().sum().backward()
        results.append([value.double() for value in (result, leaf.grad, factor.grad)])
    bound = {torch.float32: 1e-4, torch.float64: 1e-11, torch.bfloat16: 0.1}[dtype]
    for own, exact in zip(*results):
        assert (own - exact).norm() <= bound * exact.norm(), (dtype, (own - exact).norm() / exact.norm())
counts = graphweave.counters()
assert counts["kernel_launches"] > 0 and counts["eager_fallbacks"] == 0, counts
assert threads.find_pool() is not None

x, weight = torch.randn(300, 33), torch.randn(33) / 6
library = graphweave.export(attend, (x, edge_index, weight), "exported").load()
torch.testing.assert_close(library(x, edge_index, weight)[0], attend(x, edge_index, weight), rtol=1e-4, atol=1e-5)
at = torch.rand(200, 3, dtype=torch.float64)
distance = (torch.cdist(at, at) < 0.3).nonzero().t()
assert torch.equal(graphweave.points.radius(at, at, 0.3), distance)
print(toolchain.toolchain().version)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed")
def test_a_bare_environment_compiles_with_the_package_alone(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    (site,) = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    found = find_spec("ziglang")
    assert found is not None and found.submodule_search_locations
    package, root = Path(found.submodule_search_locations[0]), Path(__file__).parents[2]
    folders = (root, package.parent, sysconfig.get_path("purelib"))
    (site / "all.pth").write_text("".join(f"{folder}\n" for folder in folders))
    kept = {name: value for name, value in os.environ.items() if name not in ("GRAPHWEAVE_CXX", "CXX", "PYTHONPATH")}
    python = tmp_path / "bare" / "bin" / "python"
    environment = {**kept, "PATH": str(python.parent), "GRAPHWEAVE_CACHE_DIR": str(tmp_path / "cache")}
    run = [str(python), "-c", PROGRAM]
    done = subprocess.run(run, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "zig" in done.stdout
    doctor = [str(python), "-m", "graphweave.cli.main", "doctor"]
    done = subprocess.run(doctor, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "zig c++" in done.stdout, done.stdout + done.stderr
