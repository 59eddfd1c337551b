"""Loops whose end data decides: only the loop is Python's, what is in it is compiled, once for all turns and sizes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import ExactWeakKeyDictionary
from torch.utils._pytree import tree_leaves

import graphweave
from graphweave.frontends.tracing import dropped_frames
from tests.support import random_graph

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # PyTorch reads .grad of tensors that cross a graph break
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]

DOORS: dict[str, Callable[[Any], Any]] = {
    "compile": graphweave.compile,
    "backend": lambda f: torch.compile(f, backend="graphweave"),
}


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Any]]:
    monkeypatch.setattr("graphweave.core.log._warned", set())
    monkeypatch.setattr(dropped_frames, "_known", ExactWeakKeyDictionary())  # functions of this file serve both doors
    yield DOORS[request.param]


def spread(h: Tensor, edges: Tensor) -> Tensor:
    return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])


class ByLevel(nn.Module):
    """A tree's levels, from the leaves up; how many there are is known to the data alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).double()

    def forward(self, x: Tensor, edges: Tensor, level: Tensor) -> Tensor:
        h = x
        for depth in range(int(level.max())):
            here = level[edges[1]] == depth
            h = torch.tanh(self.linear(h + spread(h * 1.5, edges[:, here])))
        return h


class Power(nn.Module):
    """Power iteration, with private names and a method of a parent class."""

    def __init__(self) -> None:
        super().__init__()
        self.__share = 0.5

    def forward(self, x: Tensor, edges: Tensor, level: Tensor) -> Tensor:
        v = x.abs()
        while True:
            w = spread(v, edges) * self.__share + v
            w = w / w.norm()
            if (w - v).norm() < 1e-4:
                break
            v = w
        return w


class Slower(Power):
    def forward(self, x: Tensor, edges: Tensor, level: Tensor) -> Tensor:
        turns, size = 0, x.norm()
        while size > 1:
            x = super().forward(x, edges, level) * size / 2
            size = x.norm()
            turns += 1
        return x * turns


def each_graph(x: Tensor, edges: Tensor, level: Tensor) -> Tensor:
    rows = []
    for g in range(int(level.max()) + 1):
        rows.append(spread(x, edges)[level == g].sum(0))
    return torch.stack(rows).cumsum(0)


def each_graph_in_a_list(x: Tensor, edges: Tensor, level: Tensor) -> Tensor:
    return torch.stack([spread(x, edges)[level == g].sum(0) for g in range(int(level.max()) + 1)])


def each_part(x: Tensor, edges: Tensor, level: Tensor) -> Tensor:
    total = x.new_zeros(4)
    for rows in torch.split(spread(x, edges), torch.bincount(level).tolist()):
        total = torch.tanh(total + rows.sum(0))
    return total


def each_name(x: Tensor, edges: Tensor, level: Tensor) -> dict[int, Tensor]:
    out = {}
    for g in level.unique().tolist():
        out[g] = spread(x, edges)[level == g].sum(0)
    return out


def leaves_early(x: Tensor, edges: Tensor, level: Tensor, /, *more: Tensor, tol: float = 1e-3) -> tuple[Tensor, int]:
    for i in range(40):
        new = spread(x, edges) * 0.1
        if i % 3 == 2:
            continue
        if (new - x).norm() < tol:
            return new, i
        x = new
    else:
        x = -x
    return x, -1


def nested(x: Tensor, edges: Tensor, level: Tensor) -> Tensor:
    out = []
    for g in range(int(level.max()) + 1):
        h = x * (g + 1)
        try:
            while h.norm() > 1:
                h = spread(h, edges) * 0.1
        finally:
            with torch.no_grad():
                scale = h.abs().max() + 1
            out.append(h / scale)
    return torch.cat(out, dim=1).sum(1)


def behind_a_branch(x: Tensor, edges: Tensor, level: Tensor) -> Tensor:
    x = x + 1 if x.norm() > 0 else x - 1
    while x.norm() > 1:
        x = spread(x, edges) * 0.1
    return x


