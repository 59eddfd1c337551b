"""`graphweave.export` for other machines: libraries for named instruction sets, and for processors that are emulated.

Emulated programs need Debian's qemu-user. For aarch64 with glibc they also need libc6-arm64-cross.
"""

from __future__ import annotations

import ctypes
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import graphweave as gw
from bench.first_call_cases import build
from graphweave.core.errors import ExportError, ToolchainError
from graphweave.core.settings import override
from graphweave.exporting.dtypes import NUMBER_OF
from graphweave.exporting.library import LoadedModel
from graphweave.exporting.machines import LEVELS, machines_of
from graphweave.exporting.source import chooser_source, own
from graphweave.ir.message.aten import DTYPE_OF, TORCH_DTYPE
from graphweave.runtime import toolchain, zig
from tests.exporting.test_export import Model, example

RUNNER = Path(__file__).parents[1] / "native" / "run_model.c"
DTYPES = {NUMBER_OF[DTYPE_OF[dtype]]: dtype for dtype in TORCH_DTYPE.values() if DTYPE_OF[dtype] in NUMBER_OF}

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the levels are those of x86-64")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
needs_zig = pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed")


def needs(program: str) -> str:
    """The path of a program, without which the test is skipped."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


# ---------------------------------------------------------------- what the arguments mean


@pytest.mark.parametrize(
    ("target", "instruction_set", "meant"),
    [
        ("x86_64-linux", None, ("x86_64-linux-gnu.2.28", ("x86-64",), False)),
        ("aarch64-linux-gnu.2.31", None, ("aarch64-linux-gnu.2.31", ("generic",), False)),
        ("aarch64-linux-musl", "cortex-a72", ("aarch64-linux-musl", ("cortex-a72",), False)),
        ("x86_64-linux-musl", ["x86-64", "x86-64-v3"], ("x86_64-linux-musl", ("x86-64-v3", "x86-64"), True)),
        ("x86_64-linux", ("x86-64-v2",), ("x86_64-linux-gnu.2.28", ("x86-64-v2",), True)),
        (None, "haswell", (None, ("haswell",), False)),
    ],
)
def test_machines_are_named(target: str | None, instruction_set: str | Sequence[str] | None, meant: object) -> None:
    machines = machines_of(target, instruction_set)
    assert (machines.target, machines.instruction_sets, machines.chooses) == meant
    assert not machines.can_run_here


def test_this_machine_is_the_default() -> None:
    with override(arch="native"):
        machines = machines_of(None, None)
    assert machines.instruction_sets == ("native",) and machines.can_run_here and not machines.chooses
    if platform.machine() == "x86_64":
        assert machines_of(None, LEVELS).can_run_here and machines_of(None, "x86-64").can_run_here


@pytest.mark.parametrize(
    ("target", "instruction_set", "message"),
    [
        ("arm64", None, r"target must be x86_64-linux or aarch64-linux, .*got 'arm64'"),
        ("aarch64-linux-android", None, "target must be"),
        ("aarch64-linux", ("x86-64", "x86-64-v3"), r"must be some of x86-64-v4.* on x86_64 .*on aarch64"),
        ("x86_64-linux", (), "got none on x86_64"),
        ("x86_64-linux", ("x86-64", "znver4"), "got x86-64, znver4"),
        ("x86_64-linux", "native", "instruction_set must be one of the target's"),
    ],
)
def test_machines_that_there_are_not_are_refused(
    target: str, instruction_set: str | Sequence[str] | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=message):
        gw.export(Model(), example(3, 4), tmp_path, target=target, instruction_set=instruction_set)


def test_another_machine_needs_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zig, "installed", lambda: None)
    toolchain._find.cache_clear()
    message = r'zig.*aarch64.*`pip install "graphweave\[toolchain\]"`'
    with override(cxx=None), pytest.raises(ToolchainError, match=message):
        toolchain.toolchain_for("aarch64-linux-musl", "generic")
    toolchain._find.cache_clear()


def test_an_instruction_set_that_no_compiler_knows_is_refused() -> None:
    if toolchain.available() is None:
        pytest.skip("needs a compiler")
    with pytest.raises(ToolchainError, match=r"instruction set of an export\) must be a processor .*got 'x87-64'"):
        toolchain.toolchain_for(None, "x87-64")


# ---------------------------------------------------------------- libraries that choose


def functions() -> list[str]:
    """The functions of the interface."""
    return re.findall(r"^[a-z][\w *]*\b(gw_\w+)\(", own("model.h"), flags=re.MULTILINE)


def stand_in(folder: Path, level: str) -> None:
    """A library for `level` whose opening returns the level's number."""
    body = {"gw_model_open_version": f"return {100 + LEVELS.index(level)};"}
    text = "".join(f"int {name}(void) {{ {body.get(name, 'return 0;')} }}\n" for name in functions())
    command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(folder / f"model-{level}.so")]
    subprocess.run(command, input=text, text=True, check=True)


