"""Well-formedness of message programs. Programs are verified between passes, and when written by hand."""

from __future__ import annotations

from graphweave.core.errors import IRError
from graphweave.core.exact import exact
from graphweave.core.numbers import Number, holds, is_neutral
from graphweave.core.sizes import Size
from graphweave.core.types import UNIT, DType, Fold, Op, OwnFold, Space, belongs
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands, spaces_in
from graphweave.ir.message.infer import infer
from graphweave.ir.message.nodes import Program


def verify(program: Program) -> None:
    """Raises IRError at the first node that is out of order, ill typed or on an undeclared space.

    It also checks that input names are distinct, that each space has the distinct rows of at most one node, that fills
    and constants fit their dtype, and that no operator is used on a dtype that it does not take.
    """
    count = len(program.nodes)
    if not len(program.types) == len(program.locs) == count:
        raise IRError(
            f"expected a type and a location for each of {count} nodes"
            f" (got {len(program.types)} types, {len(program.locs)} locations)"
        )
    spaces = _declared(program)
    names: set[str] = set()
    distinct: dict[Space, ir.Node] = {}
    for ref, (node, t) in enumerate(zip(program.nodes, program.types, strict=True)):
        _node(ref, node, t, program)
        for space in (*spaces_in(node), *spaces_in(t)):
            if space not in spaces:
                raise IRError(f"%{ref}: space {space} is not declared (declared: {', '.join(map(str, spaces))})")
        if isinstance(node, ir.Input):
            if node.name in names:
                raise IRError(f"%{ref}: expected distinct names of inputs, {node.name!r} comes twice")
            names.add(node.name)
        if isinstance(node, ir.Distinct) and distinct.setdefault(node.space, node) != node:
            raise IRError(f"%{ref}: space {node.space} has rows of another node already: {distinct[node.space]!r}")
        of = program.nodes[node.distinct] if isinstance(node, ir.DistinctKey) else None
        if isinstance(node, ir.DistinctKey) and isinstance(of, ir.Distinct) and not 0 <= node.at < len(of.keys):
            raise IRError(f"%{ref}: expected one of {len(of.keys)} keys (got {node.at})")
    for ref_out in program.outputs:
        if ref_out is not None and not 0 <= ref_out < count:
            raise IRError(f"output %{ref_out} is no node (there are {count})")


def _declared(program: Program) -> dict[Space, Size | None]:
    spaces: dict[Space, Size | None] = {UNIT: 1}
    for space, size in program.spaces:
        if space in spaces:
            why = "is always there" if space == UNIT else "is declared twice"
            raise IRError(f"space {space} {why}: expected each space of rows once")
        spaces[space] = size
    return spaces


def _node(ref: int, node: ir.Node, t: ir.ValueType, program: Program) -> None:
    for r in operands(node):
        if not 0 <= r < ref:
            raise IRError(f"%{ref}: operand %{r} of {node!r} must come earlier")
    if isinstance(node, ir.Concat | ir.Join) and not node.xs:
        raise IRError(f"%{ref}: expected blocks to concatenate, got none")
    wanted = infer(node, program.types)
    if wanted != t:
        raise IRError(f"%{ref}: type of {node!r} must be {wanted} (got {t})")
    match node, t:
        case ir.Const(value), ir.Type(dtype=dtype):
            _fits(ref, value, dtype)
        case ir.Push(fold=fold, empty=empty), ir.Type(dtype=dtype):
            if exact(empty) != 0:  # 0, the default, is that of any type
                _fits(ref, empty, dtype)
            if isinstance(fold, OwnFold):
                _own_foldable(ref, node, fold, t)
            else:
                _foldable(ref, fold, dtype)
        case ir.Reduce(dims=dims, fold=fold), ir.Type(dtype=dtype):
            _foldable(ref, fold, dtype)
            if len(set(dims)) != len(dims):
                raise IRError(f"%{ref}: expected distinct dims (got {dims})")
            _not_empty(ref, fold, dims, program.types[node.x])
        case ir.Pointwise(op, args), _:
            _computes(ref, op, program.types[args[-1]])


def _fits(ref: int, value: Number, dtype: DType) -> None:
    """Raises IRError for a number of another kind than `dtype`. A float may be written as an integer."""
    kinds = (float, int) if dtype.is_float else int
    if isinstance(value, bool) is not (dtype is DType.bool) or not isinstance(value, kinds) or not holds(dtype, value):
        raise IRError(f"%{ref}: {value!r} cannot be a value of {dtype.value}")


def _foldable(ref: int, fold: Fold, dtype: DType) -> None:
    if dtype is DType.bool and fold in (Fold.sum, Fold.mul):
        raise IRError(f"%{ref}: bool has no {fold.value}: cast it, or fold by max or min")


def _own_foldable(ref: int, push: ir.Push, fold: OwnFold, t: ir.Type) -> None:
    if not t.dtype.is_float or t.space == UNIT or push.fused:
        raise IRError(f"%{ref}: an own fold is one of floats into rows (got {t}): use a Fold")
    if not is_neutral(push.empty, fold, t.dtype):
        raise IRError(f"%{ref}: an own fold of nothing is its identity {fold.identity} (got {push.empty})")


def _not_empty(ref: int, fold: Fold, dims: tuple[int, ...], t: ir.ValueType) -> None:
    if fold in (Fold.max, Fold.min) and isinstance(t, ir.Type) and any(t.shape[d] == 0 for d in dims):
        raise IRError(f"%{ref}: no features have no {fold.value} (dims {dims} of {t})")


def _computes(ref: int, op: Op, t: ir.ValueType) -> None:
    """Raises IRError for an operator on a dtype that it does not take. Torch may give floats for integers, whereas the
    result of Pointwise has the dtype of its operands."""
    if not isinstance(t, ir.Type) or belongs(t.dtype, op.facts.takes):
        return
    if op.facts.takes == "floats":
        raise IRError(f"%{ref}: {op.value} needs floating point operands (got {t.dtype.value}): cast them")
    raise IRError(f"%{ref}: {op.value} is not defined on bool: cast the operands")
