"""One node of a compiled program as one function: a product's runner, or the node's ATen calls as Python text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.proxy import GraphAppendingTracer

from graphweave.analysis.cones import map_type
from graphweave.analysis.remembered import remembered
from graphweave.analysis.typed import call_operands, is_typed, sources
from graphweave.compiler.plan import Plan
from graphweave.core.options import Options
from graphweave.core.types import UNIT, Op, Space
from graphweave.execute.bindings import call_of
from graphweave.execute.product_calls import product_call
from graphweave.execute.range_errors import with_named_indices
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.interp import apply
from graphweave.ir.message.unions import check_columns
from graphweave.runtime.formats import range_check
from graphweave.runtime.orders import choose_rows, distinct_rows, order_rows
from graphweave.runtime.reordered import reordered
from graphweave.runtime.running_sums import running_sums

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class NodeCall:
    """`run(*rows, *values)` computes the value of one node. `rows` are the row counts of `spaces`; `values` are those
    of its operands, as `call_operands` lists them, each once."""

    spaces: tuple[Space, ...]
    run: Callable[..., Any]


def _checked(node: ir.AssertIndex) -> Callable[..., None]:
    """The call of a check, which native code makes for most indices, without PyTorch's kernels and a result to read."""
    size, is_in_range = node.size, range_check()

    def check(index: Tensor) -> None:
        if not is_in_range(index, size):
            check_columns(index, size)

    return check


def _native(node: ir.Node, names: Sequence[ir.Ref]) -> Callable[..., object] | None:
    """The function of the values of `names` that native code computes for a node of `NativeOnCpu`; None for other
    nodes."""
    match node:
        case ir.Order(keys, descending):
            at = tuple(map(names.index, keys))
            return lambda *values: order_rows([values[i] for i in at], descending)
        case ir.Distinct(keys):
            each = tuple(map(names.index, keys))
            return lambda *values: distinct_rows([values[i] for i in each])
        case ir.Chosen():
            return choose_rows
        case ir.RunningSum(_, reverse):
            return lambda x: running_sums(x, reverse)
    return None


class NodeCalls:
    """The calls of a plan's nodes, each made when it is first asked for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @remembered
    def of(self, ref: ir.Ref) -> NodeCall:
        return call_step(self._plan.program, ref, self._plan.options)

    @cached_property
    def prelude(self) -> NodeCalls:
        """Those of the plan's prelude."""
        assert self._plan.prelude is not None
        return NodeCalls(self._plan.prelude)


def call_step(program: ir.Program, ref: ir.Ref, options: Options | None = None) -> NodeCall:
    """The call of one node: one of our products, or calls of PyTorch."""
    options = options or Options()
    names = tuple(dict.fromkeys(call_operands(program, ref)))
    node = program.nodes[ref]
    if isinstance(node, ir.Reordered):
        return NodeCall((), reordered)  # its operands differ, one being a value and the other an index
    native = _native(node, names)
    if native is not None:
        return NodeCall((), native)
    spaces = _ends_of_maps(program, ref)
    run = _checked(node) if isinstance(node, ir.AssertIndex) else product_call(program, ref, spaces, options)
    if run is None:
        spaces, run = _traced(program, ref, names, options.device)
    return NodeCall(spaces, with_named_indices(program, ref, spaces, names, run))


def _ends_of_maps(program: ir.Program, ref: ir.Ref) -> tuple[Space, ...]:
    """The spaces that the indices of a node index into. Errors about an index name their row counts."""
    node = program.nodes[ref]
    if not isinstance(node, ir.Pull | ir.Push) and not is_typed(program, ref):
        return ()
    maps = (r for r in sources(program, ref) if isinstance(program.nodes[r], ir.MapOf))
    return tuple(dict.fromkeys(s for m in maps if (s := map_type(program, m).cod) != UNIT))


