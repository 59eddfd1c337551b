"""`graphweave.compile(f, background=True)`: nobody waits, nothing happens twice, and results are eager mode's."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.counters import counters
from graphweave.core.errors import SettingsError
from graphweave.frontends.dynamo import captured as _captured  # noqa: F401  loads the compilers before a test waits
from tests import patience

X = torch.randn(30, 4, dtype=torch.float64)
SRC, DST = torch.randint(30, (2, 90))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test has compiled is dropped."""
    yield
    torch._dynamo.reset()


class Layer(nn.Module):
    """Sums of neighbours behind a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(4, 4).double(), nn.BatchNorm1d(4).double()

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = self.norm(self.lin(x))
        return torch.zeros_like(h).index_add(0, dst, h[src] * 2).relu()


def launches() -> int:
    return counters()["kernel_launches"]


def wait(f: Callable[..., object]) -> bool:
    return graphweave.ready(f, patience.seconds())


def same(a: Layer, b: Layer) -> None:
    """The modules have equal parameters, gradients and buffers."""
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q)
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad)
    for p, q in zip(a.buffers(), b.buffers(), strict=True):
        torch.testing.assert_close(p, q)


def test_calls_change_over_and_nothing_is_done_twice() -> None:
    model, before = Layer(), launches()
    eager = copy.deepcopy(model)
    compiled = graphweave.compile(model, background=True)
    assert graphweave.ready(compiled) is False
    for step in range(4):
        for m in (compiled, eager):
            m(X, SRC, DST).square().sum().backward()
        same(model, eager)
        if step == 0:
            assert launches() == before
            assert wait(compiled)
            same(model, eager)
        else:
            assert launches() > before
    compiled.eval(), eager.eval()  # another capture: these calls run eagerly until it is there, too
    now = launches()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X, SRC, DST), eager(X, SRC, DST))
        assert launches() == now
        assert wait(compiled)
        torch.testing.assert_close(compiled(X, SRC, DST), eager(X, SRC, DST))
        assert launches() > now


def test_modes_that_change_while_the_thread_traces_are_never_mixed() -> None:
    model, before = Layer(), launches()
    eager = copy.deepcopy(model)
    compiled = graphweave.compile(model, background=True)
    end, seen = time.monotonic() + patience.seconds(), set()
    while len(seen) < 2 and time.monotonic() < end:
        for training in (True, False):
            compiled.train(training), eager.train(training)
            before = launches()
            torch.testing.assert_close(compiled(X, SRC, DST), eager(X, SRC, DST))
            if launches() > before:
                seen.add(training)
        torch.testing.assert_close(model.norm.running_mean, eager.norm.running_mean)
    assert seen == {True, False}


def test_the_users_random_numbers_are_not_disturbed() -> None:
    compiled = graphweave.compile(lambda x: torch.dropout(x, 0.5, True) * 2 + 1, background=True)
    compiled(X)
    torch.manual_seed(1)
    drawn = []
    while not graphweave.ready(compiled, 0):
        drawn.append(torch.rand(3))
    assert len(drawn) > 3
    torch.manual_seed(1)
    assert all(torch.equal(a, torch.rand(3)) for a in drawn)


def test_code_between_graph_breaks_runs_once_a_call() -> None:
    said: list[int] = []

    def f(x: Tensor) -> Tensor:
        y = torch.zeros_like(x).index_add(0, DST, x[SRC])
        torch._dynamo.graph_break()
        said.append(len(said))
        return (y * 2).relu()

    compiled = graphweave.compile(f, background=True)
    for call in range(4):
        torch.testing.assert_close(compiled(X), f(X))
        assert len(said) == 2 * call + 2
        assert wait(compiled)
    assert counters()["graph_breaks"] > 0


def test_what_cannot_be_compiled_runs_eagerly_and_is_told_once() -> None:
    def f(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x + 1

    compiled, before = graphweave.compile(f, fullgraph=True, background=True), counters()["eager_fallbacks"]
    assert torch.equal(compiled(X), X + 1)
    with pytest.warns(UserWarning, match="f .*runs eagerly, since PyTorch could not trace it"):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            wait(compiled)
        assert torch.equal(compiled(X), X + 1)
    assert wait(compiled) is False
    assert counters()["eager_fallbacks"] == before + 2


def test_a_call_that_raises_asks_for_nothing() -> None:
    compiled, before = graphweave.compile(lambda x, y: x @ y, background=True), counters()["compilations"]
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        compiled(X, X)
    assert wait(compiled) is False
    assert counters()["compilations"] == before


def test_another_function_is_compiled_meanwhile() -> None:
    behind = graphweave.compile(Layer(), background=True)
    behind(X, SRC, DST)
    ahead, before = graphweave.compile(lambda x: torch.zeros_like(x).index_add(0, DST, x[SRC])), launches()
    torch.testing.assert_close(ahead(X), torch.zeros_like(X).index_add(0, DST, X[SRC]))
    assert launches() > before
    assert wait(behind)


def test_ready_of_functions_that_wait_for_nothing() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, DST, x[SRC])

    plain = graphweave.compile(f)
    assert graphweave.ready(f) is graphweave.ready(plain) is False
    plain(X)
    assert graphweave.ready(plain) is True
    off = graphweave.compile(f, background=True, disable=True)
    assert off is f
    with pytest.raises(TypeError, match=r"expected a compiled module or function \(got 3\)"):
        graphweave.ready(3)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"timeout must be a number of seconds, or None \(got -1\)"):
        graphweave.ready(f, -1)
    with pytest.raises(SettingsError, match=r"background must be True or False \(got 3\)"):
        graphweave.compile(f, background=3)  # type: ignore[call-overload]


def test_copies_and_decorated_functions_compile_behind_their_calls_too() -> None:
    model = graphweave.compile(Layer(), background=True)
    twin = copy.deepcopy(model)
    assert twin._gw_background is True
    assert list(twin.state_dict()) == list(Layer().state_dict())

    @graphweave.compile(background=True)
    def f(x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, DST, x[SRC])

    before = launches()
    f(X)
    assert launches() == before
    assert wait(f)
    torch.testing.assert_close(f(X), f.__wrapped__(X))
    assert launches() > before


def script(body: str, *argv: str) -> subprocess.CompletedProcess[str]:
    start = """
        import os, sys, time, torch, graphweave
        def f(x, src, dst):
            return torch.zeros_like(x).index_add(0, dst, x[src] * 2)
        x, (src, dst) = torch.randn(9, 4), torch.randint(9, (2, 20))
        compiled = graphweave.compile(f, background=True)
        compiled(x, src, dst)
        time.sleep(float(sys.argv[1]))
    """
    text = textwrap.dedent(start) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *argv], capture_output=True, text=True, timeout=patience.seconds()
    )


@pytest.mark.parametrize("seconds", ["0", "2"])
def test_a_process_ends_while_the_thread_compiles(seconds: str) -> None:
    done = script("print('ended')", seconds)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_a_process_that_is_forked_meanwhile_runs_eagerly() -> None:
    done = script(
        """
        child = os.fork()
        if child == 0:
            assert torch.allclose(compiled(x, src, dst), f(x, src, dst)) and not graphweave.ready(compiled)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert graphweave.ready(compiled) and torch.allclose(compiled(x, src, dst), f(x, src, dst))
        assert graphweave.counters()["kernel_launches"]
        """,
        "1",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_global_module_that_changes_while_it_is_traced_is_compiled_in_a_call() -> None:
    found: set[bool] = set()
    end = time.monotonic() + patience.seconds()
    compiled = graphweave.compile(_calls_global, background=True)
    while len(found) < 2 and time.monotonic() < end:
        for training in (True, False):
            GLOBAL.train(training)
            before = launches()
            wanted = copy.deepcopy(GLOBAL)(X, SRC, DST)
            torch.testing.assert_close(compiled(X), wanted)
            if launches() > before:
                found.add(training)
    assert found == {True, False}


GLOBAL = Layer()


def _calls_global(x: Tensor) -> Tensor:
    return GLOBAL(x, SRC, DST)
