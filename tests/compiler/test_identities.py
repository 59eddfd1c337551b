"""The identities of docs/design/identities.md: what is taken differs as the page says, and only so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import graphweave
from docs import made

PAGE = made.ROOT / "docs/design/identities.md"
TEXT = PAGE.read_text(encoding="utf-8")
RULES = made.PACKAGE / "passes/rules"

EDGES, NODES = 40, 4
SRC = torch.randint(NODES, (EDGES,), generator=torch.Generator().manual_seed(0))
DST = torch.randint(NODES - 1, (EDGES,), generator=torch.Generator().manual_seed(1))
"""Edges between four nodes, of which the last receives nothing."""


def both(text: str, **given: Tensor) -> tuple[Tensor, Tensor]:
    """Eager mode's result of an expression, and the compiled function's."""
    scope = {"torch": torch}
    exec(f"def f({', '.join(given)}, src, dst):\n    return {text}\n", scope)
    torch._dynamo.reset()
    f = scope["f"]
    return f(*given.values(), SRC, DST), graphweave.compile(f)(*given.values(), SRC, DST)


def rows(value: float) -> Tensor:
    return torch.full((NODES, 2), value, dtype=torch.float64)


def one(value: float) -> Tensor:
    return torch.full((NODES, 1), value, dtype=torch.float64)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("x.new_zeros(x.shape).index_add(0, dst, x[src], alpha=-1)", {"x": rows(1.0)}),
        ("x.index_add(0, dst, x[src])", {"x": rows(-0.0)}),
        ("torch.where(x > 0, x * y, 0.) + torch.where(x > 0, 0., y)", {"x": rows(-1.0), "y": rows(-0.0)}),
    ],
)
def test_what_differs_in_the_sign_of_zero_is_equal(text: str, given: dict[str, Tensor]) -> None:
    want, got = both(text, **given)
    assert torch.equal(want, got)  # 0.0 and -0.0 are equal
    differs = want.signbit() != got.signbit()
    assert differs.any(), "the page need not list this any more"
    assert not want[differs].any()


def test_a_division_becomes_a_product_unless_the_reciprocal_overflows() -> None:
    want, got = both("x[src] / b[dst]", x=rows(3.0), b=one(1.7))
    torch.testing.assert_close(got, want, rtol=1e-15, atol=0)
    want, got = both("x[src] / b[dst]", x=rows(0.0), b=one(1e-310))
    assert not want.any() and got.isnan().all()


def test_a_product_moves_into_a_sum_that_overflows() -> None:
    want, got = both("x.new_zeros(x.shape).index_add(0, dst, x[src]) @ w", x=rows(1e308), w=one(1e-200)[:2])
    assert want[:3].isinf().all() and got.isfinite().all()


@pytest.mark.parametrize(
    "text",
    ["x[src] * 0", "x[src] - x[src]", "x[src] / x[src]", "(x[src] == x[src]).double()", "(x + 0.0)[src]",
     "(x - -0.0)[src]", "0.0 - x[src]", "x.index_put((dst,), x[src] * 1)"],
)  # fmt: skip
def test_what_is_not_taken_has_the_bits_of_eager_mode(text: str) -> None:
    x = torch.tensor([[-0.0, 0.0], [torch.inf, torch.nan], [-torch.inf, -0.0], [1.0, -2.0]], dtype=torch.float64)
    want, got = both(text, x=x)
    assert torch.equal(want.isnan(), got.isnan())
    assert torch.equal(want.nan_to_num(), got.nan_to_num()) and torch.equal(
        want.nan_to_num(0.0).signbit()[~want.isnan()], got.signbit()[~want.isnan()]
    )


def test_the_page_names_every_rule_that_is_not_exact() -> None:
    """A rule that is legal for sums, up to something or for finite numbers changes bits."""
    inexact = []
    for path in RULES.glob("*.py"):
        words = path.read_text(encoding="utf-8").split('"""')[1]
        if re.search(r"up to|finite constants", words):
            inexact.append(path)
    assert {p.name for p in inexact} >= {"reciprocal.py", "join_selects.py"}
    assert not [p.name for p in inexact if f"`passes/rules/{p.name}`" not in TEXT]


def test_the_page_names_files_that_exist() -> None:
    for name in re.findall(r"`((?:passes|analysis|frontends|core)/[\w/]+\.py)`", TEXT):
        assert Path(made.PACKAGE / name).exists(), name