CASES: dict[str, Callable[[], Callable[..., Any]]] = {
    "by level": ByLevel, "power iteration": Power, "super": Slower,
    **{f.__name__: lambda f=f: f for f in (
        each_graph, each_graph_in_a_list, each_part, each_name, leaves_early, nested, behind_a_branch)},
}  # fmt: skip


def given(n: int, graphs: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 4, dtype=torch.float64, generator=generator)
    return x, random_graph(n, n, 3 * n), torch.arange(n) % graphs


def assert_same(got: Any, want: Any, x: Tensor) -> None:
    torch.testing.assert_close(got, want)
    sums = [sum(t.sin().sum() for t in tree_leaves(out) if isinstance(t, Tensor)) for out in (got, want)]
    torch.testing.assert_close(*(torch.autograd.grad(s, x)[0] for s in sums))


@pytest.mark.parametrize(("case", "door"), [
    pytest.param(case, door, id=f"{case}, {door}", marks=[pytest.mark.slow] * (
        (door == "backend" and case not in ("by level", "power iteration", "each_name")) or case == "super"))
    for case in CASES for door in DOORS
], indirect=["door"])  # fmt: skip
def test_what_is_in_a_loop_is_compiled_once(case: str, door: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    f = CASES[case]()
    compiled = door(f)
    made: list[int] = []
    for n, graphs in ((9, 3), (12, 5), (11, 4), (13, 7)):
        x, edges, level = given(n, graphs)
        x.requires_grad_()
        assert_same(compiled(x, edges, level), f(x, edges, level), x)
        made.append(graphweave.counters()["compilations"])
    counts = graphweave.counters()
    assert counts["eager_fallbacks"] == 0 and counts["kernel_launches"] > 0
    # What came later compiled nothing, but for the first part of one row: torch.compile has code of its own for it.
    assert made[-1] == made[2] + (case == "each_part" and door is DOORS["backend"]), made


def test_what_data_decides_breaks_a_graph_in_known_ways() -> None:
    path = Path(torch._dynamo.__file__).with_name("graph_break_registry.json")
    kinds = {entry["Gb_type"] for entries in json.loads(path.read_text()).values() for entry in entries}
    assert kinds >= dropped_frames._OF_DATA


def test_many_turns_are_no_nested_calls(door: Callable[[Any], Any]) -> None:
    def f(x: Tensor, edges: Tensor) -> tuple[Tensor, int]:
        left, turns = torch.ones((), dtype=x.dtype), 0
        while left > 0:
            x = spread(x, edges) * 0.1 + 1
            turns += 1
            left = left - 2**-11
        return x, turns

    x, edges, _ = given(9, 1)
    got, turns = door(f)(x, edges)
    assert turns == 2048
    torch.testing.assert_close(got, f(x, edges)[0])
    assert graphweave.counters()["kernel_launches"] >= 2048


def test_variables_of_functions_around_are_shared(door: Callable[[Any], Any]) -> None:
    def made() -> tuple[Callable[..., Any], list[int]]:
        calls, seen = 0, []

        def f(x: Tensor, edges: Tensor, *, turns: Tensor, **more: float) -> Tensor:
            nonlocal calls
            scaled = lambda h: h * more["scale"] * calls  # noqa: E731
            for _ in range(int(turns)):
                calls += 1
                seen.append(calls)
                x = spread(scaled(x), edges).sin()
            return x

        return f, seen

    (f, seen), (g, seen_g) = made(), made()
    x, edges, _ = given(9, 1)
    compiled = door(f)
    for turns in (2, 3):
        more = {"turns": torch.tensor(turns), "scale": 0.5}
        torch.testing.assert_close(compiled(x, edges, **more), g(x, edges, **more))
    assert seen == seen_g == [1, 2, 3, 4, 5]


def test_a_loop_behind_a_break_is_compiled_from_the_second_call_on(door: Callable[[Any], Any]) -> None:
    def f(x: Tensor, edges: Tensor, masks: list[Tensor]) -> Tensor:
        x = x + 1 if x.sum() > 0 else x - 1
        for mask in masks:
            x = spread(x, edges)
            if x[mask].sum() > 0:
                x = x * 0.5
        return x

    x, edges, level = given(9, 3)
    masks = [level == g for g in range(3)]
    compiled = door(f)
    launches = []
    for _ in range(2):
        torch.testing.assert_close(compiled(x, edges, masks), f(x, edges, masks))
        launches.append(graphweave.counters()["kernel_launches"])
    assert launches[1] - launches[0] >= 3
    assert graphweave.counters()["eager_fallbacks"] == 1


def test_a_loop_without_source_is_counted_and_named(door: Callable[[Any], Any]) -> None:
    scope: dict[str, Any] = {"spread": spread}
    exec("def f(x, edges):\n    while x.norm() > 1:\n        x = spread(x, edges) * 0.1\n    return x\n", scope)
    x, edges, _ = given(9, 1)
    with pytest.warns(UserWarning, match=r"graphweave: f.*<string>:\d\) runs eagerly.*branching"):
        got = door(scope["f"])(x, edges)
    torch.testing.assert_close(got, scope["f"](x, edges))
    assert graphweave.counters()["eager_fallbacks"] >= 1


def test_explain_names_the_loop_and_what_is_compiled_in_it() -> None:
    report = graphweave.explain(each_graph, *given(9, 3))
    text = str(report)
    assert "a loop runs as Python, and what is in it is compiled: Could not extract" in text
    assert "inference kernels" in text and "runs eagerly" not in text
    (line,) = (b.where for b in report.breaks)
    assert line.own.endswith(f"test_loops_of_data.py:{each_graph.__code__.co_firstlineno + 2}")


def test_explain_counts_and_names_what_runs_as_python() -> None:
    scope: dict[str, Any] = {}
    exec("def f(x):\n    for i in range(int(x.sum())):\n        x = x.sin()\n    return x\n", scope)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = graphweave.explain(scope["f"], torch.full((3,), 2.0))
    (why,) = report.eager
    assert "<string>:2" in why and "could not be traced" in why


def test_a_loop_that_is_traced_stays_in_one_graph(door: Callable[[Any], Any]) -> None:
    def f(x: Tensor, edges: Tensor) -> Tensor:
        for _ in range(3):
            x = spread(x, edges).sin()
        return x

    x, edges, _ = given(9, 1)
    torch.testing.assert_close(door(f)(x, edges), f(x, edges))
    assert graphweave.counters()["compilations"] == 1 and graphweave.counters()["graph_breaks"] == 0


def test_a_module_that_counts_its_calls_is_compiled_once(door: Callable[[Any], Any]) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step, self.heads = 0, 2

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            self.step += 1
            return spread(x, edges).view(-1, self.heads, 2).sum(1) / self.step

    model, other = Counts(), Counts()
    compiled = door(model)
    for n in (9, 12, 15, 10):
        x, edges, _ = given(n, 1)
        torch.testing.assert_close(compiled(x, edges), other(x, edges))
    assert model.step == other.step == 4
    assert graphweave.counters()["compilations"] == 1


def test_a_list_that_has_another_name_is_read_as_it_is(door: Callable[[Any], Any]) -> None:
    """Items are added to lists behind the work that is compiled, so nothing in it may read the list by another name."""

    def totals(x: Tensor, level: Tensor) -> Tensor:
        rows: list[Tensor] = []
        same, total = rows, x
        for _ in range(int(level.max())):
            x = torch.tanh(x * 2 + total)
            rows.append(x)
            total = torch.stack(same).sum(0)
        return total

    compiled = door(totals)
    for depth in (3, 5, 1):
        x, level = torch.randn(5, 3, dtype=torch.float64), torch.arange(depth + 1)
        torch.testing.assert_close(compiled(x, level), totals(x, level))
