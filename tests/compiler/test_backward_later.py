"""The first forward does not wait for the kernels of the backward."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.errors import CompileError
from graphweave.core.settings import override
from graphweave.execute import begun
from graphweave.execute.begun import Begun
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.region_step import RegionStep
from graphweave.runtime import toolchain
from tests import patience

needs_cxx = pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")


def attended(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, torch.sigmoid(x[src] * x[dst]) * x[src])


def arguments(*, grad: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    src, dst = torch.randint(300, (2, 900))
    return torch.randn(300, 5, dtype=torch.float64, requires_grad=grad), src, dst


def gradient(function: Callable[..., Tensor], given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    return torch.autograd.grad(function(*given).square().sum(), given[0])[0]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the kernels that are built, in order; nothing lies in the cache."""
    names: list[str] = []
    build = CppStep.build

    def noted(step: CppStep) -> None:
        names.append(step.name)
        build(step)

    monkeypatch.setattr(CppStep, "build", noted)
    with override(cache_dir=tmp_path):
        yield names


@needs_cxx
def test_a_forward_runs_while_the_kernels_of_its_backward_are_not_there(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release, build = threading.Event(), CppStep.build

    def held(step: CppStep) -> None:
        if step.name.startswith("backward"):
            assert release.wait(patience.seconds())
        build(step)

    monkeypatch.setattr(CppStep, "build", held)
    compiled, given = graphweave.compile(attended), arguments()
    y = compiled(*given)
    assert any(name.startswith("forward") for name in built) and not any(n.startswith("backward") for n in built)
    torch.testing.assert_close(y, attended(*given))
    release.set()
    (grad,) = torch.autograd.grad(y.square().sum(), given[0])
    torch.testing.assert_close(grad, gradient(attended, given))
    assert any(name.startswith("backward") for name in built)


@needs_cxx
def test_an_inference_compiles_no_backward(built: list[str]) -> None:
    compiled, given = graphweave.compile(attended), arguments(grad=False)
    torch.testing.assert_close(compiled(*given), attended(*given))
    with torch.no_grad():
        compiled(*arguments())
    assert built and not any(name.startswith("backward") for name in built)


@needs_cxx
def test_a_backward_that_cannot_be_compiled_runs_calls_of_pytorch_and_tells_it_once(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = CppStep.build

    def refused(step: CppStep) -> None:
        if step.name.startswith("backward"):
            raise CompileError("no such instruction")
        build(step)

    monkeypatch.setattr(CppStep, "build", refused)
    compiled, given = graphweave.compile(attended), arguments()
    before = graphweave.counters()["eager_fallbacks"]
    y = compiled(*given)
    with pytest.warns(UserWarning, match="the backward of a compiled function runs PyTorch's calls"):
        (grad,) = torch.autograd.grad(y.square().sum(), given[0])
    torch.testing.assert_close(grad, gradient(attended, given))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(gradient(compiled, given), gradient(attended, given))
    assert graphweave.counters()["eager_fallbacks"] == before + 1


class _Kernel:
    """A step in the making: `build` notes its name."""

    def __init__(
        self, name: str, built: list[str], until: threading.Event | None = None, code: str = "", target: str = "triton"
    ) -> None:
        self.name, self._built, self._until = name, built, until
        self.plan = type("Plan", (), {"code": code or name, "symbol": "k", "target": target})()
        self.started = threading.Event()

    def build(self) -> None:
        self.started.set()
        assert self._until is None or self._until.wait(patience.seconds())
        self._built.append(self.name)


def _steps(*kernels: _Kernel) -> Sequence[RegionStep]:
    return kernels  # type: ignore[return-value]


@pytest.mark.parametrize("cores", [1, 2])
def test_kernels_that_are_needed_later_wait_until_the_others_leave_a_core_free(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun.os, "cpu_count", lambda: cores)
    pools = begun._Pools()
    monkeypatch.setattr(begun, "_pools", lambda process: pools)
    built: list[str] = []
    release = threading.Event()
    first, last = _Kernel("forward", built, release), _Kernel("backward", built)
    ahead, behind = Begun(), Begun()
    ahead.add("forward", _steps(first))
    assert first.started.wait(patience.seconds())
    behind.add("backward", _steps(last), later=True)
    if cores > 1:
        assert last.started.wait(patience.seconds())
    ahead.add("another forward", _steps(_Kernel("another", built)))
    release.set()
    behind.wait()
    ahead.wait()
    assert set(built) == {"forward", "another", "backward"}
    if cores == 1:
        assert built[-1] == "backward"


def test_equal_kernels_are_built_by_one_thread_one_after_the_other() -> None:
    built: list[str] = []
    kernels = [_Kernel(name, built, code=code) for name, code in (("a", "1"), ("b", "2"), ("c", "1"))]
    groups = begun.compiler_runs(_steps(*kernels))
    assert [[step.name for step in group] for group in groups] == [["a", "c"], ["b"]]


@pytest.mark.parametrize(
    ("cores", "count", "runs"), [(2, 1, 1), (2, 5, 1), (2, 6, 2), (2, 20, 2), (8, 20, 6), (1, 20, 1)]
)
def test_kernels_in_cpp_are_divided_among_as_many_runs_of_the_compiler_as_pay(
    cores: int, count: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun.os, "cpu_count", lambda: cores)
    texts = [f"{i:03}" + "x" * 100 * i for i in range(count)]
    steps = [_Kernel(f"{i} of {text[:3]}", [], code=text, target="cpp") for text in texts for i in range(2)]
    groups = begun.compiler_runs(_steps(*steps))
    lengths = [sum(len(code) for code in {step.plan.code for step in group}) for group in groups]
    assert len(groups) == runs and sorted(s.name for g in groups for s in g) == sorted(s.name for s in steps)
    assert max(lengths) - min(lengths) <= max(map(len, texts)), "they take about as long as one another"
    assert sum(len({step.plan.code for step in group}) for group in groups) == count, "a text is in one run only"


def test_waiting_again_builds_what_an_interrupt_has_ended() -> None:
    built: list[str] = []
    kernel, failures = _Kernel("a", built), [CompileError("killed by signal 2")]
    build = kernel.build

    def fails_once() -> None:
        if failures:
            raise failures.pop()
        build()

    kernel.build = fails_once  # type: ignore[method-assign]
    making = Begun()
    making.add("forward", _steps(kernel))
    making.wait()
    assert built == ["a"]


def test_a_fork_builds_what_its_parent_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    making = Begun()
    making.add("forward", _steps(_Kernel("a", built)))
    making.wait()
    parent = making._process
    monkeypatch.setattr(begun.os, "getpid", lambda: parent + 1)
    making.wait()
    assert built == ["a", "a"]
