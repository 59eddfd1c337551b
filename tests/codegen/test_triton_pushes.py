"""Fused pushes in Triton: against float64 in Triton's interpreter, and compiled for GPUs that need not be present."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from graphweave.core.errors import IndexRangeError
from graphweave.core.options import options_for
from graphweave.core.types import DType
from graphweave.execute import triton_folds, triton_push
from graphweave.execute.executable import Executable
from graphweave.execute.triton_launch import TritonJob, launches_of
from graphweave.execute.triton_push import TritonPushStep
from graphweave.ir.loop.nodes import Kernel
from graphweave.ir.message.nodes import Input, Program
from graphweave.runtime import formats, index
from graphweave.runtime.triton_kernel import module
from tests.codegen.test_triton_aot import CAPABILITIES, SHARED, needs_compiler
from tests.codegen.test_triton_typed import NODES, TYPES, ends
from tests.codegen.test_typed_kernels import DTYPES, close, draw, want_product
from tests.codegen.triton_resources import Variant, constants, resources_of, signature
from tests.codegen.triton_support import needs_interpreter
from tests.program_support import built
from tests.support import by_default
from tests.typed_programs import pushed_program

FLOATS = (torch.float32, torch.float64)


@pytest.fixture(autouse=True)
def small_blocks_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BLOCK": 32, "PIECE": 8, "PIECES": 32, "BLOCKS": 4}.items():
        monkeypatch.setattr(triton_push, name, value)
    monkeypatch.setattr(triton_folds, "FOLDED", 2)


def made_of(program: Program) -> Executable:
    made = built(program, options_for("triton"))
    assert not made.plan.refused
    assert any(isinstance(step, TritonPushStep) for step in made.kernels.values())
    return made


def kernel_of(program: Program) -> Kernel:
    (step,) = (step for step in made_of(program).kernels.values() if isinstance(step, TritonPushStep))
    return step.plan.lowered.kernel


def run(made: Executable, given: Mapping[str, Tensor]) -> Tensor:
    (out,) = made([given[n.name] for n in made.plan.program.nodes if isinstance(n, Input)])
    assert isinstance(out, Tensor)
    return out


def given_for(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype, along: str | None = "src"
) -> dict[str, Tensor]:
    types, num = TYPES[name]
    edges, b = types.numel(), (blocks,) if blocks > 1 else ()
    return {
        "t": types, "dst": ends(edges), "src": torch.arange(edges) * 7 % 11,
        "x": draw(edges if along is None else NODES, *b, k, dtype=dtype), "w": draw(num, *b, k, j, dtype=dtype),
        "s": draw(edges, dtype=dtype), "v": draw(NODES, dtype=dtype),
    }  # fmt: skip


def want(given: Mapping[str, Tensor], along: str | None, scaled: bool) -> Tensor:
    x, w = given["x"], given["w"]
    rows, blocks = (x if along is None else x[given[along]]), x.dim() == 3
    messages = want_product(rows if blocks else rows.unsqueeze(1), w if blocks else w.unsqueeze(1), given["t"])
    messages = messages * given["s"].double().reshape(-1, 1, 1) if scaled else messages
    out = torch.zeros(NODES, *messages.shape[1:], dtype=torch.float64).index_add(0, given["dst"], messages)
    return out if blocks else out.squeeze(1)


def check(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, along: str | None = "src", scaled: bool = False,
    transposed: bool = False,
) -> None:  # fmt: skip
    given = given_for(name, blocks, k, j, dtype, along)
    made = made_of(pushed_program(blocks, k, j, DTYPES[dtype], along=along, scaled=scaled, transposed=transposed))
    expected = want(given, along, scaled)
    if transposed:
        given["w"] = given["w"].mT.contiguous()
    close(run(made, given), expected, k * max(1, given["t"].numel()))


@needs_interpreter
@pytest.mark.parametrize("along", ["src", "dst", None])
@pytest.mark.parametrize("name", TYPES)
def test_edges_of_every_distribution(name: str, along: str | None) -> None:
    check(name, 1, 31, 33, torch.float32, along=along, scaled=along is not None, transposed=along == "src")


@needs_interpreter
@pytest.mark.parametrize(
    ("blocks", "k", "j"), [(1, 1, 1), (1, 1, 64), (1, 64, 1), (1, 33, 70), (1, 70, 64), (3, 5, 2), (3, 33, 31)]
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_widths_and_blocks(blocks: int, k: int, j: int, dtype: torch.dtype) -> None:
    check("sorted", blocks, k, j, dtype, scaled=dtype is torch.float64, transposed=blocks == 3)


@needs_interpreter
def test_tables_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph that fits into a test needs tables of 64 bits."""
    monkeypatch.setattr(TritonPushStep, "_is_wide", lambda *_: True)
    check("skewed", 1, 5, 3, torch.float32, scaled=True)


