"""The fuzzer itself: programs follow from their number, faults are found, made small, and written down."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fuzz import growing, worker
from tests.fuzz.case import Call, Case, Kind, draw
from tests.fuzz.grow import arguments_of, constructs, grow, with_parameters
from tests.fuzz.growing import FAMILIES, Growing
from tests.fuzz.judge import Unfair, is_of_pytorch, judge, load, run
from tests.fuzz.script import script
from tests.fuzz.shrink import shrink
from tests.fuzz.worker import search, signature

SIZES = (("N", 6), ("M", 4), ("E", 15), ("B", 9), ("G", 2), ("D", 4))


def case_of(body: str, door: Any = "graphweave", *edits: str) -> Case:
    source = with_parameters("def f():\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    calls = tuple(Call(SIZES, seed, edit) for seed, edit in enumerate(edits or ("",)))
    return Case(source, arguments_of(source), calls, door)


def in_eager_mode(case: Case) -> Callable[..., Any]:
    return load(case.source)


def with_wrong_cumsum(case: Case) -> Callable[..., Any]:
    """A compiler that is wrong about one function, and only in the gradient."""

    class Wrong(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            return out * 2 - out.detach() if func is Tensor.cumsum else out

    function = load(case.source)

    def compiled(*arguments: Any) -> Any:
        with Wrong():
            return function(*arguments)

    return compiled


def test_the_same_number_gives_the_same_program() -> None:
    assert [grow(seed) for seed in range(6)] == [grow(seed) for seed in range(6)]
    assert len({grow(seed).case.source for seed in range(6)}) == 6


def test_programs_run_in_eager_mode() -> None:
    """Most calls of most programs are right in eager mode, else there would be nothing to compare with."""
    good = total = 0
    for seed in range(20):
        case = grow(seed).case
        outcomes = [run(case, call, load(case.source)) for call in case.calls if not call.edit]
        good, total = good + sum(o.error is None for o in outcomes), total + len(outcomes)
    assert good > 0.8 * total


def test_every_construct_can_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that prefers what it has not said yet says everything within a few hundred programs."""
    seen: set[str] = set()

    def spell(self: Growing, family: str, **words: str) -> str:
        left = [key for key in FAMILIES[family] if f"{family}:{key}" not in seen]
        key = self.choose(left or list(FAMILIES[family]))
        self.pending.append(f"{family}:{key}")
        return FAMILIES[family][key].format(**words)

    monkeypatch.setattr(growing.Growing, "spell", spell)
    kinds: tuple[Kind, ...] = ("usual", "products", "choices")
    for seed in range(800):
        seen.update(grow(seed, only=kinds[seed % 3]).constructs)
        if seen == constructs():
            break
    assert seen == constructs()


@pytest.mark.slow
def test_every_construct_occurs() -> None:
    seen = {construct for seed in range(3000) for construct in grow(seed).constructs}
    assert seen == constructs()


def test_eager_mode_is_right() -> None:
    for seed in range(12):
        with contextlib.suppress(Unfair):
            assert judge(grow(seed).case, in_eager_mode) is None


def test_a_wrong_compiler_is_found_and_the_program_made_small() -> None:
    body = """v0 = x[src] * e
v1 = torch.zeros_like(x).index_add(0, dst, v0)
v2 = (v1 @ w).relu() - v1.tanh()
v3 = v2.cumsum(0) / 4 + v1
v4 = v3.mean(-1)
return v0, v4, v2"""
    case = case_of(body, "graphweave", "", "src[0] = 1")
    assert judge(case, in_eager_mode) is None
    found = judge(case, with_wrong_cumsum)
    assert found is not None and found.kind == "wrong gradient"

    def fails(smaller: Case) -> bool:
        try:
            again = judge(smaller, with_wrong_cumsum)
        except Unfair:
            return False
        return again is not None and again.kind == found.kind

    small = shrink(case, fails, seconds=20)
    assert fails(small) and len(small.calls) == 1
    assert small.source.count("\n") <= 4 and "cumsum" in small.source and "index_add" not in small.source
    assert len(small.needed) == 1


def test_errors_that_one_side_lacks_are_found() -> None:
    case = case_of("return x[src] * 2", "graphweave", "", "src[3] = 99")

    def clamped(case: Case) -> Callable[..., Any]:
        return lambda x, src: x[src.clamp(max=x.size(0) - 1)] * 2

    def raises(case: Case) -> Callable[..., Any]:
        return lambda x, src: x[src] * torch.linalg.inv(x)

    assert judge(case, in_eager_mode) is None
    found = judge(case, clamped)
    assert found is not None and found.kind == "no error" and "call 1" in found.what
    found = judge(case, raises)
    assert found is not None and found.kind == "crash" and "linalg" in found.what


