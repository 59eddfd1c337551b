"""Constructs that `shard` refuses wherever they stand, because they need rows that lie on other ranks.

Most programs of the usual length have one of them. So programs for ranks are grown without, but for one in twenty.
"""

from __future__ import annotations

from tests.fuzz.growing import FAMILIES

_AVOIDED = {
    "gather": ("gather one dim", "column of an index", "transposed", "one_hot", "take_along_dim", "take"),
    "scatter": ("index_add columns", "one_hot", "mean by bincount", "scatter add"),
    "segment": None,
    "count": ("bincount", "one_hot", "compare"),
    "mask": ("less", "constant", "and"),
    "order of edges": ("sort of values", "topk", "first half"),
    "unique": None,
    "along features": ("gather", "median", "flip", "roll", "cumsum", "sort", "topk"),
    "masked rows": ("nonzero", "nonzero tuple", "nonzero squeeze", "where"),
    "mask as a factor": ("masked_scatter",),
    "pointwise of two": ("jumping",),
    "pointwise": ("isfinite",),
    "integers": ("remainder", "floor"),
    "views": ("chunk", "index columns", "list of columns", "unfold"),
    "along rows": (
        "cumsum", "cummax", "flip", "roll", "sort", "sort rows", "topk", "rank", "similar", "arange", "arange row",
        "softmax",
    ),
    "dtypes": ("python bool",),
    "sizes": (
        "ratio", "branch", "none at all", "two rows", "half the rows", "eye", "adjacency", "linspace", "no edges",
        "one edge", "equal sizes", "once an edge", "dims but those of 1", "dims of selected",
    ),
    "other rows": (
        "from the second", "but the last", "every second", "first two", "transpose", "transposed slice",
        "transposed contiguous", "transpose of three", "einsum", "differences", "flat", "one row", "last row", "pairs",
        "chunk", "split", "pad", "cat with itself", "diagonal", "view transposed", "repeated", "expanded",
        "expanded flat", "stack", "repeat",
    ),
    "in place": (
        "row", "rows", "rows from", "every second", "select mul_", "zero_ a slice", "fill_", "transposed", "flat",
        "flat slice", "swap", "index_fill_", "copy_", "unsqueezed", "select sub_",
    ),
    "in place with another": ("rows", "copy_", "row"),
    "state": ("slice",),
    "effects": None,
    "failing traces": None,
    "python random": None,
    "start values of integers": None,
    "integers at their ends": None,
    "start values of odd floats": None,
    "odd floats": None,
}  # fmt: skip


_ARGUMENTS = {"q"}
"""Rows of three dimensions, whose widths are not compiled in, so that they are left to PyTorch."""


def avoided() -> frozenset[str]:
    """The constructs, as "family:spelling", and arguments."""
    return _ARGUMENTS | {
        f"{family}:{key}" for family, keys in _AVOIDED.items() for key in (FAMILIES[family] if keys is None else keys)
    }
