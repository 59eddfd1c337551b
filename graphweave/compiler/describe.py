"""Plan -> notes for `explain`: what each kernel computes in the user's words, and what is left to PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from graphweave.analysis.edge_rows import EdgeRows
from graphweave.analysis.typed import is_typed
from graphweave.compiler.describe_values import describe_spaces, describe_values, kind_of
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.kernel_costs import kernel_cost
from graphweave.compiler.plan import Plan, label_of
from graphweave.compiler.report import FallbackNote, GraphNote, KernelNote, SavedNote
from graphweave.core.errors import NO_KERNEL, Reason
from graphweave.core.lines import Location
from graphweave.core.types import UNIT
from graphweave.ir.loop.show import show as show_kernel
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.show import operation, show, show_type
from graphweave.lower.parameters import value_name
from graphweave.lower.schedule import Region


def describe(
    plan: Plan, wrapper: str, refused: Mapping[ir.Ref, Reason], glossary: Glossary, saved: tuple[ir.Ref, ...],
    recompute: str = "",
) -> GraphNote:  # fmt: skip
    """`plan` in words. `refused` are the importer's reasons for calls of PyTorch, `saved` the values kept for the
    backward."""
    program, rows = plan.program, EdgeRows(plan.program)
    fallbacks = [
        FallbackNote(
            _operators(program, step),
            glossary.in_words(why),
            _locations(program, step.members),
            any(map(rows.on_edges, step.members)),
        )
        for i, why in plan.refused.items()
        if isinstance(step := plan.schedule.steps[i], Region)
    ]
    products = native = 0
    for step in plan.schedule.steps:
        if isinstance(step, Region):
            continue
        node = program.nodes[step.ref]
        products += isinstance(node, ir.MatMul | ir.AddMatMul | ir.Gram) or is_typed(program, step.ref)
        native += plan.is_native(step.ref)
        if plan.is_left(step.ref):
            why = refused.get(step.ref, NO_KERNEL)
            words, on_edges = glossary.in_words(why), rows.on_edges(step.ref)
            fallbacks.append(FallbackNote(operation(node), words, _locations(program, (step.ref,)), on_edges))
    names = tuple(f"%{r}: {show_type(program.types[r])}" for r in saved)
    keeps = tuple(_saved_notes(plan, saved, glossary))
    return GraphNote(
        str(plan.name), plan.name.half, show(program), _kernel_notes(plan, glossary), tuple(fallbacks),
        len(plan.hoisted), names, wrapper, recompute, keeps, products,
        () if plan.prelude is None else _kernel_notes(plan.prelude, glossary), describe_values(plan, glossary),
        describe_spaces(program, glossary), tuple(r for r in program.outputs if r is not None), saved,
        device=plan.options.device, native=native,
    )  # fmt: skip


def _kernel_notes(plan: Plan, glossary: Glossary) -> tuple[KernelNote, ...]:
    program, notes = plan.program, []
    for k in plan.kernels.values():
        region = k.region
        along = None if region.map is None else f"map %{region.map}"
        computes = tuple(f"{value_name(program, r)} ({program.locs[r] or 'generated'})" for r in region.members)
        does, lines = kernel_words(program, region, glossary), _locations(program, region.members)
        notes.append(
            KernelNote(
                k.lowered.kernel.name,
                region.rows.name,
                along,
                computes,
                k.text,
                does,
                lines,
                "\n".join(map(show_kernel, k.kernels)),
                tuple(k.scheduled.not_taken.items()),
                kernel_cost(program, k, glossary.statistics),
                label_of(plan.name, k.lowered.kernel.name),
            )
        )
    return tuple(notes)


def kernel_words(program: ir.Program, region: Region, glossary: Glossary) -> str:
    """The work of a kernel: "rows of x: max, 3 sums over edges of edge_index, 2 matrix products"."""
    walked: Counter[str] = Counter()
    totals = beside = products = 0
    over = ""
    for ref in region.members:
        node, t = program.nodes[ref], program.types[ref]
        if isinstance(node, ir.Push):
            along = program.types[node.map]
            assert isinstance(along, ir.MapType)
            if along.cod == UNIT:
                totals += 1
            else:
                over = glossary.space(along.dom)
                walked[node.fold.value] += 1
        elif isinstance(node, ir.MatMul | ir.AddMatMul | ir.Gram):
            products += 1
        elif isinstance(t, ir.Type) and t.space != region.rows:
            beside += 1
            over = glossary.space(t.space)
    parts = []
    if region.rows == UNIT:
        parts.append(f"{len(region.members)} value{'s' * (len(region.members) > 1)}")
    if walked:
        folds = [fold if n == 1 else f"{n} {fold}s" for fold, n in walked.items()]
        parts.append(f"{', '.join(folds)} over {over}")
    if beside:
        parts.append(f"{beside} value{'s' * (beside > 1)} for each of {over}")
    if products:
        parts.append(f"{products} matrix product{'s' * (products > 1)}")
    if totals:
        parts.append(f"{totals} total{'s' * (totals > 1)} over all rows")
    return f"{glossary.space(region.rows)}: {', '.join(parts) or 'row by row'}"


def _saved_notes(plan: Plan, saved: tuple[ir.Ref, ...], glossary: Glossary) -> Iterator[SavedNote]:
    program = plan.program
    for ref in saved:
        t = program.types[ref]
        if isinstance(t, ir.Type) and not plan.facts.flow.lies_in_input(ref):
            shape = f"[{', '.join(map(str, t.shape))}] {t.dtype.value}"
            yield SavedNote(glossary.space(t.space), shape, glossary.bytes_of(t), program.locs[ref])


def _operators(program: ir.Program, region: Region) -> str:
    """The kinds of operators of a region that has no kernel."""
    kinds = dict.fromkeys(kind_of(program.nodes[r]) for r in region.members)
    return f"a kernel of {', '.join(kinds)}"


def _locations(program: ir.Program, refs: tuple[ir.Ref, ...]) -> tuple[Location, ...]:
    return tuple(dict.fromkeys(program.locs[r] for r in refs if program.locs[r]))
