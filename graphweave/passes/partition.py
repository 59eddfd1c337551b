"""joint program -> forward program + backward program, and what the one saves for the other.

A policy (`passes/recompute.py`) says what is computed again instead of saved. With "auto" the forward saves nothing on
an edge space that can be recomputed at O(1) work an element from values on nodes: the backward program starts from
values on nodes, expensive results, seeds of random masks, and tensors that depend on the graph alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import Extract, ancestors, extract
from graphweave.analysis.typed import computed_for, sources
from graphweave.core.choices import Recompute
from graphweave.core.errors import IRError
from graphweave.core.sizes import Applied, leaves
from graphweave.core.types import UNIT, Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands, spaces_in
from graphweave.ir.message.infer import numel
from graphweave.passes.apart import made_instead, with_copies
from graphweave.passes.narrow_saved import narrowed_values, widened
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.recompute import recomputed, repeatable, row_bytes, wide_rows
from graphweave.passes.stages import staged


@dataclass(frozen=True, slots=True)
class Split:
    """`forward` gives the forward outputs and then the saved values; `backward` takes saved values, then tangents.

    `saved` and `tangents` are positions in the joint program. `copied` are the saved values of which the forward gives
    a copy, those of them that are `narrowed` in bfloat16, and `num_forward` counts the forward outputs.
    """

    forward: Extract
    backward: Extract
    saved: tuple[ir.Ref, ...]
    tangents: tuple[ir.Ref, ...]
    copied: frozenset[ir.Ref] = frozenset()
    narrowed: frozenset[ir.Ref] = frozenset()
    num_forward: int = 0


def split(
    joint: ir.Program, num_forward: int, given: PassFacts, constants: frozenset[ir.Ref] = frozenset(),
    exposed: frozenset[ir.Ref] = frozenset(),
) -> Split:  # fmt: skip
    """Divide a joint program, whose first `num_forward` outputs are the forward's; `given.keep` must run in the
    forward.

    `constants` are inputs whose value is part of the program: both halves have them without handing them over.
    `exposed` are values whose memory others may write to before the backward: of these only copies are saved. Seeds are
    always saved, so that a backward that computes the forward again draws the same random numbers.
    """
    facts, tangents, recompute = given.of(joint), tuple(sorted(given.tangents_of(joint))), given.choices.recompute
    forward_outputs = joint.outputs[:num_forward]
    backward_outputs = joint.outputs[num_forward:]
    forward = _with_items(joint, computed_for(joint, [r for r in forward_outputs if r is not None]))
    if recompute in ("auto", "never"):
        forward = computed_for(joint, forward | _riders(facts, forward, backward_outputs, tangents))
    roots = [r for r in backward_outputs if r is not None]
    in_chunks = given.choices.chunks and given.sharding is None
    again = wide_rows(facts, forward) if in_chunks else frozenset[ir.Ref]()
    found = saved_values(facts, forward, roots, tangents, recompute, again)
    if not exposed.isdisjoint(found):
        found = made_instead(facts, found, exposed, roots, tangents, given.statistics)
    saved = tuple(r for r in found if r not in constants)
    saved += tuple(sorted({n.seed for r in forward if isinstance(n := joint.nodes[r], ir.Random)}.difference(saved)))
    saved += _sizes_to_save(joint, saved, roots, tangents)
    primals = [
        r for r, n in enumerate(joint.nodes) if isinstance(n, ir.Input) and r not in tangents and r not in constants
    ]
    bwd = extract(joint, [*saved, *tangents], backward_outputs)
    narrowed = narrowed_values(joint, bwd, saved) if given.choices.saved == "bfloat16" else frozenset[ir.Ref]()
    copied = exposed.intersection(saved) | narrowed
    fwd = extract(joint, primals, [*forward_outputs, *saved, *given.keep])
    if early := fwd.where.keys() & set(tangents):
        raise IRError(
            f"the forward needs the gradients %{', %'.join(map(str, sorted(early)))} of its own outputs: a pass has "
            f"merged a value of the forward with one of the backward. Report this."
        )
    if copied:
        fwd = with_copies(fwd, num_forward, saved, copied, narrowed)
    if narrowed:
        bwd = widened(bwd, narrowed)
    if recompute == "always":
        bwd = staged(bwd, [bwd.where[r] for r in tangents])
    return Split(fwd, bwd, saved, tangents, copied, narrowed, num_forward)


def saved_values(
    facts: Facts,
    forward: set[ir.Ref],
    roots: Iterable[ir.Ref],
    tangents: tuple[ir.Ref, ...],
    recompute: Recompute,
    again: frozenset[ir.Ref] = frozenset(),
) -> tuple[ir.Ref, ...]:
    """The values that the backward reads from the forward: those nearest above its `roots` that are not recomputed, as
    those in `again` are in any case."""
    joint, kept_anyway = facts.program, frozenset(facts.hoist.values)
    kept = _parts_compared(facts, forward, recompute)
    if recompute in ("auto", "sums"):
        kept |= facts.saved_rows(frozenset(tangents))
    after_tangent = facts.flow.depending(frozenset(tangents))

    def repeats(ref: ir.Ref) -> bool:
        return ref not in kept and (ref in again or recomputed(recompute, facts, ref))

    saved: set[ir.Ref] = set()
    seen: set[ir.Ref] = set()
    todo = list(roots)
    while todo:
        ref = todo.pop()
        if ref in seen or ref in tangents:
            continue
        seen.add(ref)
        node = joint.nodes[ref]
        if isinstance(node, ir.ByArithmetic):  # made again of row counts, and of a smaller map
            todo.extend(sources(joint, ref))
        elif isinstance(node, ir.Input) or (ref in kept_anyway and ref in forward):
            saved.add(ref)
        elif ref in after_tangent or ref not in forward or repeats(ref):
            todo.extend(sources(joint, ref))
        else:
            saved.add(ref)
    if recompute in ("auto", "sums"):
        saved = _made_of_others(facts, saved, kept_anyway, kept)
    return tuple(sorted(saved))


def _parts_compared(facts: Facts, forward: set[ir.Ref], recompute: Recompute) -> frozenset[ir.Ref]:
    """Parts of messages that are compared with their maximum or minimum, and would have other bits in the backward.

    The gradient of a maximum goes to the messages that equal it. So messages that are computed again must have the bits
    of the forward's. The order of a sum over features depends on the kernel, and so does the form of an elementary
    function outside of the loop over the message's features: for one number, or for a vector of them. A product has the
    same bits where both halves compute it in tiles, which takes two maps of the edges. The rest is saved.
    """
    joint, found, seen = facts.program, set[ir.Ref](), set[ir.Ref]()
    todo = [
        (other, _width(joint, other), push.map)
        for node in joint.nodes
        if isinstance(node, ir.Pointwise) and node.op is Op.eq
        for other in operands(node)
        for one in operands(node)
        if one != other and (push := _extreme(joint, one)) is not None
    ]
    while todo:
        ref, width, m = todo.pop()
        if ref in seen or ref not in forward or not recomputed(recompute, facts, ref):
            continue
        seen.add(ref)
        node = joint.nodes[ref]
        dear = isinstance(node, ir.Pointwise) and node.op.facts.dear and _width(joint, ref) < width
        called = isinstance(node, ir.MatMul) and len(_maps_to(joint, ref) | {m}) < 2
        if isinstance(node, ir.Reduce) or dear or called:
            found.add(ref)
        else:
            todo.extend((r, width, m) for r in operands(node))
    return frozenset(found)


def _maps_to(joint: ir.Program, ref: ir.Ref) -> set[ir.Ref]:
    """The maps along which rows are read to compute `ref`, on its own space."""
    space = _space(joint, ref)
    pulls = (
        n for r in ancestors(joint, [ref]) if isinstance(n := joint.nodes[r], ir.Pull) and _space(joint, r) == space
    )
    return {n.map for n in pulls}


def _space(joint: ir.Program, ref: ir.Ref) -> Space | None:
    t = joint.types[ref]
    return t.space if isinstance(t, ir.Type) else None


def _width(joint: ir.Program, ref: ir.Ref) -> int:
    t = joint.types[ref]
    return numel(t.shape) if isinstance(t, ir.Type) else 0


def _extreme(joint: ir.Program, ref: ir.Ref) -> ir.Push | None:
    """The push whose maximum or minimum the value is, of the row itself or pulled to other rows; None for others."""
    node = joint.nodes[ref]
    while isinstance(node, ir.Pull | ir.Cast | ir.Reshape | ir.Broadcast | ir.Permute):
        node = joint.nodes[node.x]
    return node if isinstance(node, ir.Push) and node.fold in (Fold.max, Fold.min) else None


def _made_of_others(facts: Facts, saved: set[ir.Ref], free: frozenset[ir.Ref], kept: frozenset[ir.Ref]) -> set[ir.Ref]:
    """`saved` without rows on nodes that cost little to compute again from others of `saved`.

    So only one of an activation's input and output is kept, and of a softmax over classes its input, which a gradient
    needs, and two numbers a row. Narrower values may join `saved` for that. Computing a value again reads at most twice
    the bytes that dropping it saves.
    """
    joint = facts.program
    for ref in sorted(saved, reverse=True):
        if not repeatable(facts, ref):
            continue
        made_of = _origins(facts, ref, saved | free | kept)
        added = {r for r in made_of - saved - free if not isinstance(joint.nodes[r], ir.Input)}
        size = row_bytes(joint, ref)
        known = all(isinstance(joint.types[r], ir.Type) for r in made_of)
        if known and _bytes_of(joint, added) < size and _bytes_of(joint, made_of) <= 2 * size:
            saved = (saved - {ref}) | made_of
    return saved


def _origins(facts: Facts, ref: ir.Ref, there: set[ir.Ref] | frozenset[ir.Ref]) -> set[ir.Ref]:
    """The values from which `ref` can be computed again: the first that are `there`, inputs, or expensive to repeat."""
    found, joint = set[ir.Ref](), facts.program
    todo = list(operands(joint.nodes[ref]))
    while todo:
        r = todo.pop()
        there_anyway = r in there or isinstance(joint.nodes[r], ir.Input)
        if not there_anyway and (repeatable(facts, r) or recomputed("auto", facts, r)):
            todo.extend(operands(joint.nodes[r]))
        else:
            found.add(r)
    return found


def _bytes_of(program: ir.Program, refs: Iterable[ir.Ref]) -> int:
    return sum(row_bytes(program, r) for r in refs)


def _sizes_to_save(
    joint: ir.Program, saved: tuple[ir.Ref, ...], roots: Iterable[ir.Ref], tangents: tuple[ir.Ref, ...]
) -> tuple[ir.Ref, ...]:
    """Sizes that give the backward the row counts of spaces on which it is handed no value.

    A value on a union of spaces does not tell the rows of its parts, so all sizes in the sum are given.
    """
    given = frozenset((*saved, *tangents))
    rows = dict(joint.spaces)
    told = {t.space for r in given if isinstance(t := joint.types[r], ir.Type)}
    known = {space for space in told if not isinstance(rows.get(space), Applied)}
    used = {s for r in ancestors(joint, roots, given) for s in spaces_in(joint.types[r])} - known - {UNIT}
    symbols = {symbol for s in used for symbol in leaves(rows.get(s))}
    sizes = (r for r, t in enumerate(joint.types) if isinstance(t, ir.AnyType) and t.size in symbols and r not in given)
    first = {joint.types[r]: r for r in reversed(list(sizes))}
    return tuple(sorted(first.values()))


def _riders(
    facts: Facts, forward: set[ir.Ref], backward_outputs: Iterable[ir.Ref | None], tangents: tuple[ir.Ref, ...]
) -> set[ir.Ref]:
    """Pushes of forward values that only the backward needs, along maps that the forward walks anyway.

    Together with the forward's pushes each costs an accumulator; in the backward it would be a walk of its own with all
    its gathers.
    """
    joint, is_push = facts.program, facts.cones.is_push
    late = facts.flow.depending(frozenset(tangents))
    walked = {n.map for r in forward if is_push(r) and isinstance(n := joint.nodes[r], ir.Push)}
    read = computed_for(joint, [r for r in backward_outputs if r is not None], frozenset(tangents))
    return {
        r for r in read - forward - late
        if is_push(r) and isinstance(n := joint.nodes[r], ir.Push)
        and n.map in walked and isinstance(joint.nodes[n.map], ir.MapOf)
    }  # fmt: skip


def _with_items(joint: ir.Program, forward: set[ir.Ref]) -> set[ir.Ref]:
    """`forward` and every item of its tuples: a tuple cannot be saved, but an item that only the backward reads can."""
    items = {
        r for r, n in enumerate(joint.nodes)
        if isinstance(n, ir.DistinctRow | ir.DistinctKey) or (isinstance(n, ir.Aten) and n.target == "builtin.getitem")
        if forward.issuperset(operands(n))
    }  # fmt: skip
    return forward | items
