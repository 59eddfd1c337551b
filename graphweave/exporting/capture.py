"""A model on example inputs -> its captured graph, and what each argument and result of that is to the user."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._dynamo.source import TensorProperty, TensorPropertySource
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import KeyEntry, keystr, tree_flatten_with_path, tree_map_only

from graphweave.core.boxed import Boxed, boxed
from graphweave.core.errors import ExportError
from graphweave.core.sizes import Size, Symbol, leaves, read
from graphweave.frontends.dynamo.arguments import as_traced
from graphweave.frontends.dynamo.captured import Captured
from graphweave.frontends.dynamo.captured_request import CapturedGraph, Taker
from graphweave.frontends.tracing.reasons import reason_of


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """A tensor that the captured graph takes by `placeholder`: an input of the model, or one of its weights. `sizes`
    are those of its dims, of which symbols vary from call to call."""

    placeholder: str
    name: str
    example: Tensor
    sizes: tuple[Size, ...]
    is_seed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class WholeModel:
    """A model captured as one graph. `results` are the names and examples of what it gives, and for each the position
    among the graph's own results. `guards` are conditions on sizes under which the graph is right."""

    captured: CapturedGraph
    inputs: tuple[Argument, ...]
    weights: tuple[Argument, ...]
    results: tuple[tuple[str, Tensor, int], ...]
    guards: tuple[sympy.Basic, ...]
    known_as: Mapping[Size, Size]
    """Sizes that PyTorch has found to be equal to others -> those others."""


@dataclass(slots=True)
class _Taken:
    graphs: list[CapturedGraph] = field(default_factory=list)
    arguments: Sequence[Any] = ()
    results: Sequence[Any] = ()

    def take(self, captured: CapturedGraph) -> Boxed:
        self.graphs.append(captured)
        module = captured.module

        def run(args: list[object]) -> list[object]:
            self.arguments = tuple(args)
            self.results = tuple(module(*args))
            return list(self.results)

        return boxed(run)


def capture_whole(model: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> WholeModel:
    """Capture the inference of `model`. Raises ExportError if it cannot be captured as one graph, or takes or gives
    what is no tensor."""
    args, kwargs = tuple(map(as_traced, args)), {name: as_traced(arg) for name, arg in kwargs.items()}
    inputs = [(name, value) for name, value in named_leaves(model, args, kwargs) if value is not None]
    for name, value in inputs:
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
            got = (
                type(value).__name__ if not isinstance(value, Tensor) else f"a {value.layout} tensor on {value.device}"
            )
            raise ExportError(
                f"{name}: expected a dense tensor on the CPU (got {got}). Pass one; bind numbers and words with"
                " functools.partial, as they are part of the model."
            )
    for any_rows in (True, False):
        taken = _Taken()
        try:
            found = _captured_once(model, args, kwargs, Taker(taken.take, any_rows), taken)
            break
        except ExportError:
            if not any_rows:
                raise
    return _described(model, found, taken, inputs, {"args": args, "kwargs": kwargs})


def _captured_once(
    model: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], taker: Taker, taken: _Taken
) -> object:
    options = {"taker": taker}
    run = Captured(_without_gradients_of_results(model), True, options, fullgraph=True)
    try:
        with without_gradients_of_weights(model):
            out = run(*args, **kwargs)
    except Exception as error:
        why, where = reason_of(error)
        raise ExportError(
            f"the model cannot be captured as one graph{f' ({where})' if where else ''}: {why}."
            " Change that line, or leave it out of what is exported."
        ) from error
    if len(taken.graphs) != 1:
        raise ExportError(f"expected a model that is one graph (got {len(taken.graphs)}). Pass its parts one by one.")
    return out


@contextmanager
def without_gradients_of_weights(model: Callable[..., object]) -> Iterator[None]:
    """The block computes an inference, which may take gradients by its inputs, such as the forces of an energy: that
    needs PyTorch's recording of gradients, which here leaves out the weights."""
    trained = [p for p in model.parameters() if p.requires_grad] if isinstance(model, torch.nn.Module) else []
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _without_gradients_of_results(model: Callable[..., object]) -> Callable[..., object]:
    def inference(*args: object, **kwargs: object) -> object:
        return tree_map_only(Tensor, Tensor.detach, model(*args, **kwargs))

    inference.__signature__ = inspect.signature(_called(model))  # type: ignore[attr-defined]
    return inference


def _called(model: Callable[..., object]) -> Callable[..., object]:
    return model.forward if isinstance(model, torch.nn.Module) else model


