"""`graphweave doctor`: what it finds on this machine, and on machines that lack something."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from graphweave.cli import machine, trial
from graphweave.cli.main import main
from graphweave.cli.trial import Trial
from graphweave.core.settings import GIB, override
from graphweave.runtime import kernel_cache, machine_facts, threads, toolchain, triton_kernel

needs_cxx = pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")
needs_triton = pytest.mark.skipif(triton_kernel.triton_version() is None, reason="Triton is not installed")

SECTIONS = {
    "versions", "missing", "compiler", "checks", "cpu", "cuda", "caches", "settings", "unknown_variables", "also_read",
    "placement", "advice",
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def small_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The report reads every kernel that is kept, and a developer keeps gigabytes."""
    with override(cache_dir=tmp_path_factory.mktemp("kernels")):
        yield


@pytest.fixture
def triton_works(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces Triton's trial, which takes seconds, by one that works. Returns the devices that it was asked for."""
    asked: list[str] = []

    def through_triton(device: str) -> Trial:
        asked.append(device)
        return Trial(1.0, None)

    monkeypatch.setattr(trial, "through_triton", through_triton)
    monkeypatch.setattr(triton_kernel, "triton_version", lambda: "3.9.0")
    return asked


def as_json(capsys: pytest.CaptureFixture[str], status: int = 0) -> dict[str, Any]:
    """The report that `graphweave doctor --json -` prints when it returns `status`."""
    assert main(["doctor", "--json", "-"]) == status
    found = json.loads(capsys.readouterr().out)
    assert set(found) == SECTIONS
    return found


def as_text(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    """The report for the reader, its spaces made one."""
    assert main(["doctor", *argv]) == status
    return " ".join(capsys.readouterr().out.split())


def setting(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in found["settings"] if row["name"] == name)


# ---------------------------------------------------------------- this machine


@needs_cxx
@pytest.mark.usefixtures("triton_works")
def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys)
    tools = toolchain.toolchain()
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["triton"] == "3.9.0"
    assert found["compiler"]["version"] == tools.version
    assert found["compiler"]["flags"] == list(tools.flags)
    pool = threads.find_pool()
    assert found["compiler"]["openmp"] == (None if pool is None else str(pool.file))
    assert found["checks"]["cpp"]["works"] and found["checks"]["cpp"]["seconds"] > 0
    assert found["cpu"]["threads"] == torch.get_num_threads()
    assert found["cpu"]["cores"] == os.cpu_count() >= found["cpu"]["usable"] >= 1
    assert found["cpu"]["model"]
    assert found["cuda"]["built_with"] == torch.version.cuda
    assert len(found["cuda"]["devices"]) == torch.cuda.device_count()
    assert found["placement"]["cpu"]["runs"] == "cpp"
    assert found["advice"] is None


@needs_cxx
@pytest.mark.usefixtures("triton_works")
def test_for_the_reader_and_to_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    text = as_text(capsys, "--json", str(file))
    found = json.loads(file.read_text())
    assert set(found) == SECTIONS
    for words in (
        f"torch {torch.__version__}",
        f"version {found['compiler']['version']}",
        "cpp a small kernel compiles, runs and computes what it should",
        "formats at most",
        "GRAPHWEAVE_EAGER_KERNELS 1 default",
        "cpu tensors generated C++ kernels: a small kernel compiles, runs, and computes what it should",
    ):
        assert words in text


@needs_cxx
@pytest.mark.usefixtures("triton_works")
def test_without_an_openmp_runtime(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_facts, "find_pool", lambda: None)
    assert "OpenMP runtime none: kernels run on one thread" in as_text(capsys)


@pytest.mark.usefixtures("triton_works")
def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--json", str(tmp_path / "absent" / "report.json")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--json must name a file that can be written" in captured.err


@needs_triton
def test_triton_computes_what_it_should() -> None:
    done = trial.through_triton("cuda" if torch.cuda.device_count() else "cpu")
    assert done.works, done.why
    assert done.seconds > 0


def test_triton_without_its_device_says_why() -> None:
    if torch.cuda.device_count():
        pytest.skip("there is a CUDA device")
    done = trial.through_triton("cuda")
    assert not done.works
    assert done.why


@needs_cxx
def test_a_kernel_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = trial.cpp.print_kernel(trial._KERNEL)
    assert "0.5f" in text
    monkeypatch.setattr(trial, "cpp", SimpleNamespace(print_kernel=lambda kernel: text.replace("0.5f", "0.25f")))
    done = trial.on_cpu()
    assert not done.works
    assert str(done.why).startswith("expected [[") and "(got [[" in str(done.why)


@needs_cxx
@pytest.mark.usefixtures("triton_works")
def test_a_kernel_that_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "cpp", SimpleNamespace(print_kernel=lambda kernel: "int f( {"))
    found = as_json(capsys, status=1)
    assert found["compiler"]["version"] == toolchain.toolchain().version
    assert "failed" in found["checks"]["cpp"]["why"]
    assert found["placement"]["cpu"]["runs"] == "eager"
    assert found["advice"].endswith("set GRAPHWEAVE_CXX to it.")


