"""The operator of PyTorch that hides a function on edges from the trace of another compiler.

Inside somebody's `torch.compile` (inductor, aot_eager) an operator on edges must stay one call, since no other compiler
fuses its gathers and scatters. What the user's function closes over, weights and values of the trace among them, must
still be operands of that call, or it would have no gradients. So Dynamo traces the operator's body into a graph of its
own and lifts everything from outside into operands, as it does for the bodies of `torch.cond`; and the graph is then
called by the registered operator `graphweave::body`, which names it.

**The name** is a hash of the graph's text, so that a compiled artefact that another process has cached means the same
graph here. Graphs are kept, by name, as long as the process lives: compiled code that names one may be called at any
time. They hold code only, no tensors and none of the user's functions. Another process that is handed a compiled
artefact without tracing knows no such name, and says so.

The forward runs the graph as `graphweave.compile` compiles it. The backward computes the forward again, since an
operator keeps nothing but its operands. Gradients of gradients are not defined.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch._dynamo
from torch import Tensor, fx
from torch._dynamo.variables import higher_order_ops as traced_bodies
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor

from graphweave.core.counters import bump
from graphweave.core.errors import DataError
from graphweave.core.log import warn_once
from graphweave.frontends.dynamo.backend import compiles_now
from graphweave.frontends.dynamo.compile import compile

_Autocast: TypeAlias = tuple[tuple[str, torch.dtype], ...]


@dataclass(frozen=True)
class _Traced:
    """A graph whose operands are tensors and sizes (`are_tensors` says which), as plain code and compiled.

    `autocast`: kinds of devices and dtypes that were in force around the trace, and are where the graph runs.
    """

    module: fx.GraphModule
    are_tensors: tuple[bool, ...]
    autocast: _Autocast
    compiled: Callable[..., Any]

    def operands(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Any]:
        t, s = iter(tensors), iter(sizes)
        return [next(t) if is_tensor else next(s) for is_tensor in self.are_tensors]


_traced: dict[str, _Traced] = {}
_NAME = "graphweave_body"
_unique = itertools.count()


def traced_apart() -> bool:
    """Whether a compiler other than ours is tracing, and this PyTorch lets an operator have a body."""
    if _variables is None or not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return False
    return not _ours()


@torch._dynamo.assume_constant_result
def _ours() -> bool:
    return compiles_now()


def as_one_call(function: Callable[[], Tensor]) -> Tensor:
    """`function()`, under Dynamo: one call of `graphweave::body` in the graph that it makes."""
    return _as_operator(function)


class _BodyVariable(traced_bodies.WrapHigherOrderVariable):
    """How Dynamo traces a body: values from outside may share memory, and must not be written to."""

    _HOP_NAME = "graphweave_body"
    supports_input_mutation = False


class _AsOperator(HigherOrderOperator):
    """A stand-in that Dynamo calls with the graph of a body and everything from outside; the operator takes its
    place."""

    def __init__(self) -> None:
        super().__init__(_BodyVariable._HOP_NAME)

    def __call__(self, subgraph: fx.GraphModule, *operands: object) -> tuple[object, ...]:
        are_tensors = tuple(isinstance(x, Tensor) for x in operands)
        others = [x for x in operands if not isinstance(x, (Tensor, int, torch.SymInt))]
        if others:
            bump("eager_fallbacks")
            warn_once(
                "graphweave: an operator on edges is compiled by the compiler around it, since its function closes "
                f"over a {type(others[0]).__name__} of the trace. Make it a tensor, or a constant."
            )
            return tuple(subgraph(*operands))
        name = subgraph.meta.get(_NAME) or named(subgraph, are_tensors)
        sizes = [x for x in operands if not isinstance(x, Tensor)]
        return (run(name, [x for x in operands if isinstance(x, Tensor)], sizes),)


_as_operator: Any = _AsOperator()
_variables: Any = getattr(traced_bodies, "_hop_name_to_variable_class", None)
"""The table in which Dynamo looks up how a body is traced (PyTorch 2.13). If it is missing, the surrounding trace
contains the plain body."""
if _variables is not None:
    _variables[_BodyVariable._HOP_NAME] = _BodyVariable


def named(module: fx.GraphModule, are_tensors: tuple[bool, ...]) -> str:
    """Give a graph with one result a name, by which `graphweave::body` finds it from now on."""
    autocast = _autocast()
    name = hashlib.sha256(f"{are_tensors} {autocast} {_text(module)}".encode()).hexdigest()[:32]
    if name not in _traced:
        own = _without_examples(module)
        _traced[name] = _Traced(own, are_tensors, autocast, compile(own))
    module.meta[_NAME] = name
    return name


def _autocast() -> _Autocast:
    """The present state of autocast."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple([(kind, torch.get_autocast_dtype(kind)) for kind in kinds])


