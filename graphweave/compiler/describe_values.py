"""Programs -> notes for `explain`, value by value: what makes it, what became of it, and what it was in the captured
program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from graphweave.analysis.flow import Flow, ancestors, is_scalar
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import Plan
from graphweave.compiler.report import RewriteNote, Role, SpaceNote, ValueNote
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.show import operation, show, show_type
from graphweave.lower.schedule import Region
from graphweave.passes.rewritten import Rewritten


def describe_rewrites(name: str, before: ir.Program, done: Rewritten, names: Mapping[str, str]) -> RewriteNote:
    """How the passes rewrote the captured graph `name`, whose inputs have the user's `names`. A value before is
    "unused" if nothing became of it as it stands there: it was rewritten into others, or is not needed."""
    values = tuple(
        _value_note(before, r, operands, names, "kernel" if r in done.where else "unused")
        for r, operands in enumerate(Flow(before).operands)
    )
    return RewriteNote(show(before), show(done.program), done.steps, done.notes, name, values)


def describe_values(plan: Plan, glossary: Glossary) -> tuple[ValueNote, ...]:
    """The values of a half, and which kernels compute them."""
    program, operands = plan.program, plan.facts.flow.operands
    stored, computed, called = set[ir.Ref](plan.hoisted), dict[ir.Ref, list[str]](), set[ir.Ref]()
    for at, step in enumerate(plan.schedule.steps):
        members = step.members if isinstance(step, Region) else (step.ref,)
        if isinstance(step, Region) and at in plan.kernels:
            stored.update(step.outputs)
            for r in _computed_by(plan, step):
                computed.setdefault(r, []).append(plan.kernels[at].lowered.kernel.name)
        else:
            stored.update(members)
            called.update(members)
    once = ancestors(program, plan.hoisted) if plan.hoisted else set[ir.Ref]()
    notes = []
    for r, read in enumerate(operands):
        names = tuple(computed.get(r, ()))
        role: Role = "kernel" if names else "pytorch" if r in called else "once" if r in once else "unused"
        if role == "pytorch" and _is_free(plan, r):
            role = "view"
        notes.append(_value_note(program, r, read, glossary.names, role, names, r in stored))
    return tuple(notes)


def describe_spaces(program: ir.Program, glossary: Glossary) -> tuple[SpaceNote, ...]:
    spaces = (space for space, _ in program.spaces if space != UNIT)
    return tuple(SpaceNote(s.name, glossary.space(s), glossary.statistics.rows(s)) for s in spaces)


def origins(where: Mapping[ir.Ref, ir.Ref]) -> dict[ir.Ref, tuple[ir.Ref, ...]]:
    """`where`, from old positions to new ones, the other way round."""
    found: dict[ir.Ref, tuple[ir.Ref, ...]] = {}
    for old, new in where.items():
        found[new] = (*found.get(new, ()), old)
    return found


def kind_of(node: ir.Node) -> str:
    """A word for what a node does: "mul", "push.sum", "aten.cat.default"."""
    match node:
        case ir.Aten():
            return operation(node)
        case ir.Push(fold=fold) | ir.Reduce(fold=fold):
            return f"{type(node).__name__.lower()}.{fold.value}"
        case _:
            return str(getattr(getattr(node, "op", None), "value", None) or type(node).__name__.lower())


def _computed_by(plan: Plan, region: Region) -> Iterator[ir.Ref]:
    """The members of a region, and the values that its kernel computes on the way to them."""
    operands, nodes = plan.facts.flow.operands, plan.program.nodes
    left, seen = list(region.members), set(region.members)
    while left:
        yield (ref := left.pop())
        new = {r for r in operands[ref] if r not in plan.schedule.stored and not isinstance(nodes[r], ir.Input)} - seen
        seen |= new
        left += new


def _is_free(plan: Plan, ref: ir.Ref) -> bool:
    """Whether a call of PyTorch's only looks at its operand in another way."""
    match plan.program.nodes[ref]:
        case ir.Aten():
            return not plan.facts.flow.is_work(ref)
        case ir.Reshape() | ir.Permute() | ir.Broadcast() | ir.Slice():
            return True
    return False


def _value_note(
    program: ir.Program, ref: ir.Ref, operands: Iterable[ir.Ref], names: Mapping[str, str], role: Role,
    kernels: tuple[str, ...] = (), stored: bool = False,
) -> ValueNote:  # fmt: skip
    node, kind = program.nodes[ref], kind_of(program.nodes[ref])
    match node:
        case ir.Input(name):
            role, kernels, kind = "given", (), names.get(name, name)
        case ir.Const():
            role, kernels = "constant", ()
        case ir.MapOf() | ir.ToUnit():
            role, kernels = "index", ()
        case _ if is_scalar(program, ref):
            role = "index"
    return ValueNote(
        ir.MESSAGE.write(node), kind, show_type(program.types[ref]), tuple(dict.fromkeys(operands)),
        program.locs[ref], role, kernels, stored,
    )  # fmt: skip
