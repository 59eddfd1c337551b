"""Folds as C++."""

from __future__ import annotations

from graphweave.core.types import Fold

FOLDS: dict[Fold, tuple[str, str]] = {
    Fold.sum: ("0", "a + b"),
    Fold.mul: ("1", "a * b"),
    Fold.max: ("kNothing", "a != a || a > b ? a : b"),
    Fold.min: ("kNothing", "a != a || a < b ? a : b"),
}
"""The value that a fold begins with, and how it takes another element; a maximum begins with the first element."""