def _described(
    model: Callable[..., object],
    out: object,
    taken: _Taken,
    inputs: Sequence[tuple[str, Any]],
    called: Mapping[str, object],
) -> WholeModel:
    (captured,) = taken.graphs
    placeholders = captured.module.graph.find_nodes(op="placeholder")
    env = next((n.node.shape_env for p in placeholders for n in _symbolic(p.meta.get("val"))), None)
    of_model = _weight_names(model)
    by_input = {id(value): name for name, value in reversed(inputs)}
    found: dict[str, Argument] = {}
    weights: list[Argument] = []
    for node, value in zip(placeholders, taken.arguments, strict=True):
        if not isinstance(value, Tensor):
            continue
        sizes = tuple(_size(env, n) for n in node.meta["val"].shape)
        if id(value) in by_input:
            found[by_input[id(value)]] = Argument(node.name, by_input[id(value)], value, sizes)
            continue
        name = of_model.get(_place(value), f"captured.{len(weights)}")
        if any(not isinstance(n, int) for n in sizes):
            sizes = tuple(value.shape)
        weights.append(Argument(node.name, name, value, sizes))
    alone = _sizes_alone(env, called)
    taken_inputs = tuple(
        found.get(name)
        or Argument("", name, value, tuple(alone.get((id(value), d), n) for d, n in enumerate(value.shape)))
        for name, value in inputs
    )
    parts = (part for a in taken_inputs for size in a.sizes for part in leaves(size))
    varies = {part.name for part in parts if isinstance(part, Symbol)}
    guards: list[sympy.Basic] = []
    known_as: dict[Size, Size] = {}
    if env is not None:
        guards = list(dict.fromkeys(_condition(env, guard.expr, varies) for guard in env.guards))
        numbers = [n for p in placeholders for n in [p.meta.get("val")] if isinstance(n, torch.SymInt)]
        known_as = {read(str(n.node.expr)): read(str(_condition(env, n.node.expr, varies))) for n in numbers}
    asked = tuple(guard for guard in guards if guard is not sympy.true)
    return WholeModel(captured, taken_inputs, tuple(weights), _results(out, taken.results), asked, known_as)


def _sizes_alone(env: ShapeEnv | None, called: Mapping[str, object]) -> dict[tuple[int, int], Size]:
    """The sizes of the arguments by tensor and dim, by their sources. Of an argument whose values nothing reads,
    the captured graph takes the sizes without the tensor."""
    found: dict[tuple[int, int], Size] = {}
    if env is None:
        return found
    for symbol, sources in env.var_to_sources.items():
        for source in sources:
            if not isinstance(source, TensorPropertySource) or source.prop is not TensorProperty.SIZE:
                continue
            base = source.base.name() if callable(source.base.name) else source.base.name
            if base.startswith(("L['args']", "L['kwargs']")):  # an expression that PyTorch's own guards evaluate
                assert source.idx is not None
                found[id(eval(base, {"L": called})), source.idx] = read(str(env.replace(symbol)))
    return found


def _condition(env: ShapeEnv, condition: sympy.Basic, varies: set[str]) -> sympy.Basic:
    """A size, or a condition on sizes, in which those that do not vary are the numbers that were compiled in."""
    known = getattr(env, "backed_var_to_val", None) or env.var_to_val
    condition = env.replace(condition)
    fixed = {s: known[s] for s in condition.free_symbols if s.name not in varies and s in known}
    return condition.subs(fixed)


def _size(env: ShapeEnv | None, size: int | torch.SymInt) -> Size:
    """A size of a fake tensor, by what PyTorch knows at the end of the capture."""
    if env is None or not isinstance(size, torch.SymInt):
        return int(size)
    return read(str(env.replace(size.node.expr)))


def _symbolic(value: object) -> list[torch.SymInt]:
    if isinstance(value, torch.SymInt):
        return [value]
    sizes: Sequence[int | torch.SymInt] = value.shape if isinstance(value, Tensor) else ()
    return [n for n in sizes if isinstance(n, torch.SymInt)]


def _results(out: object, given: Sequence[object]) -> tuple[tuple[str, Tensor, int], ...]:
    found = []
    for path, value in tree_flatten_with_path(out)[0]:
        name = _words("output", path)
        at = next((i for i, one in enumerate(given) if one is value), None)
        if at is None or not isinstance(value, Tensor):
            raise ExportError(
                f"{name}: expected a tensor that the model computes (got {type(value).__name__}). Return what"
                " depends on the inputs."
            )
        found.append((name, value, at))
    return tuple(found)


def named_leaves(
    model: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[str, object]]:
    """The tensors and other leaves among arguments, by the names of the model's parameters: "x", "edges['cites']"."""
    names = list(inspect.signature(_called(model)).parameters)
    named = [(names[i] if i < len(names) else f"args[{i}]", value) for i, value in enumerate(args)]
    found = []
    for name, value in (*named, *kwargs.items()):
        found += [(_words(name, path), leaf) for path, leaf in tree_flatten_with_path(value)[0]]
    return found


def _words(name: str, path: tuple[KeyEntry, ...]) -> str:
    return name + keystr(path)


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _weight_names(model: Callable[..., object]) -> dict[object, str]:
    """The name in the state dict of each parameter and buffer, by its memory."""
    if not isinstance(model, torch.nn.Module):
        return {}
    named = [*model.named_buffers(), *model.named_parameters()]
    return {_place(tensor): name for name, tensor in named}
