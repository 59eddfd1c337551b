"""Hands compiled programs back to AOTAutograd as FX graphs.

The joint graph handed back is a skeleton: its inputs, one opaque call for the forward and one for the backward, and
their results with fake tensors. PyTorch's own partitioner then splits it, and orders saved values as the installed
version needs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, fx
from torch._functorch.partitioners import _extract_fwd_bwd_modules
from torch.utils._pytree import tree_flatten

from graphweave.core.boxed import Boxed, boxed
from graphweave.core.sizes import SizeOp, evaluated
from graphweave.core.types import UNIT, Space
from graphweave.execute.executable import Executable
from graphweave.frontends.calls.captured_sizes import Size, expression
from graphweave.frontends.halves.reference import Reference, checked_backward, checked_forward
from graphweave.frontends.importing.importer import Imported
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import TORCH_DTYPE, materialise, resolve
from graphweave.ir.message.builder import operands
from graphweave.passes.narrow_saved import NARROW
from graphweave.passes.partition import Split

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of symbolic numbers."""


def split_modules(
    joint: fx.GraphModule, imported: Imported, made: Sequence[Executable], partition: Split,
    reference: Reference | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule, dict[str, str]]:  # fmt: skip
    """The forward and the backward as modules of one opaque call each, for AOTAutograd.

    The third result maps each random call's name to the placeholder of the backward that holds what the call drew. With
    a `reference` to compare results to, the forward's arguments are saved as well.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        env[node] = graph.node_copy(node, lambda n: env[n])
    place = dict(zip(imported.inputs, env.values(), strict=True))
    outputs = joint.graph.output_node()
    flat, _ = tree_flatten(outputs.args[0])
    ahead, back = made
    num_fwd_outputs = partition.num_forward

    primals = [place[r] for r in input_refs(ahead, partition.forward.where)]
    names = [n.name for n in primals]
    run = ahead if reference is None else checked_forward(reference, ahead, names)
    forward = _call(graph, run, str(ahead.plan.name), primals)
    results = [_item(graph, forward, i, _val(n)) for i, n in enumerate(flat[:num_fwd_outputs])]
    saved: dict[ir.Ref, fx.Node] = {}
    for i, ref in enumerate(partition.saved):
        given = None if ref in partition.copied else place.get(ref)
        if given is None:
            fake = fake_of(imported, ref)
            fake = fake.to(TORCH_DTYPE[NARROW]) if ref in partition.narrowed else fake
            given = _item(graph, forward, num_fwd_outputs + i, fake)
        saved[ref] = given
    tangents = {r: place[r] for r in partition.tangents}
    takes = [(saved | tangents)[r] for r in input_refs(back, partition.backward.where)]
    known = list(saved.values())
    run_back: Boxed = back
    if reference is not None:
        own = [n.name if n in tangents.values() else None for n in takes]
        run_back = checked_backward(reference, back, own, names)
        more = _kept(graph, forward, primals, num_fwd_outputs + len(partition.saved))
        takes += more
        known += [n for n in more if n not in known]
    backward = _call(graph, run_back, str(back.plan.name), takes)
    results += [_item(graph, backward, i, _val(n)) for i, n in enumerate(flat[num_fwd_outputs:])]
    graph.output([None if n is None else r for n, r in zip(flat, results, strict=True)]).meta.update(outputs.meta)
    symbols = [n for n in known if isinstance(n.meta.get("val"), _SYMBOLIC)]
    values = [n for n in known if n not in symbols]
    skeleton = fx.GraphModule(joint, graph)
    halves = _extract_fwd_bwd_modules(
        skeleton, values, symbols, num_fwd_outputs=num_fwd_outputs, static_lifetime_input_nodes=None
    )
    return *halves, {call: saved[ref].name for call, ref in imported.drawn.items() if ref in saved}


def _kept(graph: fx.Graph, forward: fx.Node, primals: Sequence[fx.Node], at: int) -> list[fx.Node]:
    """The additional arguments of a checked backward: copies of the forward's tensors, its sizes, its random state."""
    out: list[fx.Node] = []
    for node in primals:
        if isinstance(val := _val(node), torch.Tensor):
            out.append(_item(graph, forward, at, val))
            at += 1
        else:
            out.append(node)
    example = next(v for n in primals if isinstance(v := _val(n), torch.Tensor))
    state = example.new_empty(torch.get_rng_state().shape, dtype=torch.uint8, device="cpu")
    return [*out, _item(graph, forward, at, state)]


@dataclass(frozen=True, slots=True)
class Handed:
    """A half as AOTAutograd calls it: the positions of its arguments that the executable takes, and for each result
    whether the executable makes it, and its position among what that makes (-1: None) or among the arguments.

    `names` are those of the arguments.
    """

    executable: Executable
    names: tuple[str, ...]
    takes: tuple[int, ...]
    gives: tuple[tuple[bool, int], ...]

    def boxed(self) -> Boxed:
        executable, takes, gives = self.executable, self.takes, self.gives

        def run(args: list[object]) -> list[object]:
            passed = {i: args[i] for made, i in gives if not made}
            taken = [args[i] for i in takes]
            args.clear()
            results = executable(taken)
            results.append(None)
            return [results[i] if made else passed[i] for made, i in gives]

        return boxed(run)

    def module(self) -> fx.GraphModule:
        """The half as a module of one opaque call, as it was handed over."""
        graph = fx.Graph()
        given = [graph.placeholder(name) for name in self.names]
        call = _call(graph, self.executable, str(self.executable.plan.name), [given[i] for i in self.takes])
        made = {i: graph.call_function(operator.getitem, (call, i)) for is_made, i in self.gives if is_made and i >= 0}
        graph.output(tuple(made.get(i) if is_made else given[i] for is_made, i in self.gives))
        return fx.GraphModule({}, graph)


