"""Captured ATen graph -> message program: finds spaces, reads every spelling of pull and push, keeps other calls as
ATen."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.analysis.flow import reached
from graphweave.compiler.road import SPELLINGS
from graphweave.compiler.walk import respell
from graphweave.core.calls import named
from graphweave.core.errors import NO_KERNEL, IRError, Reason
from graphweave.core.lines import Location, location
from graphweave.core.sizes import Opaque, leaves
from graphweave.core.types import UNIT, Space
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import Size, expression, fixed, is_tensor, rank, shape, unbacked, val
from graphweave.frontends.calls.layout import (
    BY_STRIDES,
    EMPTY,
    INTO_COPIES,
    QUESTIONS,
    aliased,
    depends_on_layout,
    order_of,
    root_of,
    views_from,
)
from graphweave.frontends.calls.numbering import number, row_of
from graphweave.frontends.importing.context import Context, Table
from graphweave.frontends.importing.ops_choices import CHOICES
from graphweave.frontends.importing.ops_columns import COLUMNS
from graphweave.frontends.importing.ops_declared import handler_of
from graphweave.frontends.importing.ops_dense import DENSE, OF_SHARED_DATA
from graphweave.frontends.importing.ops_pointwise import POINTWISE
from graphweave.frontends.importing.ops_random import RANDOM
from graphweave.frontends.importing.ops_shape import SHAPE
from graphweave.frontends.importing.ops_softmax import SOFTMAX
from graphweave.frontends.importing.ops_sparse import SPARSE
from graphweave.frontends.importing.spaces import Spaces
from graphweave.frontends.spellings.respelling import Respelling
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import target_name, to_arg
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.layouts import Promise

HANDLERS: Table = {**POINTWISE, **SHAPE, **SPARSE, **DENSE, **SOFTMAX, **COLUMNS, **CHOICES, **RANDOM}
"""Call -> the function that translates it. All other calls stay ATen calls."""

aten = torch.ops.aten

_RESHAPES: dict[Any, Any] = dict.fromkeys(
    (aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.view_copy.default),
    aten.reshape.default,
)
"""View -> reshape. A view needs strides, and a program has no copies that only change strides."""


@dataclass(frozen=True)
class Imported:
    """A program, and how its values belong to the graph from which it was imported.

    `program.outputs` are the graph's results, flat and in order; `inputs[i]` is its i-th placeholder. `vals` holds the
    fake tensor or symbolic number of each node that stands for an FX node, `space_rows` the row count of each space.
    `promises[i]` says how result i lies in memory (None: nothing is promised, or the program itself ensures it).
    `origins` gives the value of each FX node by name, `seeded` names nodes whose random numbers are functions of a
    seed, and `drawn` holds that seed, or what any other random call drew, by the call's name. `attributes` are further
    inputs whose value is part of the graph (constants). `effects` are nodes that must run although no result needs
    them, in order. `refused` says why ATen calls in the middle of message passing were not translated.
    """

    program: ir.Program
    inputs: tuple[ir.Ref, ...]
    vals: dict[ir.Ref, Any]
    space_rows: dict[Space, Size]
    refused: dict[ir.Ref, Reason]
    effects: tuple[ir.Ref, ...]
    attributes: dict[ir.Ref, Any]
    drawn: dict[str, ir.Ref]
    promises: tuple[Promise | None, ...] = ()
    origins: Mapping[str, ir.Ref] = field(default_factory=dict)
    seeded: frozenset[str] = frozenset()


def import_graph(
    gm: fx.GraphModule, num_forward: int | None = None, spellings: Sequence[Respelling] = SPELLINGS
) -> Imported:
    """The program of a joint or inference graph of ATen calls whose nodes carry fake values in `meta["val"]`.

    The first `num_forward` results (all if None) are the user's; the others are gradients.

    Adds guards that fix the feature sizes of values moved along maps, and no others. Raises IRError for what a program
    cannot express (submodules, operators of higher order).
    """
    return _Importer(respell(gm, spellings), num_forward).run()


class _Importer:
    def __init__(self, gm: fx.GraphModule, num_forward: int | None) -> None:
        self.gm = gm
        self.num_forward = num_forward
        self.same_as = number(gm.graph)
        self.spaces = Spaces(self.same_as)
        self.cx = Context(self.spaces)
        self.inputs: list[ir.Ref] = []
        self.vals: dict[ir.Ref, Any] = {}
        self.refused: dict[ir.Ref, Reason] = {}
        self.drawn: dict[str, ir.Ref] = {}
        self.promises: list[Promise | None] = []
        self.bases: dict[fx.Node, ir.Ref] = {}
        self.origins: dict[str, ir.Ref] = {}

    def run(self) -> Imported:
        outputs: list[ir.Ref | None] = []
        for node in self.gm.graph.nodes:
            self.cx.loc = location_of(node)
            if node.op == "output":
                outputs = self._outputs(node)
            elif self.same_as[node] is node:
                ref = self._leaf(node) if node.op != "call_function" else self._call(node)
                self._keep(node, ref)
        return self._finish(outputs)

    def _keep(self, node: fx.Node, ref: ir.Ref) -> None:
        self.cx.refs[node] = ref
        self.origins[node.name] = ref
        value = val(node)
        if value is not None:
            self.vals.setdefault(ref, value)
        if node.op == "call_function" and _impure(node):
            self.drawn[node.name] = self._seed(ref)
        if isinstance(value, torch.SymInt):
            self.cx.sizes.setdefault(value.node.expr, ref)

    def _seed(self, ref: ir.Ref) -> ir.Ref:
        """The seed of random numbers that are functions of a seed; for any other random call, `ref` itself."""
        made = self.cx.builder.nodes[ref]
        while isinstance(made, ir.Cast):
            made = self.cx.builder.nodes[made.x]
        return made.seed if isinstance(made, ir.Random) else ref

    # ------------------------------------------------------------ nodes

    def _leaf(self, node: fx.Node) -> ir.Ref:
        if node.op == "placeholder":
            ref = self.cx.emit(ir.Input(node.name, self.cx.wanted(node)))
            self.inputs.append(ref)
            return ref
        if node.op != "get_attr":
            raise IRError(f"{node.op} {node.target}: expected calls of operators")
        value = attribute(self.gm, str(node.target))
        t = self.cx.wanted(node)
        if isinstance(t, ir.Type) and t.shape == () and t.space == UNIT and _is_plain(value):
            with unset_fake_temporarily():
                return self.cx.const(value.item(), t.dtype)
        ref = self.cx.emit(ir.Input(node.name, t))
        self.cx.attributes[ref] = value
        return ref

    def _call(self, node: fx.Node) -> ir.Ref:
        value = val(node)
        if isinstance(value, torch.SymInt):
            found = self.cx.size(value)
            if found is not None:
                return found
        handler, why = HANDLERS.get(node.target) or handler_of(node.target), NO_KERNEL
        if handler is not None:
            try:
                ref = handler(self.cx, node)
                if ref is not None and self.cx.builder.types[ref] == self.cx.wanted(node):
                    self._assert_rows(node, ref)
                    return ref
            except IRError as error:
                why = error.reason
        ref = self._outside(node)
        self._assert_rows(node, ref)
        if facts(node.target).moves_rows or why == OF_SHARED_DATA or self._amid_maps(node):
            self.refused.setdefault(ref, why)
        return ref

    def _assert_rows(self, node: fx.Node, ref: ir.Ref) -> None:
        """Check, if data decides how many rows a call gives, and the capture found their number equal to a size known
        before, that later calls give as many. PyTorch forgets what it asserted of this when it traces again."""
        call = _choosing_call(node)
        called = "" if call is None else target_name(call.target)
        dims = () if call is None else (0,) if call is node else range(rank(node))
        for dim in dims:
            rows = shape(node)[dim]
            told: ir.Arg = fixed(rows)
            if isinstance(rows, torch.SymInt) and told is None:
                size = None if unbacked(rows) else self.cx.size(rows)
                if size is None:
                    continue
                told = ir.Operand(size)
            counted = ir.Operand(self.cx.size_of(node, dim, ref))
            alike = ir.AnyType(size=Opaque(f"rows of {node.name} == {rows}"))
            condition = ir.Operand(self.cx.emit(ir.Aten("builtin.eq", (counted, told), (), alike)))
            words = (
                f"{called} found another number of rows than the tensor has with which its result is"
                " combined. Correct the index, or give minlength."
            )
            check = self.cx.emit(ir.Aten(named.ASSERT_SIZE, (condition, words), (), ir.NOTHING))
            self.cx.effects.append(check)

    def _outside(self, node: fx.Node) -> ir.Ref:
        """Keep the call as an ATen call. One row of a tensor is always a select, also if unbind took it."""
        row = row_of(node)
        if row is not None:
            x, dim, index = row
            row_args: tuple[ir.Arg, ...] = (ir.Operand(self._operand(x)), dim, index)
            return self.cx.emit(ir.Aten(named.SELECT, row_args, (), self.cx.wanted(node)))
        target: Any = _RESHAPES.get(node.target, node.target)
        given: int | None = None
        if node.target in EMPTY:
            target, given = EMPTY[node.target]
        if node.target is aten._reshape_alias.default:
            given = 2  # sizes, without strides
        rest = self._laid_out if depends_on_layout(node) and node.target not in BY_STRIDES else self._operand
        first = self._laid_out if node.target in INTO_COPIES else rest
        if node.target in QUESTIONS or node.target in BY_STRIDES:
            first = self._as_captured
        impure = _impure(node)
        self.cx.serial += impure
        kwargs = tuple((k, to_arg(_plain(v), rest)) for k, v in node.kwargs.items())
        args = tuple(to_arg(_plain(a), rest if i else first) for i, a in enumerate(node.args[:given]))
        serial = self.cx.serial if impure else 0
        ref = self.cx.emit(ir.Aten(target_name(target), args, kwargs, self.cx.wanted(node), serial))
        if node.is_impure() and ref not in self.cx.effects:
            self.cx.effects.append(ref)
        return ref

    def _operand(self, node: fx.Node) -> ir.Ref:
        return self.cx.refs[self.same_as[node]]

    def _laid_out(self, node: fx.Node) -> ir.Ref:
        """`node` with its dims in the captured order in memory. Gaps between elements are removed."""
        ref = self._operand(node)
        order = order_of(val(node))
        # an argument lies as captured, but `node` may be a copy of it in another order
        as_given = isinstance(self.cx.builder.nodes[ref], ir.Input) and order_of(self.vals[ref]) == order
        return ref if order is None or as_given else self._in_order(node, order)

    def _as_captured(self, node: fx.Node) -> ir.Ref:
        """`node` with the captured strides, at the captured offset in its memory."""
        if not is_tensor(node):
            return self._operand(node)
        root = root_of(node)
        ref = self._operand(root)
        if root.op == "call_function":
            order = order_of(val(root))
            if order is None:
                raise IRError(f"{root.target} gives memory with gaps, whose strides a program does not keep")
            ref = self._in_order(root, order, whole=True)
        return self._viewed(ref, views_from(root, node))

    def _in_order(self, node: fx.Node, order: tuple[int, ...], *, whole: bool = False) -> ir.Ref:
        return self._beside(node, ir.LaidOut(self._operand(node), order, whole))

    def _beside(self, node: fx.Node, value: ir.Node) -> ir.Ref:
        """Another value that stands for `node`: the same numbers, in other memory or in another order."""
        ref = self.cx.emit(value)
        self.vals.setdefault(ref, val(node))
        return ref

    def _viewed(self, ref: ir.Ref, views: Iterable[fx.Node]) -> ir.Ref:
        """The result of applying PyTorch's calls `views`, one after the other, to `ref`."""
        for view in views:
            rest = tuple(to_arg(_plain(a), self._operand) for a in view.args[1:])
            kwargs = tuple((k, to_arg(_plain(v), self._operand)) for k, v in view.kwargs.items())
            ref = self._beside(
                view, ir.Aten(target_name(view.target), (ir.Operand(ref), *rest), kwargs, self.cx.wanted(view))
            )
        return ref

    def _amid_maps(self, node: fx.Node) -> bool:
        """Whether the call computes with floats whose rows are the domain or codomain of a map."""
        if isinstance(val(node), torch.SymInt | int):
            return False
        return any(self.spaces.on_map(n) and val(n).is_floating_point() for n in node.all_input_nodes)

    # ------------------------------------------------------------ the end

    def _outputs(self, node: fx.Node) -> list[ir.Ref | None]:
        """The results, each a separate value: a copy of an input is not that input, and equal results are not one
        value.

        Results of the forward that were captured as views of an input or of another result become views of it.
        """
        results = list(_flat(node.args[0]))
        user = [r for r in results[: self.num_forward] if is_tensor(r)]
        roots = Counter(root_of(r) for r in dict.fromkeys(user))
        given: dict[ir.Ref, fx.Node] = {}
        out: list[ir.Ref | None] = []
        for i, result in enumerate(results):
            self.promises.append(None)
            if not isinstance(result, fx.Node):
                out.append(None if result is None else self._number(result))
                continue
            ref = self._operand(result)
            if is_tensor(result):
                forward = self.num_forward is None or i < self.num_forward
                seen = self._seen(result, roots) if forward else None
                if seen is not None:
                    out.append(seen)
                    continue
                self.promises[-1] = self._promise(result, forward)
                copied = isinstance(self.cx.builder.nodes[ref], ir.Input) and result.op == "call_function"
                if copied or given.setdefault(ref, result) is not result:
                    ref = self._clone(ref, result)
            out.append(ref)
        return out

    def _seen(self, result: fx.Node, roots: Mapping[fx.Node, int]) -> ir.Ref | None:
        """The view that makes a result which has gaps or shares memory with an input or another result; None for
        others."""
        root = root_of(result)
        if root.op != "call_function":
            return self._viewed(self._operand(root), views_from(root, result)) if root is not result else None
        order = order_of(val(root))
        alone = roots[root] < 2 and order_of(val(result)) is not None
        if alone or order is None:
            return None
        if root not in self.bases:
            ref = self._operand(root)
            if self._merged(root):
                ref = self._clone(ref, root)
            self.bases[root] = self._beside(root, ir.Own(ref, order))
        return self._viewed(self.bases[root], views_from(root, result))

    def _promise(self, result: fx.Node, forward: bool) -> Promise | None:
        if not forward:
            return Promise(order_of(val(result)), own=False, loose=True)
        return (
            Promise(order_of(val(result)), fresh=self._merged(root_of(result))) if result.op != "placeholder" else None
        )

    def _merged(self, node: fx.Node) -> bool:
        """Whether another captured call, with memory of its own, has the same value and therefore the same ref."""
        same = self.same_as[node]
        return any(n is not node and s is same and aliased(n) is None for n, s in self.same_as.items())

    def _clone(self, ref: ir.Ref, result: fx.Node) -> ir.Ref:
        self.cx.serial += 1
        return self._beside(
            result, ir.Aten(named.CLONE, (ir.Operand(ref),), (), self.cx.wanted(result), self.cx.serial)
        )

    def _number(self, value: bool | int | float) -> ir.Ref:
        """A result that is a plain number, as a value of the program."""
        name = {bool: "bool", int: "int", float: "float"}[type(value)]
        return self.cx.emit(ir.Aten(f"builtin.{name}", (value,), (), ir.AnyType(other=name)))

    def _read_row_counts(self, live: set[ir.Ref]) -> list[ir.Ref]:
        """The calls that read a row count of a space in use from a tensor (`int(n)`), if nothing else needs them."""
        b = self.cx.builder
        used = {s for r in live for s in _spaces(b.types[r])}
        symbols = {leaf for s in used if s in self.spaces.rows for leaf in leaves(expression(self.spaces.rows[s]))}
        read = (r for r, n in enumerate(b.nodes) if isinstance(n, ir.Aten) and n.target == named.ITEM)
        return [r for r in read if r not in live and getattr(b.types[r], "size", None) in symbols]

    def _finish(self, outputs: list[ir.Ref | None]) -> Imported:
        """The import without nodes that nothing needs, such as indices repeated over features and bases of zeros."""
        b = self.cx.builder
        results = _needed(b, [r for r in outputs if r is not None])
        counts = self._read_row_counts(results | _needed(b, self.inputs + self.cx.effects))
        effects = sorted(r for r in {*self.cx.effects, *counts} if r not in results)
        live = results | _needed(b, self.inputs + effects)
        kept = Builder()
        new: dict[ir.Ref, ir.Ref] = {}
        for ref in sorted(live):
            new[ref] = kept.add(with_operands(b.nodes[ref], new.__getitem__), b.locs[ref])
        used = {s for t in kept.types for s in _spaces(t)}
        used |= {s for n in kept.nodes if isinstance(n, ir.NumbersOfSegments | ir.Part) for s in n.of}
        rows = {s: n for s, n in self.spaces.rows.items() if s in used}
        program = kept.program(
            [None if r is None else new[r] for r in outputs], [(s, expression(n)) for s, n in rows.items()]
        )
        return Imported(
            program,
            tuple(new[r] for r in self.inputs),
            {new[r]: v for r, v in self.vals.items() if r in new},
            rows,
            {new[r]: why for r, why in self.refused.items() if r in new},
            tuple(new[r] for r in effects),
            {new[r]: v for r, v in self.cx.attributes.items() if r in new},
            {name: new[r] for name, r in self.drawn.items() if r in new},
            tuple(self.promises),
            {name: new[r] for name, r in self.origins.items() if r in new},
            frozenset(self.cx.seeded),
        )


