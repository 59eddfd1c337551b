"""Finds equal parts that follow each other in Dynamo's graph, such as the layers of a deep stack.

Two runs of calls are equal parts if they call the same functions with the same constants, but for the digits of floats
(`part_numbers.py`), connected alike, on inputs that are alike: of the same types, with sizes that are the same but for
the names of symbols. Whether calls belong to a module plays no role.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from graphweave.core.numbers import any_other
from graphweave.frontends.halves.part_numbers import numbers_of

FEWEST = 3
"""A part that occurs less often is traced as often as it occurs."""
SHORTEST = 6
"""Calls in the shortest part that is worth while."""
_STATE = (
    "set_grad_enabled",
    "autocast",
    "functorch",
    "inference_mode",
    "saved_tensors",
    "deterministic",
    "DispatchKey",
)
"""Parts of the names of functions that change how later calls of the graph are traced."""
_NORMS = (torch.nn.functional.batch_norm, torch.nn.functional.instance_norm)
"""Functions that write to their arguments `running_mean` and `running_var` if the sixth argument says so."""


@dataclass(slots=True)
class EqualPart:
    """One of several equal runs of calls in Dynamo's graph."""

    nodes: list[fx.Node]
    inputs: list[fx.Node] = field(default_factory=list)
    """The values that the calls take from outside. A tensor that needs a gradient is an input once for each use, the
    last use first, so that autograd adds the gradients in the order of the single calls."""
    symbols: list[Any] = field(default_factory=list)
    """Symbols of the inputs' sizes, and then those that the calls make, in an order that equal parts share."""
    uses: dict[tuple[int, int], int] = field(default_factory=dict)
    """The call and the place among its operands -> the position of the input that is read there."""
    results: tuple[int, ...] = ()
    """Positions of the calls whose results are used outside of any of the equal parts."""
    written: tuple[int, ...] = ()
    """Positions of the inputs that the calls write to."""
    numbers: list[float] = field(default_factory=list)
    """Constants in which equal parts may differ, in the order of the calls."""