def handed(module: fx.GraphModule) -> Handed | None:
    """The half that a module of one opaque call is; None for any other module."""
    calls = [n for n in module.graph.nodes if n.op == "call_function" and hasattr(n.target, "executable")]
    if len(calls) != 1:
        return None
    call = calls[0]
    position = {n: i for i, n in enumerate(module.graph.find_nodes(op="placeholder"))}
    takes = tuple(position[n] for n in call.args)
    gives: list[tuple[bool, int]] = []
    for out in tree_flatten(module.graph.output_node().args[0])[0]:
        if out is None:
            gives.append((True, -1))
        elif out in position:
            gives.append((False, position[out]))
        else:
            gives.append((True, out.args[1]))

    return Handed(call.target.executable, tuple(n.name for n in position), takes, tuple(gives))


def saved_numbers(module: fx.GraphModule) -> int:
    """How many of a forward's last results are symbolic numbers, which AOTAutograd saves behind all tensors."""
    count = 0
    for out in reversed(tree_flatten(module.graph.output_node().args[0])[0]):
        if not isinstance(_val(out), _SYMBOLIC):
            break
        count += 1
    return count


def fake_of(imported: Imported, ref: ir.Ref) -> Tensor:
    """The fake tensor of a value that is saved for the backward."""
    if ref in imported.vals:
        return imported.vals[ref]
    t, node = imported.program.types[ref], imported.program.nodes[ref]
    # a size that belongs to no captured call
    if isinstance(node, ir.Aten) and isinstance(t, ir.AnyType) and t.size is not None:
        fakes = {r: fake_of(imported, r) for r in operands(node)}
        return resolve(node.target)(*(materialise(a, fakes) for a in node.args))
    assert isinstance(t, ir.Type), f"%{ref} has no fake value"
    tensors = [v for v in imported.vals.values() if isinstance(v, torch.Tensor)]
    example = max(tensors, key=lambda v: v.device.type != "cpu")
    sizes = t.shape if t.space == UNIT else (imported.space_rows[t.space], *t.shape)
    return example.new_empty(sizes, dtype=TORCH_DTYPE[t.dtype])


def row_counts(
    program: ir.Program, imported: Imported, unions: Iterable[tuple[Space, tuple[Space, ...]]] = ()
) -> dict[Space, Size]:
    """The row count of each space of a rewritten program: that of the import, or a symbol if data decides it.

    A union in `unions` has as many rows as its spaces together (the unit space has one row). Any other space whose size
    is computed from other sizes has that expression.
    """
    counts: dict[Space, Any] = {UNIT: 1, **imported.space_rows}
    for space, of in unions:
        counts[space] = sum(counts[s] for s in of)
    del counts[UNIT]
    numbers = (v for v in imported.vals.values() if isinstance(v, torch.SymInt))
    known = {expression(n): n for n in (*numbers, *counts.values())}
    made = [s for s, _ in program.spaces if s not in counts]
    if not made:
        return counts
    example = next(v for v in imported.vals.values() if isinstance(v, torch.Tensor))
    env = example.fake_mode.shape_env  # type: ignore[attr-defined]
    for space, size in program.spaces:
        if space not in counts:
            rows = evaluated(size, known, _OF_SYMBOLS)
            counts[space] = env.create_unbacked_symint() if rows is None else rows
    return counts


_OF_SYMBOLS: dict[SizeOp, Callable[..., Any]] = {
    SizeOp.sum: lambda *sizes: sum(sizes), SizeOp.product: lambda *sizes: math.prod(sizes),
    SizeOp.floor_div: operator.floordiv, SizeOp.modulo: operator.mod,
    SizeOp.largest: lambda *sizes: reduce(torch.sym_max, sizes),
    SizeOp.smallest: lambda *sizes: reduce(torch.sym_min, sizes),
}  # fmt: skip
"""Functions of sizes that take PyTorch's symbolic numbers."""


def input_refs(executable: Executable, where: Mapping[ir.Ref, ir.Ref]) -> list[ir.Ref]:
    """The inputs of an executable, in its order, as positions of the joint program."""
    back = {new: old for old, new in where.items()}
    plan = executable.plan
    named = ((i, n) for i, n in enumerate(plan.program.nodes) if isinstance(n, ir.Input))
    return [back[i] for i, n in named if n.name not in plan.constants]


def _call(graph: fx.Graph, executable: Boxed, name: str, args: Sequence[fx.Node]) -> fx.Node:
    @torch._dynamo.disable(reason="a half of a compiled graph")  # a compiled engine of autograd traces what it calls
    def opaque(*values: object) -> list[Tensor | None]:
        return executable(list(values))

    opaque.__name__ = opaque.__qualname__ = name
    opaque.executable = executable
    return graph.call_function(opaque, tuple(args))


def _item(graph: fx.Graph, call: fx.Node, i: int, val: Tensor | None) -> fx.Node:
    node = graph.call_function(operator.getitem, (call, i))
    node.meta["val"] = val
    return node


def _val(node: object) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else node
