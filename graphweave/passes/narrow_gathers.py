"""push.sum(half(s * pull(x, m))) -> half(push.sum(s * pull(half(x), m))): messages are rounded as they are gathered.

The message of a mixed-precision layer is float32 where a weight of an edge multiplies it, and its gradient is rounded
to bfloat16 after all. Scaling keeps relative errors, so the row may be rounded before it is gathered: as many roundings
as before, half the bytes of each gathered row, and no rounding for each element of each message. Sums are float32 in
any case, so the sum is rounded once, at its end.

A row that is also multiplied with rows of bfloat16 and summed over features (the gradient of the edge's weight, `g x`)
is read rounded there too, as autocast rounds both operands of a product. Where anything else reads the gathered float32
row, it is gathered as it is, and only the rounding of messages goes. float16 rows are not rounded early: they have a
smaller range than float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphweave.analysis.cones import type_of
from graphweave.core.types import HALF, DType, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.ir.message.infer import numel
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged


@dataclass(frozen=True, slots=True)
class NarrowGathers:
    name: str = "narrow-gathers"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with messages that are rounded before they are gathered; the same object where there are none."""
        users = facts.of(program).flow.users
        sums = _rounded_sums(program, users)
        if not sums:
            return unchanged(program)
        narrowed = _narrowed(program, sums, users)
        build = Builder()
        where: dict[ir.Ref, ir.Ref] = {}
        for ref, node in enumerate(program.nodes):
            loc = program.locs[ref]
            if isinstance(node, ir.Push) and ref in sums:
                cast = program.nodes[node.x]
                assert isinstance(cast, ir.Cast)
                total = build.add(replace(node, x=where[cast.x], map=where[node.map]), loc)
                where[ref] = build.add(ir.Cast(total, cast.dtype), loc)
            elif isinstance(node, ir.Pull) and ref in narrowed:
                row = build.add(ir.Cast(where[node.x], DType.bf16), loc)
                where[ref] = build.add(ir.Cast(build.add(ir.Pull(row, where[node.map]), loc), DType.f32), loc)
            else:
                where[ref] = build.add(with_operands(node, where.__getitem__), loc)
        outputs = [None if r is None else where[r] for r in program.outputs]
        return Rewritten(build.program(outputs, program.spaces), where)


def _rounded_sums(program: ir.Program, users: Sequence[Sequence[ir.Ref]]) -> dict[ir.Ref, ir.Ref]:
    """Sums of rounded messages, each with the pull that its messages scale. Nothing else reads these messages."""
    outputs = set(program.outputs)
    found: dict[ir.Ref, ir.Ref] = {}
    for ref, node in enumerate(program.nodes):
        cast = program.nodes[node.x] if isinstance(node, ir.Push) and node.fold is Fold.sum else None
        if not (isinstance(node, ir.Push) and isinstance(cast, ir.Cast) and cast.dtype in HALF) or node.x in outputs:
            continue
        pull = _scaled(program, cast.x) if type_of(program, cast.x).dtype is DType.f32 else None
        if pull is not None and all(_sums(program, user, node.x) for user in users[node.x]):
            found[ref] = pull
    return found


def _sums(program: ir.Program, user: ir.Ref, message: ir.Ref) -> bool:
    node = program.nodes[user]
    return isinstance(node, ir.Push) and node.fold is Fold.sum and node.x == message


def _scaled(program: ir.Program, ref: ir.Ref) -> ir.Ref | None:
    """The pull of which `ref` is a multiple, element by element; None where there is none."""
    node = program.nodes[ref]
    match node:
        case ir.Pull():
            return ref
        case ir.Reshape(x) | ir.Pointwise(Op.neg, (x,)) | ir.Pointwise(Op.div, (x, _)) if _as_wide(program, x, ref):
            return _scaled(program, x)
        case ir.Cast(x) if type_of(program, x).dtype in HALF:
            return _scaled(program, x)
        case ir.Pointwise(Op.mul, args):
            found = (_scaled(program, arg) for arg in args if _as_wide(program, arg, ref))
            return next((pull for pull in found if pull is not None), None)
    return None


def _as_wide(program: ir.Program, x: ir.Ref, ref: ir.Ref) -> bool:
    return numel(type_of(program, x).shape) == numel(type_of(program, ref).shape)


def _narrowed(program: ir.Program, sums: Mapping[ir.Ref, ir.Ref], users: Sequence[Sequence[ir.Ref]]) -> set[ir.Ref]:
    """Pulls of wide float32 rows that all readers may read rounded to bfloat16."""
    outputs = set(program.outputs)

    def may_round(ref: ir.Ref, dotted: bool) -> bool:
        """Whether all readers of `ref`, a multiple of the pull, round it or, where `dotted`, sum it over features."""
        return ref not in outputs and all(reads_rounded(user, ref, dotted) for user in users[ref])

    def reads_rounded(user: ir.Ref, ref: ir.Ref, dotted: bool) -> bool:
        match program.nodes[user]:
            case ir.Cast(_, DType.bf16):
                return all(push in sums for push in users[user])
            case ir.Reshape() | ir.Pointwise(Op.neg):
                return may_round(user, dotted)
            case ir.Pointwise(Op.mul, args) if args != (ref, ref):
                other = args[0] if args[1] == ref else args[1]
                return may_round(user, dotted or _is_widened(program, other))
            case ir.Reduce(_, Fold.sum):
                return dotted
        return False

    def is_wide(pull: ir.Ref) -> bool:
        t = type_of(program, pull)
        return t.dtype is DType.f32 and numel(t.shape) >= _MIN_WIDTH

    return {pull for pull in set(sums.values()) if is_wide(pull) and may_round(pull, False)}


def _is_widened(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether `ref` is bfloat16 in memory, and only read as float32."""
    while isinstance(node := program.nodes[ref], ir.Reshape):
        ref = node.x
    return isinstance(node, ir.Cast) and type_of(program, node.x).dtype is DType.bf16


_MIN_WIDTH = 16
"""Rows of fewer numbers are gathered as float32: they take one cache line either way."""