def equal_parts(graph: fx.Graph) -> list[list[EqualPart]]:
    """Groups of equal parts that do not overlap, each of at least `FEWEST`."""
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    if len(calls) < FEWEST * SHORTEST or any(_changes_state(n) for n in calls):
        return []
    tokens = [_token(n) for n in calls]
    place = {n: i for i, n in enumerate(calls)}
    crossing = _values_that_cross(calls, place)
    sizes: dict[Any, fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        if isinstance(value := node.meta.get("example_value"), torch.SymInt):
            sizes.setdefault(value.node.expr, node)
    groups: list[list[EqualPart]] = []
    for start, period, copies in _repetitions(tokens, 0, len(calls)):
        extra = 0
        while start + period * copies + extra < len(calls) and (
            tokens[start + period * copies + extra] == tokens[start + extra]
        ):
            extra += 1
        first = min(range(min(extra, period - 1) + 1), key=lambda r: crossing[start + r])
        begins = range(start + first, start + first + period * copies, period)
        groups += _grouped([calls[b : b + period] for b in begins], sizes)
    return groups


def _grouped(runs: Sequence[list[fx.Node]], sizes: dict[object, fx.Node]) -> Iterator[list[EqualPart]]:
    """Groups of those `runs` of calls that are equal parts. `sizes` are the graph's own inputs for symbols."""
    found: dict[Any, list[EqualPart]] = defaultdict(list)
    for nodes in runs:
        part = EqualPart(nodes)
        key = _key(part, sizes)
        if key is not None:
            found[key].append(part)
    for parts in found.values():
        results = set[int]()
        for part in parts:
            own = set(part.nodes)
            results |= {i for i, n in enumerate(part.nodes) if any(u not in own for u in n.users)}
        for part in parts:
            part.results = tuple(sorted(results))
        if len(parts) >= FEWEST and all(map(_gives_own_tensors, parts)) and _write_alike(parts):
            yield parts


def _repetitions(tokens: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Start, length and number of equal runs that follow each other in `tokens`, the longest stretch first."""
    if end - begin < FEWEST * SHORTEST:
        return
    distances = Counter[int]()
    seen: dict[tuple[int, ...], int] = {}
    for i in range(begin, end - 2):
        three = tuple(tokens[i : i + 3])
        if three in seen:
            distances[i - seen[three]] += 1
        seen[three] = i
    best = (0, 0, 0, 0)
    for period, _ in distances.most_common(12):
        if period < SHORTEST:
            continue
        run = 0
        for i in range(begin, end - period + 1):
            if i < end - period and tokens[i] == tokens[i + period]:
                run += 1
                continue
            copies = run // period + 1
            if copies >= FEWEST:
                best = max(best, ((copies - 1) * period, -period, i - run, copies))
            run = 0
    saved, period, start, copies = best
    if not saved:
        return
    yield start, -period, copies
    yield from _repetitions(tokens, begin, start)
    yield from _repetitions(tokens, start - period * copies, end)


def _values_that_cross(calls: Sequence[fx.Node], place: dict[fx.Node, int]) -> list[int]:
    """For each place between calls, how many results of earlier calls later ones read. Symbols count much, as do views:
    neither can be a result of a part."""
    steps = [0] * (len(calls) + 2)
    for i, node in enumerate(calls):
        last = max((place.get(u, len(calls)) for u in node.users), default=i)
        if last > i:
            value = node.meta.get("example_value")
            weight = 1 if isinstance(value, torch.Tensor) and not value._is_view() else 100
            steps[i + 1] += weight
            steps[last + 1] -= weight
    crossing = []
    total = 0
    for step in steps:
        total += step
        crossing.append(total)
    return crossing


def _changes_state(node: fx.Node) -> bool:
    if node.op == "call_method":
        return False
    target = node.target
    name = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"
    return any(part in name for part in _STATE)


def _token(node: fx.Node) -> int:
    """Equal for calls that may have the same place in equal parts."""
    if node.op not in ("call_function", "call_method") or isinstance(node.target, torch._ops.HigherOrderOperator):
        return hash(node)
    constants: list[Any] = [node.op, node.target if isinstance(node.target, str) else id(node.target)]
    _walk(_arguments(node), lambda n: constants.append(_rank(n)), constants.append)
    return hash(tuple(constants))


def _arguments(node: fx.Node) -> object:
    """The arguments of a call, without the text of an assertion, which names a symbol."""
    if getattr(node.target, "__name__", "").startswith("_assert_scalar"):
        return node.args[0], {}
    return node.args, node.kwargs


def _rank(node: fx.Node) -> tuple[str, int] | str:
    value = node.meta.get("example_value")
    return (str(value.dtype), value.dim()) if isinstance(value, torch.Tensor) else type(value).__name__


def _walk(args: Any, on_node: Callable[[fx.Node], None], on_constant: Callable[[object], None]) -> None:
    if isinstance(args, fx.Node):
        on_node(args)
    elif isinstance(args, (list, tuple)):
        on_constant((type(args).__name__, len(args)))
        for arg in args:
            _walk(arg, on_node, on_constant)
    elif isinstance(args, dict):
        for name, arg in args.items():
            on_constant(name)
            _walk(arg, on_node, on_constant)
    elif isinstance(args, slice):
        on_constant("slice")
        _walk((args.start, args.stop, args.step), on_node, on_constant)
    else:
        other = any_other(args)
        on_constant((type(args).__name__, repr(args if other is None else other)))


def _key(part: EqualPart, sizes: dict[object, fx.Node]) -> object:
    """The key that equal parts share; None if a part takes something else than tensors and sizes. Fills in the part's
    inputs and symbols. Its inputs are what it reads and, of the graph's `sizes`, those of what it reads."""
    inside = {n: i for i, n in enumerate(part.nodes)}
    key: list[Any] = []
    uses: list[tuple[fx.Node, tuple[int, int]]] = []
    for i, node in enumerate(part.nodes):
        key.append((node.op, node.target if isinstance(node.target, str) else id(node.target)))
        operand = 0

        def reads(n: fx.Node, i: int = i) -> None:
            nonlocal operand
            if n in inside:
                key.append(inside[n])
            else:
                key.append("input")
                uses.append((n, (i, operand)))
            operand += 1

        _walk(_arguments(node), reads, key.append)
        part.numbers += numbers_of(node)
    key.append(tuple(map(part.numbers.index, part.numbers)))
    places: dict[fx.Node, int] = {}
    for node, use in reversed(uses):
        value = node.meta.get("example_value")
        own = isinstance(value, torch.Tensor) and value.requires_grad
        if own or node not in places:
            places[node] = len(part.inputs)
            part.inputs.append(node)
        part.uses[use] = places[node]
    key.append(tuple(part.uses.items()))
    signature = _signature(part)
    if signature is None:
        return None
    more = [s for s in part.symbols if s in sizes and sizes[s] not in places]
    part.inputs += [sizes[s] for s in more]
    return tuple(key), signature, tuple(part.symbols.index(s) for s in more)


def _signature(part: EqualPart) -> object:
    """The types and sizes of a part's inputs, and the symbols that it makes."""
    numbers: dict[Any, int] = {}
    out: list[Any] = []
    for node in part.inputs:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt):
            out.append(_numbered(value, numbers, out))
        elif isinstance(value, FakeTensor) and value.layout == torch.strided:
            out.append((value.dtype, value.device, value.requires_grad, value.is_conj(), value.is_neg()))
            out += [_numbered(s, numbers, out) for s in (*value.shape, *value.stride())]
        else:
            return None
    for node in part.nodes:
        for symbol in node.meta.get("unbacked_bindings") or ():
            numbers.setdefault(symbol, len(numbers))
    part.symbols = list(numbers)
    return tuple(out)


def _numbered(size: object, numbers: dict[object, int], out: list[object]) -> object:
    """A size with numbers in place of its symbols."""
    if not isinstance(size, torch.SymInt):
        return size
    expression, env = size.node.expr, size.node.shape_env
    if expression.is_number:
        return int(expression)
    for symbol in sorted(expression.free_symbols, key=str):
        if symbol not in numbers:
            numbers[symbol] = len(numbers)
            out.append((str(env.var_to_range.get(symbol)), str(symbol)[0]))
    if expression.is_symbol:
        return ("symbol", numbers[expression])
    names = {s: type(s)(f"k{numbers[s]}", integer=True) for s in expression.free_symbols}
    return str(expression.xreplace(names))


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _gives_own_tensors(part: EqualPart) -> bool:
    """Whether the results of a part are tensors that share no memory with its inputs or each other."""
    memory = {_memory(n) for n in part.inputs} - {None}
    for i in part.results:
        value = part.nodes[i].meta.get("example_value")
        if not isinstance(value, FakeTensor) or _memory(part.nodes[i]) in memory:
            return False
        memory.add(_memory(part.nodes[i]))
        if value._is_view() and any(u.op == "output" for u in part.nodes[i].users):
            return False
    return True


def _write_alike(parts: Sequence[EqualPart]) -> bool:
    """Whether it is known to which of their inputs the parts write, and is the same in all; sets `written`."""
    found = {_written(part) for part in parts}
    (first, *others) = found
    for part in parts:
        part.written = first or ()
    return first is not None and not others


def _written(part: EqualPart) -> tuple[int, ...] | None:
    """The positions of the inputs to which a part may write; None if it may write to memory in another way."""
    position = {n: i for i, n in enumerate(part.inputs)}
    memory = {_memory(n): n for n in part.inputs if _memory(n) is not None}
    written = set[int]()
    for node in part.nodes:
        statistics = _statistics(node)
        for target in statistics + _may_write(node):
            touched = memory.get(_memory(target))
            if touched is None or not (target in statistics or touched.meta["example_value"]._version):
                continue
            if target is not touched or touched.meta["example_value"].requires_grad:
                return None
            written.add(position[touched])
    return tuple(sorted(written))


def _statistics(node: fx.Node) -> list[fx.Node]:
    """The running statistics to which a norm writes."""
    if node.target not in _NORMS:
        return []
    given = signature(node.target).bind(*node.args, **node.kwargs).arguments
    if given.get("training", given.get("use_input_stats")) is False:
        return []
    return [a for a in (given.get("running_mean"), given.get("running_var")) if isinstance(a, fx.Node)]


def _may_write(node: fx.Node) -> list[fx.Node]:
    """The operands to which a call may write, if the graph writes to them at all."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    named = [a for k, a in node.kwargs.items() if k == "out" and isinstance(a, fx.Node)]
    writes = name.endswith("_") or name == "setitem" or node.kwargs.get("inplace") is True
    inplace_operator = name.startswith("i") and getattr(node.target, "__module__", "") == "_operator"
    if writes or inplace_operator or True in node.args:  # `F.relu(x, True)`
        return [*named, *(a for a in node.args[:1] if isinstance(a, fx.Node))]
    return named
