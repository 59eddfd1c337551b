"""Calls of PyTorch on rows that ranks have of their own: which of them keep rows, choose among them or number them."""

from __future__ import annotations

from graphweave.core.types import UNIT
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import AssertIndex, Aten, Cast, Operand, Program, Ref, Reshape, Type

SAME_ROWS = frozenset(
    f"aten.{name}" for name in (
        "clone.default", "alias.default", "detach.default", "_to_copy.default", "contiguous.default",
    )
)  # fmt: skip
"""Calls of which each row of the result is that row of the operand."""
REARRANGES = frozenset(
    f"aten.{name}" for name in (
        "reshape.default", "view.default", "_unsafe_view.default", "repeat.default", "expand.default", "stack.default",
        "cat.default", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "permute.default",
        "t.default", "transpose.int", "flip.default", "index.Tensor", "index_select.default", "select.int",
        "unbind.int", "slice.Tensor", "split.Tensor", "masked_select.default",
    )
)  # fmt: skip
"""Calls whose result has elements of their operands, in another place."""
POSITIONS = frozenset(
    f"aten.{name}" for name in (
        "nonzero.default", "argsort.default", "argsort.stable", "arange.default", "arange.start", "arange.start_step",
    )
)  # fmt: skip
"""Calls whose result are numbers of rows that this rank has."""
COUNTS = frozenset({"aten.arange.default", "aten.arange.start", "aten.arange.start_step"})
"""Calls whose result are the numbers of as many rows as their sizes say."""
SORTS = frozenset({"aten.sort.default", "aten.sort.stable"})
RANKS_ROWS = SORTS | {"aten.topk.default"}
"""Calls whose second result are positions of rows of the operand."""
CHOOSES = frozenset({"aten.nonzero.default", "aten.argsort.default", "aten.argsort.stable"})
"""Calls whose result are positions of rows of the operand."""
OF_SIZES = frozenset(
    f"aten.{name}" for name in (
        "sym_size.int", "_assert_scalar.default", "scalar_tensor.default", "full.default", "zeros.default",
        "ones.default", "empty.memory_format", "_local_scalar_dense.default", "sym_constrain_range_for_size.default",
    )
)  # fmt: skip
"""Calls that read or take sizes. What they make has the same value in every row."""


_BY_PLACE = frozenset({"aten.flip.default", "aten.slice.Tensor"})
"""Calls that choose or turn rows by their place."""
_SAME_NUMBERS = SAME_ROWS | _BY_PLACE | {"aten.index.Tensor", "aten.index_select.default"}
"""Calls whose result has some of their first operand's numbers, in any order."""


def _origin(program: Program, ref: Ref, through: frozenset[str] = frozenset()) -> Ref:
    """The value from which integers have their numbers, seen through casts, checks, other shapes and calls in
    `through`."""
    node = program.nodes[ref]
    while isinstance(node, Reshape | Cast | AssertIndex) or (isinstance(node, Aten) and node.target in through):
        ref = operands(node)[0]
        node = program.nodes[ref]
    return ref


def is_position(program: Program, ref: Ref) -> bool:
    """Whether integers are the positions of rows among all rows of a space, such as those of a mask or a count."""
    node = program.nodes[_origin(program, ref, _SAME_NUMBERS)]
    if not isinstance(node, Aten):
        return False
    if node.target in COUNTS:  # of a size that varies, so of rows that a rank has of its own
        return bool(operands(node))
    if node.target == "builtin.getitem" and node.args[1] == 1:
        source = program.nodes[operands(node)[0]]
        return isinstance(source, Aten) and source.target in RANKS_ROWS and _is_flat(program, operands(source)[0])
    return node.target in CHOOSES and _is_flat(program, operands(node)[0])


def reorders(program: Program, ref: Ref) -> bool:
    """Whether integers are the numbers of a count in another order, or from a later one on, or some by their place."""
    origin = _origin(program, ref, _SAME_NUMBERS)
    node = program.nodes[origin]
    if not isinstance(node, Aten) or node.target not in COUNTS:
        return False
    later = node.target != "aten.arange.default" and isinstance(node.args[0], int) and node.args[0] != 0
    return later or origin != _origin(program, ref, _SAME_NUMBERS - _BY_PLACE)


def is_count(program: Program, ref: Ref) -> bool:
    """Whether integers count rows, one after the other."""
    node = program.nodes[_origin(program, ref)]
    return isinstance(node, Aten) and node.target in COUNTS


def ordering(program: Program, ref: Ref) -> Ref | None:
    """The sort whose order of rows integers are; None for others."""
    ref = _origin(program, ref, SAME_ROWS)
    node = program.nodes[ref]
    if isinstance(node, Aten) and node.target == "builtin.getitem" and node.args[1] == 1:
        ref = operands(node)[0]
        node = program.nodes[ref]
        return ref if isinstance(node, Aten) and node.target in SORTS else None
    return ref if isinstance(node, Aten) and node.target in ("aten.argsort.default", "aten.argsort.stable") else None


def _is_flat(program: Program, ref: Ref) -> bool:
    """Whether the value is one number a row."""
    t = program.types[ref]
    return isinstance(t, Type) and t.space != UNIT and t.shape == ()


def moved(node: Aten) -> tuple[Ref, ...]:
    """The operands whose elements are those of the result, not the indices that choose them."""
    refs = operands(node)
    if node.target in ("aten.index.Tensor", "aten.index_select.default", "aten.masked_select.default"):
        return refs[:1]
    return refs


def along_columns(node: Aten) -> bool:
    """Whether a call on [2, n] chooses or joins columns, so that both rows stay."""
    match node.args:
        case (_, (None, Operand())):
            return True
        case (_, 1 | -1, *_):
            return True
        case _:
            return False
