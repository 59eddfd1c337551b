"""Captured ATen graph -> message program: spaces found, every spelling of pull and push read, the rest left to ATen."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.core.errors import IRError
from graphweave.core.lines import CALLED_FROM, is_generated, is_library
from graphweave.core.types import UNIT, Space
from graphweave.frontends.dynamo.blocks import blocks_apart
from graphweave.frontends.dynamo.context import Context, Table
from graphweave.frontends.dynamo.masks import masks_to_indices
from graphweave.frontends.dynamo.numbering import number, row_of
from graphweave.frontends.dynamo.ops_columns import COLUMNS
from graphweave.frontends.dynamo.ops_dense import DENSE
from graphweave.frontends.dynamo.ops_pointwise import POINTWISE
from graphweave.frontends.dynamo.ops_random import RANDOM
from graphweave.frontends.dynamo.ops_shape import SHAPE
from graphweave.frontends.dynamo.ops_sparse import MOVES_ROWS, SPARSE
from graphweave.frontends.dynamo.sizes import Size, fixed, is_tensor, text, val
from graphweave.frontends.dynamo.spaces import Spaces
from graphweave.frontends.dynamo.stacks import without_stacks
from graphweave.ir.message.aten import target_name, to_arg
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.nodes import AnyType, Arg, Aten, Input, MapType, Operand, Program, Ref, Type

HANDLERS: Table = {**POINTWISE, **SHAPE, **SPARSE, **DENSE, **COLUMNS, **RANDOM}

aten = torch.ops.aten

_RESHAPES: dict[Any, Any] = dict.fromkeys(
    (aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.view_copy.default),
    aten.reshape.default,
)
"""Views need strides, and a program does not keep them: copies that only changed strides are gone from it."""
_BY_STRIDES = frozenset({aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default})

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_FRONTENDS = os.path.join(_PACKAGE, "frontends") + os.sep
_LAYERS = os.path.join(_PACKAGE, "nn") + os.sep


@dataclass(frozen=True)
class Imported:
    """A program and how it hangs together with the graph it came from.

    `program.outputs` are the graph's results, flat and in order; `inputs[i]` is its i-th placeholder. `vals` holds the
    fake tensor or symbolic number of each node that stands for an FX node, `space_rows` the row count of each space.
    `attributes` are further inputs whose value is part of the graph (constants), `effects` nodes that must run though
    no result needs them, in order, and `refused` says of ATen calls in the middle of message passing why they stayed.
    """

    program: Program
    inputs: tuple[Ref, ...]
    vals: dict[Ref, Any]
    space_rows: dict[Space, Size]
    refused: dict[Ref, str]
    effects: tuple[Ref, ...]
    attributes: dict[Ref, Any]


def import_graph(gm: fx.GraphModule) -> Imported:
    """The program of a joint or inference graph of ATen calls whose nodes carry fake values in `meta["val"]`.

    Adds guards that fix the feature sizes of values moved along maps, and no others. Raises IRError for what a program
    cannot say at all (submodules, operators of higher order).
    """
    return _Importer(without_stacks(blocks_apart(masks_to_indices(gm)))).run()


class _Importer:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.same_as = number(gm.graph)
        self.spaces = Spaces(self.same_as)
        self.cx = Context(self.spaces)
        self.inputs: list[Ref] = []
        self.vals: dict[Ref, Any] = {}
        self.refused: dict[Ref, str] = {}

    def run(self) -> Imported:
        outputs: list[Ref | None] = []
        for node in self.gm.graph.nodes:
            self.cx.loc = location(node)
            if node.op == "output":
                outputs = self._outputs(node)
            elif self.same_as[node] is node:
                ref = self._leaf(node) if node.op != "call_function" else self._call(node)
                self._keep(node, ref)
        return self._finish(outputs)

    def _keep(self, node: fx.Node, ref: Ref) -> None:
        self.cx.refs[node] = ref
        value = val(node)
        if value is not None:
            self.vals.setdefault(ref, value)
        if isinstance(value, torch.SymInt):
            self.cx.sizes.setdefault(value.node.expr, ref)

    # ------------------------------------------------------------ nodes

    def _leaf(self, node: fx.Node) -> Ref:
        if node.op == "placeholder":
            ref = self.cx.emit(Input(node.name, self.cx.wanted(node)))
            self.inputs.append(ref)
            return ref
        if node.op != "get_attr":
            raise IRError(f"{node.op} {node.target}: expected calls of operators")
        value = attribute(self.gm, str(node.target))
        t = self.cx.wanted(node)
        if isinstance(t, Type) and t.shape == () and t.space == UNIT and _is_plain(value):
            with unset_fake_temporarily():
                return self.cx.const(value.item(), t.dtype)
        ref = self.cx.emit(Input(node.name, t))
        self.cx.attributes[ref] = value
        return ref

    def _call(self, node: fx.Node) -> Ref:
        value = val(node)
        if isinstance(value, torch.SymInt):
            found = self.cx.size(value)
            if found is not None:
                return found
        handler, why = HANDLERS.get(node.target), "no kernel computes it"
        if handler is not None:
            try:
                ref = handler(self.cx, node)
                if ref is not None and self.cx.builder.types[ref] == self.cx.wanted(node):
                    return ref
            except IRError as reason:
                why = str(reason)
        ref = self._outside(node)
        if node.target in MOVES_ROWS or self._amid_maps(node):
            self.refused.setdefault(ref, f"{target_name(node.target)}: {why}")
        return ref

    def _outside(self, node: fx.Node) -> Ref:
        """The call as it stands; one row of a tensor always as select, whether select or unbind took it."""
        row = row_of(node)
        if row is not None:
            x, dim, index = row
            row_args: tuple[Arg, ...] = (Operand(self._operand(x)), dim, index)
            return self.cx.emit(Aten("aten.select.int", row_args, (), self.cx.wanted(node)))
        if node.target in _BY_STRIDES and not isinstance(self.cx.builder.nodes[self._operand(node.args[0])], Input):  # type: ignore[arg-type]
            raise IRError(
                f"{node.target} reads memory by strides, and only inputs have the strides they had in eager mode"
            )
        impure = _impure(node)
        self.cx.serial += impure
        kwargs = tuple((k, to_arg(_plain(v), self._operand)) for k, v in node.kwargs.items())
        args = tuple(to_arg(_plain(a), self._operand) for a in node.args)
        if node.target is aten._reshape_alias.default:
            args = args[:2]  # sizes, without strides
        serial = self.cx.serial if impure else 0
        name = target_name(_RESHAPES.get(node.target, node.target))
        ref = self.cx.emit(Aten(name, args, kwargs, self.cx.wanted(node), serial))
        if node.is_impure() and ref not in self.cx.effects:
            self.cx.effects.append(ref)
        return ref

    def _operand(self, node: fx.Node) -> Ref:
        return self.cx.refs[self.same_as[node]]

    def _amid_maps(self, node: fx.Node) -> bool:
        """Does the call compute with numbers whose rows some map starts or ends in?"""
        if isinstance(val(node), torch.SymInt | int):
            return False
        return any(self.spaces.on_map(n) and val(n).is_floating_point() for n in node.all_input_nodes)

    # ------------------------------------------------------------ the end

    def _outputs(self, node: fx.Node) -> list[Ref | None]:
        """Each result its own value: no input handed back for a copy of it, no two results sharing one for two."""
        given: dict[Ref, fx.Node] = {}
        out: list[Ref | None] = []
        for result in _flat(node.args[0]):
            if not isinstance(result, fx.Node):
                out.append(None if result is None else self._number(result))
                continue
            ref = self._operand(result)
            copied = isinstance(self.cx.builder.nodes[ref], Input) and result.op == "call_function"
            if is_tensor(result) and (copied or given.setdefault(ref, result) is not result):
                self.cx.serial += 1
                t = self.cx.wanted(result)
                ref = self.cx.emit(Aten("aten.clone.default", (Operand(ref),), (), t, self.cx.serial))
                self.vals[ref] = val(result)
            out.append(ref)
        return out

    def _number(self, value: Any) -> Ref:
        """A result that is a plain number."""
        name = {bool: "bool", int: "int", float: "float"}[type(value)]
        return self.cx.emit(Aten(f"builtin.{name}", (value,), (), AnyType(name)))

    def _finish(self, outputs: list[Ref | None]) -> Imported:
        """Without what nothing needs: indices repeated over features, bases of zeros, calls that items replaced."""
        b = self.cx.builder
        results = _needed(b, [r for r in outputs if r is not None])
        effects = [r for r in self.cx.effects if r not in results]
        live = results | _needed(b, self.inputs + effects)
        kept = Builder()
        new: dict[Ref, Ref] = {}
        for ref in sorted(live):
            new[ref] = kept.add(with_operands(b.nodes[ref], new.__getitem__), b.locs[ref])
        used = {s for t in kept.types for s in _spaces(t)}
        rows = {s: n for s, n in self.spaces.rows.items() if s in used}
        program = kept.program(
            [None if r is None else new[r] for r in outputs], [(s, text(n)) for s, n in rows.items()]
        )
        return Imported(
            program,
            tuple(new[r] for r in self.inputs),
            {new[r]: v for r, v in self.vals.items() if r in new},
            rows,
            {new[r]: why for r, why in self.refused.items() if r in new},
            tuple(new[r] for r in effects),
            {new[r]: v for r, v in self.cx.attributes.items() if r in new},
        )


def location(node: fx.Node) -> str:
    """ "file:line code" of the innermost line that made `node` outside torch and, if there is such a line, outside this
    package, whose layers count as libraries; " <- file:line" behind it is the user's own line, if that is another. ""
    where nothing is known."""
    trace = (node.meta.get("stack_trace") or "").splitlines()
    found, ours = "", ""
    for i in range(len(trace) - 1, -1, -1):
        head = trace[i].strip()
        if not head.startswith('File "'):
            continue
        path, _, rest = head.removeprefix('File "').partition('", line ')
        if path.startswith(_TORCH) or is_generated(path):
            continue
        line = rest.split(",")[0].strip()
        if found:
            if not is_library(path):
                return f"{found}{CALLED_FROM}{path}:{line}"
            continue
        code = trace[i + 1].strip() if i + 1 < len(trace) and not trace[i + 1].strip().startswith('File "') else ""
        here = f"{path}:{line} {code.removeprefix('code: ')}".rstrip()
        if path.startswith(_PACKAGE) and not path.startswith(_LAYERS):
            ours = ours or ("" if path.startswith(_FRONTENDS) else here)
        elif is_library(path):
            found = here
        else:
            return here
    return found or ours


def attribute(gm: fx.GraphModule, name: str) -> Any:
    """The tensor behind a dotted attribute name; IRError for a submodule."""
    value: Any = gm
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise IRError(f"{name}: expected a tensor (got {type(value).__name__})")
    return value


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and not value.requires_grad and value.device.type != "meta"


def _plain(arg: Any) -> Any:
    """Sizes that turned out to be fixed, as numbers; slices are no arguments of ATen calls."""
    if isinstance(arg, fx.Node):
        value = val(arg)
        known = fixed(value) if isinstance(value, torch.SymInt) else value if isinstance(value, int) else None
        return arg if known is None else known
    if isinstance(arg, list | tuple):
        return [_plain(a) for a in arg]
    if isinstance(arg, torch.SymInt):
        known = fixed(arg)
        if known is None:
            raise IRError(f"a size {arg} that is no node of the graph")
        return known
    return arg


def _impure(node: fx.Node) -> bool:
    """Must two equal calls both run?"""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags


def _flat(arg: Any) -> Iterable[Any]:
    if isinstance(arg, list | tuple):
        for a in arg:
            yield from _flat(a)
    else:
        yield arg


def _needed(b: Builder, roots: Iterable[Ref]) -> set[Ref]:
    seen: set[Ref] = set()
    todo = list(roots)
    while todo:
        ref = todo.pop()
        if ref not in seen:
            seen.add(ref)
            todo.extend(operands(b.nodes[ref]))
    return seen


def _spaces(t: Any) -> tuple[Space, ...]:
    found = (t.space,) if isinstance(t, Type) else (t.dom, t.cod) if isinstance(t, MapType) else ()
    return tuple(s for s in found if s != UNIT)