def test_arguments_written_into_and_second_backwards_are_compared() -> None:
    case = case_of("buf.add_(x.detach())\nreturn buf * x")
    assert judge(case, in_eager_mode) is None
    found = judge(case, lambda case: lambda x, buf: (buf + x.detach()) * x)
    assert found is not None and found.kind == "wrong argument"

    class Once(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            Once.calls += 1
            return grad * (2 if Once.calls % 2 else 3)

    found = judge(case_of("return x * 2"), lambda case: Once.apply)
    assert found is not None and found.kind == "wrong second gradient"


def test_a_program_that_rounding_decides_is_not_fair() -> None:
    """A kink where all the numbers lie: a sum of nothing but rounding is above or below 0 by chance."""
    case = case_of("return ((x.sum() - x.flip(0).sum() + 1e-18) > 0) * x", "graphweave", *[""] * 6)

    def the_other_way(case: Case) -> Callable[..., Any]:
        return lambda x: ((x.sum() - x.flip(0).sum() + 1e-18) <= 0) * x

    with pytest.raises(Unfair, match="rounding"):
        judge(case, the_other_way)


def test_a_real_compilation_is_judged(fresh_compiler: None) -> None:
    body = "v = torch.zeros_like(x).index_add(0, dst, x[src] * e)\nreturn v, v.softmax(-1)"
    for door in ("graphweave", "plain dynamic"):
        assert judge(case_of(body, door, "", "dst[0] = 2")) is None


def test_findings_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across programs and processes: equal signatures are one finding, whose script says how it was found."""
    monkeypatch.setattr(worker, "is_of_pytorch", lambda case, finding: False)
    results = [search(seed, ("graphweave",), tmp_path, 0.5, compiled=_raising) for seed in range(2)]
    assert results[0].startswith("found: crash")
    assert results[1].startswith("again")
    (text,) = (file.read_text() for file in tmp_path.glob("*.py"))
    assert "Found by `python -m tests.fuzz`, program 0." in text and "graphweave.compile(f)" in text


def _raising(case: Case) -> Callable[..., Any]:
    def compiled(*arguments: Any) -> Any:
        raise TypeError(f"expected 3, got {len(arguments)}")

    return compiled


def test_what_pytorch_gets_wrong_is_told_apart(fresh_compiler: None) -> None:
    """Capture without this compiler does not raise here."""
    case = case_of("return x[src] * 2")
    found = judge(case, _raising)
    assert found is not None and not is_of_pytorch(case, found)


PYTORCHS = {
    "plain dynamic": "v = x.clone()\nv[nmask] = v[nmask] * 2\n"
    "return v + (torch._dynamo.graph_break(), torch.ops.fuzzed.read(x))[1]",
    "plain static": "v = e + 1\nv[emask] += 1\nreturn v",
    "plain": "buf[sdst] = 0.5\nreturn x * 2",
}


@pytest.mark.parametrize("door", PYTORCHS)
def test_what_pytorch_cannot_capture_is_no_finding(door: Any, fresh_compiler: None) -> None:
    """It raises the error with the settings of this compiler, leaves the frame to Python, or raises another error."""
    case = case_of(PYTORCHS[door], door, "buf = buf[:1].expand_as(buf)" if door == "plain" else "")
    found = judge(case)
    assert found is not None and found.kind in ("crash", "untraced")
    assert is_of_pytorch(case, found)
    assert not is_of_pytorch(case, replace(found, kind="crash", what="call 0: backward raises TypeError: no"))


def test_a_script_runs_and_shows_differences(fresh_compiler: None) -> None:
    case = case_of("return x[src] * e", "plain dynamic", "", "src[0] = -1")
    text = script(case, judge(case, _raising), "")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "finding.py", "exec"), {})
    lines = printed.getvalue().splitlines()
    assert len(lines) == len(case.calls) + 1
    assert all("differences of outputs" in line and "True" not in line for line in lines[:-1])
    drawn = draw(case, case.calls[1])
    assert int(drawn[2][0]) == -1, "the edit of the second call"


def test_signatures_forget_numbers_and_names() -> None:
    case = case_of("return x * 2")
    one = judge(case, _raising)
    assert one is not None
    assert signature(one, case) == signature(replace(one, what=one.what.replace("1", "7")), case)
