"""The ATen graphs of equal parts: forward and gradients of one of them, and copies of these for the others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import torch
from sympy import Symbol
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher, suspend_functionalization
from torch._functorch._aot_autograd.functional_utils import from_fun, has_data_mutation, sync_functional_tensor, to_fun
from torch._functorch._aot_autograd.graph_capture_wrappers import set_partitioner_tag_is_backward
from torch._functorch._aot_autograd.utils import copy_fwd_metadata_to_bw_nodes
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensorMode, disable_functional_mode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from graphweave.frontends.calls.decompositions import Decompositions
from graphweave.frontends.halves.equal_parts import EqualPart
from graphweave.frontends.halves.part_numbers import Place, others, put, varying_constants, with_numbers

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class NotFolded(Exception):
    """Equal parts cannot be traced once after all."""


class Traces:
    """The traces of a group of equal parts: one without gradients, and one for each kind of tangents that occurs."""

    def __init__(self, group: Sequence[EqualPart], decompositions: Decompositions) -> None:
        self._decompositions = decompositions
        self._vary = any(part.numbers != group[0].numbers for part in group)
        self._found: list[tuple[Any, Trace]] = []
        self._include = torch._C._dispatch_tls_local_include_set()
        self._exclude = torch._C._dispatch_tls_local_exclude_set()

    def without_gradients(self, part: EqualPart) -> Trace:
        return self._trace(part, (), [])

    def with_gradients(self, part: EqualPart, needs: tuple[bool, ...], tangents: Sequence[Tensor | None]) -> Trace:
        return self._trace(part, needs, tangents)

    def _trace(self, part: EqualPart, needs: tuple[bool, ...], tangents: Sequence[Tensor | None]) -> Trace:
        kinds = [None if t is None else (t.dtype, t.device) for t in tangents]
        sizes = [[*t.shape, *t.stride()] for t in tangents if t is not None]
        for key, trace in self._found:
            if key[:2] == (needs, kinds) and trace.fits(part) and _same(key[2], sizes, trace.renamed(part)):
                return trace
        trace = Trace(part, needs, tangents, self._decompositions, (self._include, self._exclude), vary=self._vary)
        self._found.append(((needs, kinds, sizes), trace))
        return trace


_Env: TypeAlias = dict[fx.Node, fx.Node]
"""Nodes of a trace -> nodes of the graph into which it is copied."""
_Known: TypeAlias = dict[Hashable, fx.Node]
"""Keys of symbolic numbers -> the nodes that compute them."""


def _same(ours: list[list[object]], theirs: list[list[object]], names: dict[object, object]) -> bool:
    return all(
        _expression(a, names) == _expression(b, {})
        for x, y in zip(ours, theirs, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def _expression(size: object, names: dict[object, object]) -> object:
    return size.node.expr.xreplace(names) if isinstance(size, torch.SymInt) else size


class Trace:
    """The graph of one part, from which those of equal parts are copied."""

    def __init__(
        self,
        part: EqualPart,
        needs: tuple[bool, ...],
        tangents: Sequence[Tensor | None],
        decompositions: Decompositions,
        keys: tuple[torch._C.DispatchKeySet, torch._C.DispatchKeySet],
        *,
        vary: bool,
    ) -> None:
        self._part = part
        values = [n.meta["example_value"] for n in part.inputs]
        mode: Any = next(v for v in values if isinstance(v, FakeTensor)).fake_mode
        self._env = mode.shape_env
        self._sizes: dict[Any, Any] = {}
        self._values: dict[Any, Tensor] = {}
        self.has_gradient: list[bool] = []
        guards = len(self._env.guards)
        with (
            suspend_functionalization(), disable_functional_mode(), disable_proxy_modes_tracing(),
            torch._C._ForceDispatchKeyGuard(*keys), torch.set_grad_enabled(bool(needs)),
        ):  # fmt: skip
            self._graph = self._traced(values, needs, tangents, decompositions, part.numbers)
            self._constants: dict[fx.Node, dict[int, Place]] | None = None
            if vary:
                numbers = others(part.numbers)
                other = self._traced(values, needs, tangents, decompositions, numbers)
                self._constants = varying_constants(self._graph, part.numbers, other, numbers)
        self._guards = [guard.expr for guard in self._env.guards[guards:]]
        self._fitting: dict[int, bool] = {id(part): True}
        placeholders = self._graph.find_nodes(op="placeholder")
        self.primals, self.tangents = placeholders[: len(values)], placeholders[len(values) :]
        results: Any = self._graph.output_node().args[0]
        count = len(part.results) + len(part.written)
        self._results, self._gradients = results[:count], results[count:]

    def _traced(
        self,
        values: Sequence[object],
        needs: tuple[bool, ...],
        tangents: Sequence[Tensor | None],
        decompositions: Decompositions,
        numbers: Sequence[float],
    ) -> fx.Graph:
        part = self._part
        module = fx.GraphModule({}, _graph_of(part, numbers))
        mode = TracingContext.get().fake_mode  # not Dynamo's own, but with the same symbols
        assert mode is not None
        needs = needs or (False,) * len(values)
        with mode:
            primals = [_fresh(v, need) for v, need in zip(values, needs, strict=True)]
            given = [_fresh(t, False) for t in tangents if t is not None]
        wanted = [t is not None for t in tangents]
        self._backward: set[str] = set()

        def joint(primals: list[object], tangents: list[Tensor]) -> object:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
                inputs, tangents = tree_map(to_fun, primals), tree_map(to_fun, tangents)
                results = list(PropagateUnbackedSymInts(module).run(*inputs))
                proxies = get_proxy_mode()
                assert proxies is not None
                for node in proxies.tracer.graph.nodes:
                    node.meta["partitioner_tag"] = "is_forward"
                written = tuple(i for i, t in enumerate(inputs) if isinstance(t, Tensor) and _is_written(t))
                if written != part.written:
                    raise NotFolded(f"a part writes to other inputs than expected: {written}, {part.written}")
                gradients = self._differentiate(results, inputs, wanted, tangents) if any(wanted) else []
                outs = [*results, *(inputs[i] for i in written), *gradients]
                return tree_map(from_fun, outs)

        with enable_python_dispatcher(), FunctionalTensorMode(), torch.fx.traceback.preserve_node_meta():
            traced = make_fx(joint, decomposition_table=decompositions, record_module_stack=True)(primals, given)
        copy_fwd_metadata_to_bw_nodes(traced)
        traced.graph.eliminate_dead_code()
        return traced.graph

    def _differentiate(
        self,
        results: Sequence[Tensor],
        inputs: Sequence[Tensor | int],
        wanted: Sequence[bool],
        tangents: Sequence[Tensor],
    ) -> list[Tensor]:
        asked = [t for t in inputs if isinstance(t, Tensor) and t.requires_grad]
        outs = [t for t, there in zip(results, wanted, strict=False) if there]
        with set_partitioner_tag_is_backward():
            found = iter(torch.autograd.grad(outs, asked, grad_outputs=tangents, allow_unused=True))
        gradients = [next(found) if isinstance(t, Tensor) and t.requires_grad else None for t in inputs]
        self.has_gradient = [g is not None for g in gradients]
        return [g for g in gradients if g is not None]

    def renamed(self, part: EqualPart) -> dict[Symbol, Symbol]:
        """The symbols of this trace, and those of an equal part in their place."""
        return {a: b for a, b in zip(self._part.symbols, part.symbols, strict=True) if a != b}

    def fits(self, part: EqualPart) -> bool:
        """Whether what was assumed about sizes in the trace also holds for `part`, by guards, and it is known what its
        numbers lead to."""
        if self._constants is None and part.numbers != self._part.numbers:
            return False
        fits = self._fitting.get(id(part))
        if fits is None:
            names = self.renamed(part)
            changed = [(e, e.xreplace(names)) for e in self._guards if names]
            fits = all(bool(self._env.evaluate_expr(to)) for e, to in changed if e != to)
            self._fitting[id(part)] = fits
        return fits

    def gradients(self, part: EqualPart) -> list[Tensor]:
        """Fake gradients of a part."""
        names = self.renamed(part)
        out = []
        for node in self._gradients:
            value = node.meta["val"]
            sizes, strides = ([self._size(s, names) for s in many] for many in (value.shape, value.stride()))
            out.append(torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device))
        return out

    def insert_forward(
        self, graph: fx.Graph, before: fx.Node, part: EqualPart, env: _Env, known: _Known
    ) -> list[fx.Node]:
        """Insert the calls of the forward; their results and the values that are written."""
        self._insert(graph, before, part, env, known, backward=False)
        return [env[n] for n in self._results]

    def insert_backward(
        self, graph: fx.Graph, before: fx.Node, part: EqualPart, env: _Env, known: _Known
    ) -> list[fx.Node]:
        """Insert the calls of the backward; the gradients."""
        self._insert(graph, before, part, env, known, backward=True)
        return [env[n] for n in self._gradients]

    def _insert(
        self, graph: fx.Graph, before: fx.Node, part: EqualPart, env: _Env, known: _Known, *, backward: bool
    ) -> None:
        names, outside = self.renamed(part), {*self.primals, *self.tangents}
        with graph.inserting_before(before):
            for node in self._graph.nodes:
                if node.op != "call_function" or (node.meta.get("partitioner_tag") == "is_backward") != backward:
                    continue
                number = self._number(node, outside, names, env)
                if number is not None and number in known:
                    env[node] = known[number]
                    continue
                env[node] = graph.node_copy(node, lambda n: env[n])
                if self._constants and node in self._constants:
                    put(env[node], self._constants[node], part.numbers)
                if number is not None:
                    known[number] = env[node]
                if names:
                    env[node].meta = self._meta(node.meta, names)

    def _number(self, node: fx.Node, outside: set[fx.Node], names: dict[object, object], env: _Env) -> Hashable:
        """The key that equal symbolic numbers share, which a graph computes once: an expression if `node` reads it from
        a tensor from outside, its operands if it computes with numbers; None for anything else."""
        value = node.meta.get("val")
        if not isinstance(value, _SYMBOLIC):
            return None
        if not any(isinstance(n.meta.get("val"), Tensor) for n in node.all_input_nodes):
            return operation(node, env)
        if isinstance(value, torch.SymInt) and outside.issuperset(node.all_input_nodes):
            return _expression(value, names)
        return None

    def _meta(self, meta: dict[str, Any], names: dict[Symbol, Symbol]) -> dict[str, object]:
        out = {k: v for k, v in meta.items() if k != "tensor_meta"}
        if "val" in out:
            out["val"] = tree_map(lambda v: self._value(v, names), out["val"])
        if bindings := out.get("unbacked_bindings"):
            out["unbacked_bindings"] = {names.get(s, s): path for s, path in bindings.items()}
        return out

    def _value(self, value: object, names: dict[object, object]) -> object:
        if isinstance(value, torch.SymBool):
            return self._env.create_symboolnode(value.node.expr.xreplace(names))
        if isinstance(value, torch.SymInt):
            return self._size(value, names)
        if not isinstance(value, Tensor):
            return value
        sizes, strides = ([self._size(s, names) for s in many] for many in (value.shape, value.stride()))
        if all(a is b for a, b in zip((*sizes, *strides), (*value.shape, *value.stride()), strict=True)):
            return value
        alike = (*map(_of, sizes), *map(_of, strides), value.dtype, value.device)
        if alike not in self._values:
            # far cheaper than a call in the fake mode
            with _disable_current_modes():
                meta = torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
                self._values[alike] = FakeTensor(value.fake_mode, meta, value.device)  # type: ignore[attr-defined]
        return self._values[alike]

    def _size(self, size: object, names: dict[object, object]) -> Any:
        if not isinstance(size, torch.SymInt):
            return size
        expression = size.node.expr
        renamed = expression.xreplace(names)
        if renamed == expression:
            return size
        if renamed not in self._sizes:
            self._sizes[renamed] = self._env.create_symintnode(renamed, hint=None)
        return self._sizes[renamed]


def _of(size: object) -> Any:
    return _expression(size, {})


def operation(node: fx.Node, env: _Env | None = None) -> object:
    """The key that calls share if they compute the same of the same operands."""
    return node.target, fx.map_arg((node.args, tuple(node.kwargs.items())), lambda n: n if env is None else env[n])


def _is_written(t: Tensor) -> bool:
    sync_functional_tensor(t)
    return has_data_mutation(t)


def _fresh(value: object, needs: bool) -> object:
    if not isinstance(value, Tensor):
        return value
    out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return out.requires_grad_() if needs else out


def _graph_of(part: EqualPart, numbers: Sequence[float]) -> fx.Graph:
    """The calls of a part as a graph, with `numbers` in place of its own."""
    left = iter(numbers)
    graph, place = fx.Graph(), dict[fx.Node, fx.Node]()
    inputs = []
    for i, node in enumerate(part.inputs):
        inputs.append(graph.placeholder(f"in_{i}"))
        inputs[-1].meta.update(node.meta)
    for i, node in enumerate(part.nodes):
        operand = -1

        def read(n: fx.Node, i: int = i) -> fx.Node:
            nonlocal operand
            operand += 1
            return place[n] if n in place else inputs[part.uses[i, operand]]

        place[node] = graph.node_copy(node, read)
        with_numbers(place[node], left)
    graph.output(tuple(place[part.nodes[i]] for i in part.results))
    return graph
