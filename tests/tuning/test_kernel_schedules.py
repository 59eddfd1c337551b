"""A schedule for each kernel: by line, by half and by name, next to kernels that the compiler schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave import Schedule
from graphweave.core.errors import ScheduleError, SettingsError

pytestmark = pytest.mark.usefixtures("fresh_compiler")

HERE = Path(__file__).name
DOORS: dict[str, Callable[..., Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f, options: torch.compile(f, backend="graphweave", dynamic=True, options=options),
}


def two_layers(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    h = torch.zeros_like(x).index_add(0, dst, x[src].tanh())
    y = h @ w
    return torch.zeros_like(y).index_add(0, dst, y[src].sin())


FIRST = inspect.getsourcelines(two_layers)[1] + 1
SECOND = FIRST + 2


def arguments(width: int = 16) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(4)
    x, w = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((30, width), (width, 8)))
    return x.requires_grad_(), w.requires_grad_(), *torch.randint(30, (200,), generator=generator).view(2, 100)


def loops(schedule: Any) -> dict[str, str]:
    """The loop IR of each kernel by its name."""
    run = graphweave.compile(two_layers, options={"schedule": schedule})
    told = graphweave.explain(run, *arguments()).text("loops")
    parts = [part.partition("\n") for part in told.split("loop IR of kernel ")[1:]]
    return {name: text.partition("==")[0] for name, _, text in parts}


@pytest.mark.parametrize(
    "schedule",
    [
        {f"{HERE}:{FIRST}": Schedule(walk="edges", unroll=2), f"{HERE}:{SECOND}": Schedule(source_partitions=3)},
        {"forward": Schedule(walk="edges"), "backward": Schedule(source_partitions=2, feature_tile=4)},
    ],
    ids=["lines", "halves"],
)
@pytest.mark.parametrize("door", DOORS)
def test_results_and_gradients_are_eager_modes(door: str, schedule: dict[str, Schedule]) -> None:
    args = arguments()
    got = DOORS[door](two_layers, options={"schedule": schedule})(*args)
    want = two_layers(*args)
    torch.testing.assert_close(got, want)
    for mine, theirs in zip(
        torch.autograd.grad(got.square().sum(), args[:2]), torch.autograd.grad(want.square().sum(), args[:2]),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(mine, theirs)


def test_a_schedule_of_a_line_is_that_of_its_kernels_alone() -> None:
    plain, own = loops(None), loops({f"{HERE}:{SECOND}": Schedule(unroll=3)})
    changed = {name for name in plain if plain[name] != own[name]}
    assert changed and changed < set(plain)
    assert any(name.startswith("backward") for name in changed), "the line has a kernel in the backward, too"


def test_a_kernel_follows_the_first_key_that_names_it() -> None:
    line, half = {f"{HERE}:{SECOND}": Schedule(unroll=3)}, {"forward": Schedule(unroll=2)}
    first, second = loops({**line, **half}), loops({**half, **line})
    both = {name for name in first if first[name] != second[name]}
    assert both and all(name.startswith("forward") for name in both)


def test_fields_that_no_kernel_of_a_line_takes_are_refused() -> None:
    run = graphweave.compile(two_layers, options={"schedule": {f"{HERE}:{SECOND}": Schedule(register_tile=3)}})
    with pytest.raises(ScheduleError, match="no kernel of the function can take register_tile=3"):
        run(*arguments())


@pytest.mark.parametrize("key", ["elsewhere.py:3", "forward_99"])
def test_a_name_that_no_kernel_has_is_a_warning(key: str) -> None:
    run = graphweave.compile(two_layers, options={"schedule": {key: Schedule(unroll=2)}})
    with pytest.warns(UserWarning, match=rf"no kernel of .* has the name or the line '{key}'; there are .*forward_\d"):
        run(*arguments())


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_gradients_of_gradients_are_the_compilers_choice(half: str) -> None:
    args = arguments()
    run = graphweave.compile(two_layers, options={"schedule": {half: Schedule(walk="rows")}})
    grads = []
    for f in (run, two_layers):
        (first,) = torch.autograd.grad(f(*args).square().sum(), args[0], create_graph=True)
        grads.append(torch.autograd.grad(first.square().sum(), args[:2]))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("value", [{}, {3: Schedule()}, {"forward": "fast"}, {"forward": "tune", "backward": "tune"}])
def test_dicts_of_anything_else_are_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match="schedule"):
        graphweave.compile(two_layers, options={"schedule": value})