# ---------------------------------------------------------------- machines that lack something


def test_without_a_compiler(tmp_path: Path) -> None:
    """The test starts a process as a user does."""
    folder = {"GRAPHWEAVE_CACHE_DIR": str(tmp_path), "GRAPHWEAVE_CACHE": "typo"}
    environment = {**os.environ, **folder, "GRAPHWEAVE_CXX": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-m", "graphweave.cli.main", "doctor", "--json", "-"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert "/nonexistent: not found" in found["compiler"]["why"]
    assert found["checks"]["cpp"] == {
        "works": False, "seconds": found["checks"]["cpp"]["seconds"], "why": found["compiler"]["why"],
    }  # fmt: skip
    assert found["placement"]["cpu"]["runs"] == "eager"
    assert "no C++ compiler" in found["placement"]["cpu"]["why"]
    assert setting(found, "GRAPHWEAVE_CXX") == {
        "name": "GRAPHWEAVE_CXX", "value": "/nonexistent", "source": "environment: GRAPHWEAVE_CXX",
    }  # fmt: skip
    assert "GRAPHWEAVE_CACHE" in found["unknown_variables"]
    assert found["advice"] in done.stderr
    assert toolchain.REMEDY in found["advice"]


@pytest.mark.usefixtures("triton_works")
def test_without_a_compiler_for_the_reader(capsys: pytest.CaptureFixture[str]) -> None:
    with override(cxx="/nonexistent"):
        text = as_text(capsys, status=1)
    assert "none expected a C++17 compiler (got /nonexistent: not found)" in text
    assert "cpu tensors eager PyTorch: there is no C++ compiler" in text
    assert text.endswith(toolchain.REMEDY)


@needs_cxx
def test_without_triton(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernel, "triton_version", lambda: None)
    found = as_json(capsys)
    assert found["versions"]["triton"] == machine_facts.NOT_INSTALLED
    assert found["checks"]["triton"] == {"works": False, "seconds": None, "why": machine_facts.NOT_INSTALLED}
    assert found["placement"]["cpu"]["runs"] == "cpp"


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a CUDA device")
@pytest.mark.usefixtures("triton_works")
def test_without_a_cuda_device(capsys: pytest.CaptureFixture[str]) -> None:
    place = as_json(capsys, status=0 if toolchain.available() else 1)["placement"]["cuda"]
    assert place["runs"] == "nothing"
    assert ("finds no device" if torch.version.cuda else "built for the CPU only") in place["why"]


# ---------------------------------------------------------------- a machine with a GPU


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(name="Some GPU", total_memory=80 * GIB, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: made)


@needs_cxx
@pytest.mark.usefixtures("a_gpu")
def test_with_a_gpu(capsys: pytest.CaptureFixture[str], triton_works: list[str]) -> None:
    found = as_json(capsys)
    assert triton_works == ["cuda"]
    assert found["cuda"]["devices"] == [{"name": "Some GPU", "memory": 80 * GIB, "capability": "9.0"}]
    assert found["placement"]["cuda"]["runs"] == "triton"
    text = as_text(capsys)
    assert "cuda:0 Some GPU, 80.0 GiB, capability 9.0" in text
    assert "cuda tensors generated Triton kernels" in text


@pytest.mark.usefixtures("a_gpu")
def test_placement_follows_the_compiler_and_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    works, broken = Trial(1.0, None), Trial(1.0, "no driver")
    place = machine.placement(broken, broken)
    assert place["cuda"] == {"runs": "eager", "why": "a small kernel does not work: no driver"}
    if toolchain.available():
        assert place["cpu"]["runs"] == "eager"
        assert machine.placement(works, None)["cpu"]["runs"] == "cpp"
    monkeypatch.setattr("graphweave.frontends.dynamo.targets.triton_version", lambda: None)
    place = machine.placement(works, None)
    assert place["cuda"]["runs"] == "eager"
    assert "there is no Triton" in place["cuda"]["why"]


# ---------------------------------------------------------------- caches and settings

TEXT = 'extern "C" int answer() { return 42; }\n'


@needs_cxx
@pytest.mark.usefixtures("triton_works")
def test_a_damaged_kernel(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with override(cache_dir=tmp_path, cache_bytes=123456):
        empty = as_json(capsys)["caches"]
        built = kernel_cache.shared_object(TEXT, toolchain.toolchain())
        whole = as_json(capsys)["caches"]["kernels"]
        built.write_bytes(built.read_bytes()[:-1])
        found = as_json(capsys)["caches"]["kernels"]
        text = as_text(capsys)
    assert empty["kernels"] == {
        "directory": str(tmp_path / "kernels"), "bound": 123456, "entries": 0, "bytes": 0, "damaged": [], "why": None,
    }  # fmt: skip
    assert empty["triton_texts"]["directory"] == str(tmp_path / "triton")
    assert (whole["entries"], whole["damaged"]) == (1, [])
    assert whole["bytes"] == found["bytes"] + 1 > len(TEXT)
    assert found["damaged"] == [built.name]
    assert "1 damaged, which will be built again" in text


@needs_cxx
@pytest.mark.usefixtures("triton_works")
def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with override(cache_dir=tmp_path / "file"):
        found = as_json(capsys)
        text = as_text(capsys)
    for name in ("kernels", "compilations", "triton_texts"):
        assert found["caches"][name]["why"] == "cannot be written: Not a directory"
    assert found["checks"]["cpp"]["works"]
    assert "a temporary directory takes its place. Set GRAPHWEAVE_CACHE_DIR" in text


@needs_cxx
@pytest.mark.usefixtures("triton_works")
def test_folders_are_only_looked_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with override(cache_dir=tmp_path / "new"):
        found = as_json(capsys)["caches"]
    assert found["kernels"]["why"] is None and found["kernels"]["entries"] == 0
    assert not list(tmp_path.iterdir())


def test_bounds_come_from_the_settings() -> None:
    with override(cache_bytes=1, format_bytes=2, arena_bytes=3):
        found = machine.caches()
    assert {name: cache.get("bound") for name, cache in found.items()} == {
        "kernels": 1, "compilations": 1, "triton_texts": None, "formats": 2, "memo": 2, "arena": 3,
    }  # fmt: skip


def test_where_settings_come_from() -> None:
    environment = {"CXX": "c++", "GRAPHWEAVE_ARENA_BYTES": "2M", "GRAPHWEAVE_DUMP": "  "}
    with override(cxx="c++", arena_bytes=2 << 20, cache_bytes=7, dump=None, sanitize=(), logs="", cache_dir=None):
        rows = {row.pop("name"): row for row in machine.settings_in_force(environment)}
    assert rows["GRAPHWEAVE_CXX"] == {"value": "c++", "source": "environment: CXX"}
    assert rows["GRAPHWEAVE_ARENA_BYTES"] == {"value": 2 << 20, "source": "environment: GRAPHWEAVE_ARENA_BYTES"}
    assert rows["GRAPHWEAVE_CACHE_BYTES"] == {"value": 7, "source": "set by the program"}
    assert rows["GRAPHWEAVE_DUMP"] == {"value": None, "source": "default"}
    assert rows["GRAPHWEAVE_SANITIZE"] == {"value": [], "source": "default"}
    assert json.dumps(rows)


def test_names_that_are_no_settings() -> None:
    environment = {"GRAPHWEAVE_CACHE": "1", "GRAPHWEAVE_CXX": "g++", "CXX": "g++", "PATH": "/bin"}
    assert machine.unknown_variables(environment) == ["GRAPHWEAVE_CACHE"]
