"""How close every comparison of numbers came to its tolerance: `pytest --margins`.

Another processor, library or number of threads adds in another order, so an error that takes most of its tolerance
here exceeds it there. The option lists the tests whose errors took more than a quarter of what was allowed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.testing import _comparison

LISTED = 0.25
"""Tests whose largest error takes this share of the tolerance are listed."""

_largest: dict[str, float] = {}


def note(share: float) -> None:
    """Records that the running test used this share of a tolerance; the largest one counts."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    _largest[test] = max(_largest.get(test, 0.0), share)


def listed(largest: dict[str, float]) -> list[tuple[str, float]]:
    """The tests to look at, those that came closest first."""
    return sorted(((t, s) for t, s in largest.items() if s >= LISTED), key=lambda item: (-item[1], item[0]))


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Notes every comparison by torch.testing.assert_close. Returns the shares so far, by test."""
    plain = _comparison.TensorLikePair._compare_regular_values_close

    def compare(self: Any, actual: Tensor, expected: Tensor, *, rtol: float, atol: float, **other: Any) -> None:
        if actual.is_floating_point() and actual.numel():
            allowed = atol + rtol * expected.double().abs()
            shares = (actual.double() - expected.double()).abs() / allowed
            note(shares[shares.isfinite()].max().item() if shares.isfinite().any() else 0.0)
        plain(self, actual, expected, rtol=rtol, atol=atol, **other)

    _comparison.TensorLikePair._compare_regular_values_close = compare  # type: ignore[method-assign]
    try:
        yield _largest
    finally:
        _comparison.TensorLikePair._compare_regular_values_close = plain  # type: ignore[method-assign]
