"""Equal parts of Dynamo's graph as single calls, which AOTAutograd traces quickly, and their calls again afterwards.

AOTAutograd takes most of a first call of a deep model, and traces each of its layers twice. Here, one operator stands
for each equal part of the graph (`equal_parts.py`), and another one for its gradients. What they stand for is traced
once for all equal parts (`traced_parts.py`). The joint graph that AOTAutograd hands over is then given the calls of
each part again, so that it is the graph that AOTAutograd would have made by itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.frontends.calls.decompositions import Decompositions
from graphweave.frontends.halves.equal_parts import EqualPart, equal_parts
from graphweave.frontends.halves.traced_parts import NotFolded, Trace, Traces, operation
from graphweave.frontends.tracing.inner_gradients import takes_gradients

_log = logger(__name__)


class FoldedPart:
    """A part of the graph as one call."""

    def __init__(self, part: EqualPart, traces: Traces) -> None:
        self.part, self.traces = part, traces
        self.needs: tuple[bool, ...] = (False,) * len(part.inputs)
        self.trace: Trace | None = None  # with its gradients, once they have been asked for
        kinds = [isinstance(n.meta["example_value"], Tensor) for n in part.inputs]
        self._tensors = [i for i, is_tensor in enumerate(kinds) if is_tensor]
        self._sizes = [i for i, is_tensor in enumerate(kinds) if not is_tensor]

    def call(self, index: int, operands: Sequence[object]) -> list[Tensor]:
        """The tensors that the operator gives: the results of the part, and the values that it writes."""
        tensors, sizes = [operands[i] for i in self._tensors], [operands[i] for i in self._sizes]
        out: list[Tensor] = torch.ops.graphweave.equal_part(index, tensors, sizes)
        return out

    def operands(self, node: fx.Node) -> list[object]:
        """The operands of the operator's call `node`, in the order of the part's inputs."""
        _, tensors, sizes = node.args
        out: list[object] = [None] * len(self.part.inputs)
        for i, arg in zip((*self._tensors, *self._sizes), (*tensors, *sizes), strict=True):  # type: ignore[misc]
            out[i] = arg
        return out

    def given(self) -> list[Tensor]:
        """Fake results and written values."""
        nodes = [self.part.nodes[i] for i in self.part.results] + [self.part.inputs[i] for i in self.part.written]
        return [like(n.meta["example_value"]) for n in nodes]

    def differentiable(self) -> list[bool]:
        return [self.part.nodes[i].meta["example_value"].requires_grad for i in self.part.results]


def like(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

_folded: list[FoldedPart] = []
"""The parts of the graph that is being compiled. PyTorch compiles one graph at a time, under a lock."""

_library = torch.library.Library("graphweave", "FRAGMENT")
_library.define("equal_part(int part, Tensor[] tensors, SymInt[] sizes) -> Tensor[]")
_library.define("equal_part_backward(int part, Tensor[] tangents) -> Tensor[]")


@torch.library.register_fake("graphweave::equal_part", lib=_library)
def _fake_part(part: int, tensors: list[Tensor], sizes: list[object]) -> list[Tensor]:
    return _folded[part].given()


@torch.library.register_fake("graphweave::equal_part_backward", lib=_library)
def _fake_gradients(part: int, tangents: list[Tensor]) -> list[Tensor]:
    folded = _folded[part]
    assert folded.trace is not None
    return folded.trace.gradients(folded.part)


class _Differentiable(torch.autograd.Function):
    """The call of a part whose gradients are another call."""

    @staticmethod
    def forward(ctx: Any, index: int, *operands: object) -> tuple[Tensor, ...]:
        folded = _folded[index]
        ctx.index = index
        folded.needs = tuple(ctx.needs_input_grad[1:])
        ctx.set_materialize_grads(False)
        out = folded.call(index, operands)
        alike = folded.differentiable()
        fixed = [t for i, t in enumerate(out) if i >= len(alike) or not alike[i]]
        ctx.mark_non_differentiable(*fixed)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        folded = _folded[ctx.index]
        given = [t if d else None for t, d in zip(tangents, folded.differentiable(), strict=False)]
        folded.trace = folded.traces.with_gradients(folded.part, folded.needs, given)
        called = [t for t in given if t is not None]
        results = iter(torch.ops.graphweave.equal_part_backward(ctx.index, called))
        return None, *(next(results) if there else None for there in folded.trace.has_gradient)


def _run(index: int, *operands: Any) -> list[Tensor]:
    """A folded part in AOTAutograd's traces."""
    folded = _folded[index]
    wanted = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in operands)
    out = list(_Differentiable.apply(index, *operands) if wanted else folded.call(index, operands))
    results = len(folded.part.results)
    with torch.no_grad():
        for i, value in zip(folded.part.written, out[results:], strict=True):
            operands[i].copy_(value)
    return out[:results]


