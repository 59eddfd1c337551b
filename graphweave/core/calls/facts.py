"""The words of a row of `core/calls`: what results of a call hold, which rows are whose, which argument is an index."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Elements(Enum):
    """The kind of a result's elements."""

    same = "same"
    """Those of the first operand, each in its place."""
    converted = "converted"
    """Those of the first operand, each in its place, in another type."""
    reshaped = "reshaped"
    """Those of the first operand in row-major order: the operand and the result's shape say all."""
    moved = "moved"
    """Those of the operands, in other places."""
    positions = "positions"
    """Numbers of rows of the operand, of which none occurs twice if the operand has one number a row."""
    places = "places"
    """Numbers of rows of the operand, of which some may occur twice."""
    numbered = "numbered"
    """Numbers from 0 on, one after the other."""
    counted = "counted"
    """Numbers one after the other, from another one on or in other steps."""
    shuffled = "shuffled"
    """Numbers from 0 on, in any order, each once."""
    sizes = "sizes"
    """Made from sizes and plain numbers: the same in every row, and on every rank with these sizes."""
    computed = "computed"
    """Others."""


class Lead(Enum):
    """Which rows of which operands are the rows of the result. A row of a table with no such member says: none."""

    each = "each"
    """Those of each operand with as many dims."""
    given = "given"
    """Those of the operands at `CallFacts.operands`."""
    reduced = "reduced"
    """Those of the first operand, unless its first dim is one of `dim` (all if None), which it reduces."""
    along = "along"
    """Those of the first operand, unless `dim` is the first dim: the call works along it, or takes a part of it."""
    taken = "taken"
    """Those of the first operand, unless the call takes an item of the first dim."""
    row_major = "row_major"
    """Those of the first operand, if the number of rows is the same."""
    repeated = "repeated"
    """Those of the first operand, if it has as many dims."""
    widened = "widened"
    """Those of the first operand, unless the dim at argument `dim` of the result, which is new, is the first."""
    permuted = "permuted"
    """Those of the first operand, if its first dim stays the first."""
    joined = "joined"
    """Those of each tensor of a list, unless they are concatenated along the first dim."""
    stacked = "stacked"
    """Those of each tensor of a list, unless the new dim is the first."""
    product = "product"
    """Those of the first factor, if the second is shared; or none, if the sum over rows of products is made."""
    matrices = "matrices"
    """Those of the operands at `CallFacts.operands`, whose last dims are multiplied as matrices."""
    equation = "equation"
    """Those that the equation of the call says."""
    indexed = "indexed"
    """Those that `CallFacts.index` says."""
    parts = "parts"
    """Those of the operand, for each of several results, unless it is cut along the first dim."""


class ByRank(Enum):
    """Work that a rank may do with its own rows alone, so that all ranks together have done it to the whole graph."""

    each = "each"
    """The call: it does the same to each row."""
    integers = "integers"
    """The call on integers: it puts own rows into other places, or numbers them."""


@dataclass(frozen=True, slots=True)
class IndexUse:
    """A call that moves rows along an index.

    It reads row index[e] of argument 0 for row e of its result; or with `pushes` it brings row e of argument `source`
    to row index[e] of its result, which is otherwise argument 0. `at` is the position of the index, and `dim` that of
    the argument that says along which dim it counts (None: the first).
    """

    at: int
    dim: int | None = 1
    pushes: bool = False
    source: int | None = None
    """Position of what is pushed; None for a number."""
    listed: bool = False
    """Whether the argument is a list with an index, or None, for each dim."""
    spread: bool = False
    """Whether the index has a number for each element, so that one number a row stands repeated over the features."""
    wraps: bool = False
    """Whether negative numbers count from the end."""
    base: bool = True
    """Whether argument 0 is what is indexed, or what the result has where nothing is pushed."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The facts of one overload. A fact that is not known has its default, which is the safe value."""

    results: tuple[Elements, ...] = (Elements.computed,)
    """For each result, what its elements are."""
    rows: Lead | None = None
    """Which rows of operands are rows of the result."""
    dim: str = "dim"
    """Name of the argument with the dim, or dims, of `rows`."""
    default: int | None = None
    """The dim where the argument is missing, if the schema has no default."""
    operands: tuple[int, ...] = ()
    """Positions of operands whose rows are those of the result (`Lead.given`), or are so as those of the first are."""
    alike: tuple[str, ...] = ()
    """Names of the tensor arguments that have the dims of the result but for `dim`, for a call that works along it."""
    kept: tuple[int, ...] = ()
    """Positions of results, of several, that have the rows of `operands`, by default of the first operand."""
    together: tuple[int, ...] = ()
    """Positions of results, of several, that have as many rows as each other."""
    index: IndexUse | None = None
    by_rank: ByRank | None = None
    """The work that each rank may do alone; None: a program over ranks with such a call on divided rows is refused."""
    of_data: bool = False
    """Whether data decides how many rows the result has; of several, those that are not `kept`."""
    gathers: bool = False
    """Whether it moves rows in a way that `index` does not describe."""
    any_strides: bool = False
    """Whether the result does not depend on the strides of the operands."""
    works: bool = True
    """Whether it computes anything on tensors."""

    @property
    def elements(self) -> Elements:
        """The kind of the result's elements; `computed` for a call with several results."""
        return self.results[0] if len(self.results) == 1 else Elements.computed

    @property
    def moves_rows(self) -> bool:
        """Whether the call is a gather or a scatter."""
        return self.index is not None or self.gathers