OPEN = """
#include <stdio.h>
#include "model.h"
int main(void) {
  gw_model* model;
  gw_error error = {0};
  const int status = gw_model_open("", &model, &error);
  printf("%d %s\\n", status, error.message);
}
"""


@pytest.fixture(scope="module")
def choosing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program that opens a chooser of stand-ins for the three largest levels."""
    folder = tmp_path_factory.mktemp("choosing")
    (folder / "model.h").write_text(own("model.h"))
    (folder / "chooser.cpp").write_text(chooser_source(LEVELS[:3]))
    (folder / "open.c").write_text(OPEN)
    library = ["g++", "-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC", "-march=x86-64", "-fvisibility=hidden"]
    subprocess.run([*library, "chooser.cpp", "-o", "model.so", "-ldl"], cwd=folder, check=True)
    subprocess.run(["gcc", "open.c", "-L.", "-l:model.so", "-Wl,-rpath,$ORIGIN", "-o", "open"], cwd=folder, check=True)
    for level in LEVELS[:3]:
        stand_in(folder, level)
    return folder


def say(folder: Path, cpu: str | None = None) -> tuple[int, str]:
    emulated = [] if cpu is None else [needs("qemu-x86_64"), "-cpu", cpu]
    done = subprocess.run([*emulated, folder / "open"], capture_output=True, text=True, check=True)
    status, _, message = done.stdout.partition(" ")
    return int(status), message.strip()


@needs_x86
@needs_gcc
def test_the_largest_level_that_the_processor_has_is_opened(choosing: Path) -> None:
    largest = next((level for level in LEVELS if machines_of(None, level).can_run_here), None)
    assert largest is not None
    assert say(choosing)[0] == (8 if largest == "x86-64" else 100 + LEVELS.index(largest))


@needs_x86
@needs_gcc
@pytest.mark.parametrize(("cpu", "level"), [("max", "x86-64-v3"), ("Nehalem", "x86-64-v2"), ("qemu64", None)])
def test_emulated_processors_open_theirs(choosing: Path, cpu: str, level: str | None) -> None:
    status, message = say(choosing, cpu)
    assert status == (8 if level is None else 100 + LEVELS.index(level))
    if level is None:
        assert message.startswith("the model was exported for processors with x86-64-v2 or more")


@needs_x86
@needs_gcc
def test_a_library_that_is_not_there_is_named(choosing: Path, tmp_path: Path) -> None:
    for name in ("model.so", "open"):
        shutil.copy(choosing / name, tmp_path)
    status, message = say(tmp_path)
    assert status == 8
    if "was exported" not in message:
        assert re.search(r"model-x86-64-v\d\.so: .* Keep all libraries of the model in one folder\.", message)


@needs_x86
@needs_gcc
def test_the_chooser_hands_on_every_function(choosing: Path) -> None:
    library = ctypes.CDLL(str(choosing / "model.so"))
    assert "gw_graph_new" in functions() and all(hasattr(library, name) for name in functions())
    assert {*functions()} == {*re.findall(r"DO\((\w+)\)", own("chooser.cpp"))}


# ---------------------------------------------------------------- whole models, on processors that are emulated


def write_tensors(path: Path, tensors: Sequence[Tensor]) -> None:
    with path.open("wb") as file:
        for one in tensors:
            file.write(np.array([NUMBER_OF[DTYPE_OF[one.dtype]], one.dim()], dtype=np.int32).tobytes())
            file.write(np.array(one.shape, dtype=np.int64).tobytes())
            file.write(one.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def read_tensors(content: bytes) -> list[Tensor]:
    found = []
    while content:
        number, dims = np.frombuffer(content[:8], dtype=np.int32).tolist()
        sizes = np.frombuffer(content[8 : 8 + 8 * dims], dtype=np.int64).tolist()
        values = content[8 + 8 * dims :]
        nbytes = int(np.prod(sizes)) * DTYPES[number].itemsize
        made = torch.empty(sizes, dtype=DTYPES[number])
        if nbytes:
            made.copy_(torch.frombuffer(bytearray(values[:nbytes]), dtype=made.dtype).reshape(sizes))
        found.append(made)
        content = values[nbytes:]
    return found


def results_of(command: Sequence[str | Path], folder: Path, tensors: Sequence[Tensor], scratch: Path) -> list[Tensor]:
    """What a program made of RUNNER gives for `tensors`."""
    write_tensors(scratch / "tensors", tensors)
    run = [*command, folder / "weights.safetensors", scratch / "tensors"]
    done = subprocess.run(run, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return read_tensors(done.stdout)


def tensors_in(value: object) -> list[Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, Tensor)]


def compare(got: Sequence[Tensor], model: nn.Module, arguments: Sequence[object]) -> None:
    """Compare with the model in float64, as far as float32 goes."""
    with torch.no_grad():
        wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments]
        want = tensors_in(model.double()(*wide))
    assert len(got) == len(want)
    for one, exact in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), exact.double(), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(3)
    return Model().eval()


@needs_x86
@needs_gcc
@pytest.mark.slow
def test_one_folder_runs_on_old_and_new_processors(model: nn.Module, tmp_path: Path) -> None:
    given = example(30, 90)
    exported = gw.export(model.float(), given, tmp_path / "model", instruction_set=("x86-64", "x86-64-v3"))
    folder, program = exported.folder, tmp_path / "run_model"
    files = [one["file"] for one in exported.manifest["machine"]["libraries"]]
    assert files == ["model.so", "model-x86-64-v3.so", "model-x86-64.so"]
    assert {*files} < {*exported.manifest["sha256"]}
    client = ["gcc", str(RUNNER), f"-I{folder}", str(folder / "model.so"), f"-Wl,-rpath,{folder}", "-o", str(program)]
    subprocess.run(client, check=True)
    loaded = exported.load()(*given)
    here = results_of([program], folder, given, tmp_path)
    assert all(map(torch.equal, here, loaded))
    emulated = [
        results_of([needs("qemu-x86_64"), "-cpu", cpu, program], folder, given, tmp_path) for cpu in ("max", "qemu64")
    ]
    gw.export(model.float(), given, folder)
    assert [file.name for file in folder.glob("*.so")] == ["model.so"], "those of the earlier export are gone"
    for got in (here, *emulated):
        compare(got, model, given)
    for file in (*files, "model.so"):
        (folder / file).unlink(missing_ok=True)
    subprocess.run(["make", "-C", folder / "sources"], check=True, capture_output=True)
    assert all(map(torch.equal, LoadedModel(folder)(*given), loaded))


EMULATORS = {
    "x86_64-linux": [],
    "x86_64-linux-musl": [],
    "aarch64-linux": ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
    "aarch64-linux-musl": ["qemu-aarch64"],
}
LOADERS = {
    "x86_64-linux": "/lib64/ld-linux-x86-64.so.2",
    "x86_64-linux-musl": "/lib/ld-musl-x86_64.so.1",
    "aarch64-linux": "/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1",
}


def program_for(target: str, folder: Path, scratch: Path) -> list[str | Path]:
    """A command that runs RUNNER with the library in `folder`. Where musl is not installed for a machine, the model's
    sources are part of the program, which then needs no library at all."""
    command = zig.installed()
    assert command is not None
    machine = json.loads((folder / "manifest.json").read_text())["machine"]
    program, header = scratch / "run_model", f"-I{folder}"
    compiler = [*zig.with_subcommand(command, "cc"), "-target", machine["target"], "-g0", "-O2"]
    if target in LOADERS:
        if not Path(LOADERS[target]).exists():
            pytest.skip(f"{LOADERS[target]} is not there")
        linked = ["-dynamic", str(folder / "model.so"), f"-Wl,-rpath,{folder}"]
    else:
        flags = machine["libraries"][0]["flags"]
        source, linked = folder / "sources" / "model.cpp", [str(scratch / "model.o")]
        toolchain.run_compiler((*command, *flags, f"-I{folder / 'sources'}", "-c", str(source), "-o", linked[0]))
    done = toolchain.run_compiler((*compiler, header, str(RUNNER), *linked, "-o", str(program)))
    assert done.returncode == 0, done.stderr
    emulator = EMULATORS[target]
    return [*([needs(emulator[0]), *emulator[1:]] if emulator else []), program]


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("target", EMULATORS)
def test_other_machines_get_the_same_numbers(model: nn.Module, target: str, tmp_path: Path) -> None:
    if target.startswith("x86_64") and platform.machine() != "x86_64":
        pytest.skip("needs x86_64")
    exported = gw.export(model.float(), example(30, 90), tmp_path / "model", target=target)
    machine = exported.manifest["machine"]
    assert machine["target"].startswith(target) and machine["example_computed_by"] == "model"
    command = program_for(target, exported.folder, tmp_path)
    for nodes, edges in ((30, 90), (1, 0), (0, 0), (40, 5000)):
        given = example(nodes, edges, seed=nodes)
        compare(results_of(command, exported.folder, given, tmp_path), model, given)
    if target != "x86_64-linux":
        with pytest.raises(ExportError, match=rf"since it was exported for {target}"):
            exported.load()


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("name", ["GCNConv-weight", "RGCNConv", "models.AttentiveFP"])
def test_layers_of_pyg_run_on_another_machine(name: str, tmp_path: Path) -> None:
    case = build(f"zoo:{name}")
    module = case.module.eval()
    folder = gw.export(module, case.arguments, tmp_path / "model", target="aarch64-linux").folder
    given = tensors_in(case.arguments)
    got = results_of(program_for("aarch64-linux", folder, tmp_path), folder, given, tmp_path)
    compare(got, module, case.arguments)