@contextmanager
def folded(module: fx.GraphModule, decompositions: Decompositions) -> Iterator[fx.GraphModule | None]:
    """Dynamo's graph with a single call in place of each of its equal parts; None if there are none. Within the block,
    `unfolded` undoes it in the graph that AOTAutograd makes of it."""
    if not settings().equal_parts or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        yield None
        return
    groups = [] if takes_gradients(module) else equal_parts(module.graph)
    if not groups:
        yield None
        return
    _folded.clear()
    try:
        graph, place = fx.Graph(), dict[fx.Node, fx.Node]()
        graph.output(graph.graph_copy(module.graph, place), None)
        copied = module.graph.output_node()
        graph.output_node().meta.update(copied.meta)
        for group in groups:
            traces = Traces(group, decompositions)
            for part in group:
                _folded.append(FoldedPart(part, traces))
                _fold(graph, part, place, len(_folded) - 1)
        bump("parts_traced_once", sum(map(_calls, groups)))
        _log.info("%d calls in %d groups of equal parts are traced once", sum(map(_calls, groups)), len(groups))
        out = fx.GraphModule(module, graph)
        out.meta.update(module.meta)
        yield out
    finally:
        _folded.clear()


def _calls(group: Sequence[EqualPart]) -> int:
    return sum(len(part.nodes) for part in group)


def _fold(graph: fx.Graph, part: EqualPart, place: dict[fx.Node, fx.Node], index: int) -> None:
    """Replace the calls of a part in `graph`, where the calls of the original graph have a `place`."""
    own = [place[n] for n in part.nodes]
    with graph.inserting_before(own[0]):
        call = graph.call_function(_run, (index, *(place[n] for n in part.inputs)))
        call.meta.update({k: v for k, v in own[-1].meta.items() if k not in ("example_value", "unbacked_bindings")})
        for at, i in enumerate(part.results):
            item = graph.call_function(operator.getitem, (call, at))
            item.meta.update(own[i].meta)
            own[i].replace_all_uses_with(item)
            place[part.nodes[i]] = item
    for node in reversed(own):
        graph.erase_node(node)


def unfolded(joint: fx.GraphModule) -> None:
    """In AOTAutograd's graph, replace calls that stand for parts by the calls of the parts."""
    if not _folded:
        return
    known: dict[Any, fx.Node] = {}
    inside: dict[int, dict[fx.Node, Any]] = {}
    for node in list(joint.graph.nodes):
        if node.target is torch.ops.graphweave.equal_part.default:
            at = _folded[node.args[0]]
            trace = at.trace or at.traces.without_gradients(at.part)
            inside[node.args[0]] = env = dict(zip(trace.primals, at.operands(node), strict=True))
            results = trace.insert_forward(joint.graph, node, at.part, env, known)
            _replace(joint.graph, node, results, len(at.part.results))
        elif node.target is torch.ops.graphweave.equal_part_backward.default:
            at = _folded[node.args[0]]
            if at.trace is None or node.args[0] not in inside:
                raise NotFolded("gradients of a part whose results nothing reads")
            env = inside[node.args[0]] | dict(zip(at.trace.tangents, node.args[1], strict=True))
            results = at.trace.insert_backward(joint.graph, node, at.part, env, known)
            _replace(joint.graph, node, results, len(results))
        elif isinstance(value := node.meta.get("val"), _SYMBOLIC):
            if isinstance(value, torch.SymInt):
                known.setdefault(value.node.expr, node)
            if not any(isinstance(n.meta.get("val"), Tensor) for n in node.all_input_nodes):
                known.setdefault(operation(node), node)
    joint.graph.eliminate_dead_code()
    joint.recompile()


def _replace(graph: fx.Graph, call: fx.Node, results: Sequence[fx.Node], given: int) -> None:
    """Let the users of a call's results use `results`. Those behind the first `given` are values that it writes, which
    `_run` has copied."""
    for item in list(call.users):
        at: Any = item.args[1]
        result = results[at]
        for copy in list(item.users) if at >= given else []:
            copy.replace_all_uses_with(result)
            graph.erase_node(copy)
        item.replace_all_uses_with(result)
        graph.erase_node(item)
    graph.erase_node(call)
