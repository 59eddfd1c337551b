"""Random functions of views, strides and writes to parts: values, strides and gradients are eager's."""

from __future__ import annotations

import pytest

from tests.layout_support import DOORS, compare
from tests.programs.views import example, function_of, random_views

SIZES = (9, 6, 12)
DEFAULT, ALL = (0, 1, 2, 3, 4, 5, 78), 120
SEEDS = [pytest.param(seed, marks=() if seed in DEFAULT else pytest.mark.slow) for seed in range(ALL)]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_views(seed: int, door: str) -> None:
    text = random_views(seed)
    try:
        compare(function_of(text), [example(rows, seed) for rows in SIZES], door)
    except Exception as error:
        raise AssertionError(f"seed {seed} through {door}:\n{text}") from error


def test_the_functions_run_in_eager_mode() -> None:
    for seed in range(300):
        views = function_of(random_views(seed))
        for rows in SIZES:
            x, i = example(rows, seed)
            out = views(x.requires_grad_(), i)
            sum(t.sum() for t in (out if isinstance(out, tuple) else (out,))).backward()


def test_the_same_seed_gives_the_same_function() -> None:
    assert random_views(3) == random_views(3) != random_views(4)