@contextlib.contextmanager
def _in_force(autocast: _Autocast) -> Iterator[None]:
    """Sets autocast as it was around the trace, since the graph may be run elsewhere."""
    with contextlib.ExitStack() as stack:
        now, wanted = dict(_autocast()), dict(autocast)
        for kind in now.keys() | wanted.keys():
            if now.get(kind) != wanted.get(kind):
                stack.enter_context(torch.autocast(kind, wanted.get(kind), enabled=kind in wanted))
        yield


def _text(module: fx.GraphModule) -> str:
    """A text that is equal for graphs of equal meaning. A graph that holds more than code has a text of its own."""
    parts = [module.code]
    for node in module.graph.find_nodes(op="get_attr"):
        held = getattr(module, str(node.target), None)
        parts.append(_text(held) if isinstance(held, fx.GraphModule) else f"{os.getpid()} {next(_unique)}")
    return "\n".join(parts)


def _without_examples(module: fx.GraphModule) -> fx.GraphModule:
    """The graph without what its nodes keep from the trace, such as fake tensors and lines of the user's code."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
        env[node].meta = {}
    return fx.GraphModule(module, graph)


def _known(program: str) -> _Traced:
    if program not in _traced:
        raise DataError(
            f"graphweave::body: expected the name of a graph that this process has traced (got {program!r})."
            " Call the compiled function once in this process, rather than loading what another one compiled."
        )
    return _traced[program]


@contextlib.contextmanager
def _ordinarily() -> Iterator[None]:
    """Restores the ordinary state of dispatch. PyTorch calls an operator below autograd and below the layer in which
    views share version counters."""
    keys = torch._C.DispatchKey
    with torch._C._PreserveDispatchKeyGuard():
        for key in (keys.AutogradFunctionality, keys.ADInplaceOrView):
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield


@torch.library.custom_op("graphweave::body", mutates_args=())
def run(program: str, tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The result of the graph that `program` names, of tensors and sizes in the order in which it takes them."""
    traced = _known(program)
    with _ordinarily(), torch.no_grad(), _in_force(traced.autocast):
        return _own(traced.compiled(*traced.operands(tensors, sizes))[0], tensors)


@contextlib.contextmanager
def _numbers_inside(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Lets a body read numbers from a tensor, which is how floats are handed to it. They are not results of the
    operator."""
    fakes = [t for t in tensors if isinstance(t, FakeTensor)]
    env = fakes[0].fake_mode.shape_env if fakes else None
    with contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols():
        yield


@run.register_fake
def _run_fake(program: str, tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    traced = _known(program)
    with _in_force(traced.autocast), _numbers_inside(tensors):
        out = traced.module(*traced.operands(tensors, sizes))[0]
    return out.new_empty(out.shape)


@torch.library.custom_op("graphweave::body_backward", mutates_args=())
def run_backward(
    program: str, gradient: Tensor, tensors: Sequence[Tensor], sizes: Sequence[int], wanted: Sequence[int]
) -> list[Tensor]:
    """Gradients of the tensors at the places `wanted`."""
    traced = _known(program)
    with _ordinarily(), torch.enable_grad():
        leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
        by = [leaves[i] for i in wanted]
        with _in_force(traced.autocast):
            out = traced.compiled(*traced.operands(leaves, sizes))[0]
        found = torch.autograd.grad(out, by, gradient, allow_unused=True) if out.requires_grad else [None] * len(by)
    given = [gradient, *tensors]
    return [x.new_zeros(x.shape) if g is None else _own(g, given) for x, g in zip(by, found, strict=True)]


@run_backward.register_fake
def _run_backward_fake(
    program: str, gradient: Tensor, tensors: Sequence[Tensor], sizes: Sequence[int], wanted: Sequence[int]
) -> list[Tensor]:
    return [tensors[i].new_empty(tensors[i].shape) for i in wanted]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.program, tensors, sizes = inputs
    ctx.sizes = list(sizes)
    ctx.wanted = [i for i, t in enumerate(tensors) if t.requires_grad]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    found = run_backward(ctx.program, gradient, tensors, ctx.sizes, ctx.wanted)
    gradients: list[Tensor | None] = [None] * len(tensors)
    for place, g in zip(ctx.wanted, found, strict=True):
        gradients[place] = g
    return None, gradients, None if ctx.sizes else []  # An empty list counts as a list of tensors for PyTorch.


run.register_autograd(_backward, setup_context=_setup)


def _own(x: Tensor, given: Sequence[Tensor]) -> Tensor:
    """`x`, contiguous, and copied if it shares memory with one of `given`: results of an operator must not alias its
    operands."""
    storages = {t.untyped_storage()._cdata for t in given}
    x = x.contiguous()
    return x.clone() if x.untyped_storage()._cdata in storages else x