def _traced(
    program: ir.Program, ref: ir.Ref, names: Sequence[ir.Ref], device: str
) -> tuple[tuple[Space, ...], Callable[..., object]]:
    """The spaces whose row counts the node needs, and its ATen calls as a function.

    The calls are recorded on proxies once, since interpreting the node each time would cost more than most of the
    calls.
    """
    node, graph = program.nodes[ref], fx.Graph()
    tracer = GraphAppendingTracer(graph)

    def call(function: Callable[..., object], *args: object, **kwargs: object) -> fx.Proxy:
        return tracer.create_proxy("call_function", function, args, kwargs)

    rows: dict[Space, fx.Proxy] = {}

    def rows_of(space: Space) -> Any:
        if space == UNIT:
            return 1
        if space not in rows:
            rows[space] = fx.Proxy(graph.placeholder(f"n_{len(rows)}"), tracer)
        return rows[space]

    for space in _ends_of_maps(program, ref):
        rows_of(space)
    given: dict[ir.Ref, Any] = {r: fx.Proxy(graph.placeholder(f"v{r}"), tracer) for r in names}
    parameters = [proxy.node for proxy in given.values()]
    given.update((r, None) for r in names if isinstance(program.nodes[r], ir.ToUnit))
    widened = _index_in_64_bits(node)
    if widened is not None and given[widened] is not None:
        given[widened] = given[widened].long()
    limit = _limit(program, ref)
    # An executable that is made by its first call is made while that call keeps PyTorch from looking at proxies.
    with torch._C._EnableTorchFunction():
        if limit is None:
            value = apply(node, given, program.types, rows_of, device=device, call=call)
        else:
            value = limit[0](given[limit[1]], limit[2])
    graph.output(value.node)
    spaces = tuple([s for s, _ in program.spaces if s in rows])
    return spaces, _function(graph, [*(rows[s].node for s in spaces), *parameters])


def _limit(program: ir.Program, ref: ir.Ref) -> tuple[Callable[..., object], ir.Ref, float] | None:
    """The call, the operand and the number of a maximum or minimum with a constant, which is a user's `clamp`.

    `torch.maximum` takes the second of two equal numbers in its vectors, and so would lose the sign of a zero.
    """
    match program.nodes[ref]:
        case ir.Pointwise((Op.maximum | Op.minimum) as op, (x, y)) if isinstance(number := program.nodes[y], ir.Const):
            t, of_y = program.types[x], program.types[y]
            assert isinstance(t, ir.Type) and isinstance(of_y, ir.Type)
            if t.dtype.is_float and of_y == ir.Type(UNIT, (), t.dtype):
                return aten.clamp_min.default if op is Op.maximum else aten.clamp_max.default, x, number.value
    return None


def _function(graph: fx.Graph, given: Iterable[fx.Node]) -> Callable[..., object]:
    """The graph as a Python function of the placeholders `given`, with operators and constants as names in its scope.

    Each value is freed after its last use.
    """
    scope: dict[str, Any] = {}

    def text(arg: object) -> str:
        match arg:
            case fx.Node():
                return arg.name
            case list() | tuple():
                return f"[{', '.join(map(text, arg))}]"
            case None | bool() | int() | str():
                return repr(arg)
            case _:
                scope[name := f"k{len(scope)}"] = arg
                return name

    lines: list[str] = []
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            passed = [*map(text, node.args), *(f"{k}={text(v)}" for k, v in node.kwargs.items())]
            if node.op == "call_method":
                callee = f"{passed.pop(0)}.{node.target}"
            else:
                callee = f"f{len(scope)}"
                scope[callee] = _chosen_at_first_call(scope, callee, node.target)
            lines.append(f"    {node.name} = {callee}({', '.join(passed)})")
            dead = [n.name for n in node.all_input_nodes if max(n.users) is node]
            if dead:
                lines.append(f"    del {', '.join(dead)}")
    parameters = ", ".join(n.name for n in given)
    lines.append(f"    return {text(graph.output_node().args[0])}")
    exec(f"def run({parameters}):\n" + "\n".join(lines), scope)
    run: Callable[..., Any] = scope["run"]
    return run


def _chosen_at_first_call(scope: dict[str, Any], name: str, target: Any) -> Callable[..., object]:
    """The function that calls `target` by this name: at first a function that looks what kinds of arguments it gets,
    from then on the fastest one for these. A node's arguments are of the same kinds in every call."""
    if not isinstance(target, OpOverload):
        function: Callable[..., Any] = target
        return function

    def choose(*args: Any, **kwargs: Any) -> Tensor | int | None:
        scope[name] = call_of(target, args, kwargs)
        return scope[name](*args, **kwargs)

    return choose


def _index_in_64_bits(node: ir.Node) -> ir.Ref | None:
    """The operand that must be widened to int64 before PyTorch gets it; None if there is none.

    An index that only maps read may be held in 32 bits (`formats.narrowed`). But PyTorch's scatters take only int64,
    and 32 bits may be too few for the sum of a negative index and a row count.
    """
    match node:
        case ir.MapOf(index, wrap=True):
            return index
        case ir.Push(map=m) if not node.is_plain_sum:
            return m
        case _:
            return None