def location_of(node: fx.Node) -> Location:
    """Where the user wrote `node`."""
    return location(node.meta.get("stack_trace") or "")


def attribute(gm: fx.GraphModule, name: str) -> Tensor:
    """The tensor behind a dotted attribute name; IRError for a submodule."""
    value: Any = gm
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise IRError(f"{name}: expected a tensor (got {type(value).__name__})")
    return value


def _is_plain(value: Tensor) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and not value.requires_grad and value.device.type != "meta"


def _plain(arg: object) -> object:
    """`arg` with sizes that are fixed replaced by numbers. IRError for a varying size that is no node."""
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


def _choosing_call(node: fx.Node) -> fx.Node | None:
    """The call whose data decides how many rows `node` has, which is that call or an item of it; None if none does."""
    source, item = node.args if node.target is operator.getitem else (node, None)
    if not isinstance(source, fx.Node) or source.op != "call_function" or not is_tensor(node):
        return None
    known = facts(source.target)
    return source if known.of_data and item not in known.kept else None


def _impure(node: fx.Node) -> bool:
    """Whether the call must run each time it appears, even if an equal call has run."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags


def _flat(arg: object) -> Iterable[Any]:
    if isinstance(arg, list | tuple):
        for a in arg:
            yield from _flat(a)
    else:
        yield arg


def _needed(b: Builder, roots: Iterable[ir.Ref]) -> set[ir.Ref]:
    return reached(roots, lambda ref: operands(b.nodes[ref]))


def _spaces(t: object) -> tuple[Space, ...]:
    found = (t.space,) if isinstance(t, ir.Type) else (t.dom, t.cod) if isinstance(t, ir.MapType) else ()
    return tuple(s for s in found if s != UNIT)