@needs_interpreter
def test_indices_wrap_where_they_may_and_are_refused_where_not() -> None:
    given = given_for("skewed", 1, 5, 3, torch.float64)
    rows = {"t": len(given["w"]), "dst": NODES, "src": NODES}
    made, wrapping = (made_of(pushed_program(1, 5, 3, DType.f64, wraps=wraps)) for wraps in (False, True))
    expected = want(given, "src", False)
    close(run(wrapping, given | {name: given[name] - num for name, num in rows.items()}), expected, 400)
    for name, num in rows.items():
        for value in (-1, num):
            wrong = given[name].clone()
            wrong[77] = value
            with pytest.raises(IndexRangeError, match="at position 77 is out of range"):
                run(made, given | {name: wrong})


@needs_interpreter
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_not_finite_stays_with_its_rows_and_two_runs_give_the_same_bits() -> None:
    given = given_for("skewed", 1, 33, 5, torch.float32)
    made = made_of(pushed_program(1, 33, 5))
    assert torch.equal(run(made, given), run(made, given))
    given["x"][3], given["w"][4] = float("inf"), float("nan")
    touched = (given["t"] == 4) | (given["src"] == 3)
    finite = run(made, given).isfinite().all(1)
    assert torch.equal(finite, ~torch.zeros(NODES, dtype=torch.bool).index_fill(0, given["dst"][touched], True))


def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a number from a fake tensor, or a tensor on another device, is an error."""
    (step,) = made_of(pushed_program(1, 31, 33, scaled=True)).kernels.values()
    monkeypatch.setattr(formats, "cached", lambda key, tensors, build: build())
    monkeypatch.setattr(index, "place", lambda t: ())  # fake tensors have no address
    launched: list[str] = []

    def run_jobs(jobs: list[TritonJob], _: object) -> None:
        (job,) = jobs
        assert {t.device.type for t in job.tensors.values()} == {"cuda"} and job.programs > 0
        launched.append(job.kernel.name)

    monkeypatch.setattr(triton_push, "run", run_jobs)
    monkeypatch.setattr(triton_folds, "launch", lambda kernel, *_, **__: launched.append(kernel.name))
    rows = {"V": 100, "R": 9, "E": 5000}
    with FakeTensorMode(), torch.device("cuda"):
        inputs = {"x": torch.zeros(100, 31), "w": torch.zeros(9, 31, 33), "s": torch.zeros(5000)}
        indices = [torch.zeros(5000, dtype=torch.int64) for _ in step.maps]
        names = [b.name.partition("_")[0] for b in step.plan.lowered.kernel.buffers if b.role.value == "in"]
        (out,) = step(tuple(rows[s.name] for s in step.spaces), indices, [inputs[name] for name in names])
    assert tuple(out.shape) == (100, 33) and out.device.type == "cuda" and len(launched) == 2  # pieces are folded


# ---------------------------------------------------------------- compiled

SPILLED = 64
"""Bytes a thread that ptxas may spill to fit more warps. A kernel too large for the registers spills more."""

CASES = {
    "64": (1, 64, 64, DType.f32), "heads": (8, 8, 8, DType.f32), "odd": (3, 33, 31, DType.f64),
    "wide": (1, 64, 200, DType.f32), "widest": (1, 512, 512, DType.f64), "narrow": (1, 1, 1, DType.f32),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("case", by_default(CASES, "64", "heads"))
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_stay_in_registers(capability: int, case: str) -> None:
    found = resources_of(kernel_of(pushed_program(*CASES[case], scaled=True)), capability)
    assert found.code > 0 and found.shared <= SHARED[capability]
    assert found.spill_stores <= SPILLED and found.spill_loads <= SPILLED


@needs_compiler
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_push_waits_for_its_own_stores(precision: str) -> None:
    """Threads of a program read for the next tile what others stored for this one, so a barrier is in between."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from graphweave.codegen.triton import print_kernel

    kernel = kernel_of(pushed_program(1, 64, 64))
    function = getattr(module(print_kernel(kernel)), kernel.name)
    variant = Variant(ordered=False, precision=precision)
    types = dict(zip(function.arg_names, signature(kernel, variant), strict=True))
    source = ASTSource(fn=function, signature=types, constexprs=constants(variant, launches_of(kernel).short))
    options = {"num_warps": 4, "enable_fp_fusion": False}
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    steps = "".join(step[0] for step in re.findall(r"bar\.sync|ld\.global|st\.global", text))
    found = re.search(r"b(l+)b*(s+)[bl]*$", steps)
    assert found is not None and len(found[1]) == len(found[2])  # a barrier, then the loads of the sums and no others
