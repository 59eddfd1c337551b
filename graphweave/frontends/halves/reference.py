"""`options={"verify": True}`: compares the results of a compiled program with the captured graph, run by PyTorch.

The check of each region (`execute/region_check.py`) compares kernels with the program from which they were made. This
one compares results and gradients with the graph from which the program was made, so it covers the importer, the
rewriting and the calls left to PyTorch. It compares values and the memory layout of results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten

from graphweave.core.boxed import Boxed
from graphweave.core.errors import GraphweaveError, VerifyError
from graphweave.frontends.calls.captured_graph import ancestors, copy_of, is_random
from graphweave.frontends.halves.added_rules import Suspects
from graphweave.frontends.importing.importer import Imported, attribute, location_of
from graphweave.ir.message.interp import interp
from graphweave.ir.message.layouts import Promise, lies, memory_of
from graphweave.ir.message.nodes import Input
from graphweave.ir.philox import uniform

aten = torch.ops.aten

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Tolerance relative to the largest number of a result. Every call of the graph may sum in another order."""

_TRIALS = 6
"""The graph runs this many times on inputs changed by rounding before a difference is reported."""

_EMPTY = frozenset({
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default,
    aten.new_empty_strided.default, aten.empty_permuted.default,
})  # fmt: skip
"""Calls whose numbers are undefined. They are 0 here and in programs."""


class Reference:
    """A captured graph and its import. Results from position `gradients` on belong to the backward."""

    def __init__(self, module: fx.GraphModule, imported: Imported, gradients: int | None = None) -> None:
        self._module = copy_of(module)
        self._imported = imported
        self._results = tree_flatten(self._module.graph.output_node().args[0])[0]
        self._gradients = len(self._results) if gradients is None else gradients
        self.suspects: Suspects | None = None  # the added rules that were in force

    def forward(self, given: Mapping[str, object], state: Tensor, results: Sequence[Tensor | int]) -> None:
        """Raise VerifyError unless the graph gives `results` for the placeholders' values `given` and the random
        `state`."""
        self._check(given, state, results, range(self._gradients))

    def backward(self, given: Mapping[str, object], state: Tensor, results: Sequence[object]) -> None:
        self._check(given, state, results, range(self._gradients, len(self._results)))

    def _check(self, given: Mapping[str, object], state: Tensor, results: Sequence[object], which: range) -> None:
        with _random_state(state), torch.no_grad():
            wanted = [self._results[i] for i in which]
            env = self._run(given, wanted)
            for i, node, got in zip(which, wanted, results, strict=False):
                want = env.get(node) if isinstance(node, fx.Node) else node
                if _differs(got, want, 0.0) and _differs(got, want, self._spread(given, state, node, want)):
                    raise VerifyError(self._report(given, state, i, got, want))
                self._check_memory(i, got, want)
            if which.start == 0:
                self._check_aliases(given, results, [env.get(n) if isinstance(n, fx.Node) else n for n in wanted])

    # -------------------------------------------------------- the graph run by PyTorch

    def _run(self, given: Mapping[str, object], wanted: Sequence[object]) -> dict[fx.Node, Any]:
        """The values of all nodes that `wanted` need, as eager mode computes them."""
        # Random calls always run, since the numbers of later ones depend on them.
        unknown = [n for n in self._module.graph.find_nodes(op="placeholder") if n.name not in given]
        draws = [n for n in self._module.graph.nodes if is_random(n) and ancestors([n]).isdisjoint(unknown)]
        needed = ancestors([*(n for n in wanted if isinstance(n, fx.Node)), *draws])
        env: dict[fx.Node, Any] = {}
        for node in self._module.graph.nodes:
            if node not in needed:
                continue
            if node.op == "placeholder":
                env[node] = given[node.name]
            elif node.op == "get_attr":
                env[node] = attribute(self._module, str(node.target))
            elif node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = self._call(node, args, kwargs)
        return env

    def _call(self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | tuple[Tensor, ...] | int:
        if node.name in self._imported.seeded:
            seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device=args[0].device)
            position = torch.arange(args[0].numel(), device=args[0].device).reshape(args[0].shape)
            dtype = kwargs.get("dtype") or args[0].dtype
            drawn = dtype if dtype == torch.float64 else torch.float32
            return uniform(seed, position, drawn).to(dtype)
        assert callable(node.target)
        out = node.target(*args, **kwargs)
        return out.zero_() if node.target in _EMPTY else out

    def _spread(self, given: Mapping[str, object], state: Tensor, node: object, want: object) -> Tensor | float:
        """How much each number of a result may change with the rounding of inputs. It may be much: a comparison that is
        nearly a tie may go the other way, and a gradient then flows elsewhere."""
        if not isinstance(node, fx.Node) or not isinstance(want, Tensor) or not want.is_floating_point():
            return 0.0
        noise = torch.Generator().manual_seed(0)
        spread = torch.zeros_like(want)
        for _ in range(_TRIALS):
            torch.set_rng_state(state)
            moved = {name: rounded(v, noise) for name, v in given.items()}
            spread = torch.maximum(spread, (self._run(moved, [node])[node] - want).abs())
        return 4 * spread

    # -------------------------------------------------------- what is wrong, and where

    def _report(self, given: Mapping[str, object], state: Tensor, i: int, got: object, want: object) -> str:
        line = self._first_wrong(given, state) or self._line(i)
        said = f"{self._name(i)} differs from eager mode's: {_difference(got, want)}. It comes from {line}."
        firing = None if self.suspects is None else self.suspects.culprit({**given, **self._constants()}, _changed)
        return said if firing is None else f"{said} {firing.said()}"

    def _line(self, i: int) -> str:
        return str(location_of(self._results[i])) or "an unknown line"

    def _name(self, i: int) -> str:
        return f"result {i}" if i < self._gradients else f"the gradient of input {i - self._gradients}"

    def _first_wrong(self, given: Mapping[str, object], state: Tensor) -> str:
        """The user's line of the first call whose value differs in the imported program; "" if all agree."""
        program, origins = self._imported.program, self._imported.origins
        nodes = [n for n in self._module.graph.nodes if n.name in origins]
        outputs = tuple(origins[n.name] for n in nodes)
        try:
            torch.set_rng_state(state)
            values = interp(dataclasses.replace(program, outputs=outputs), {**given, **self._constants()})
        except (GraphweaveError, RuntimeError):
            return ""
        torch.set_rng_state(state)
        env = self._run(given, nodes)
        for node, value in zip(nodes, values, strict=True):
            if _comparable(node, env[node]) and _differs(value, env[node], 0.0):
                return str(location_of(node))
        return ""

    def _constants(self) -> dict[str, object]:
        """The values of inputs that are part of the graph."""
        named = ((self._imported.program.nodes[r], value) for r, value in self._imported.attributes.items())
        return {n.name: value for n, value in named if isinstance(n, Input)}

    def _check_memory(self, i: int, got: object, want: Any) -> None:
        promise = self._imported.promises[i] if i < len(self._imported.promises) else None
        if not isinstance(got, Tensor) or promise is None or promise.order is None or not got.numel():
            return
        loose = promise.loose and got.is_contiguous()
        if not loose and lies(want, promise.order) and not lies(got, promise.order):
            raise VerifyError(
                f"{self._name(i)} lies in memory in other strides than eager mode's: expected {want.stride()} for "
                f"sizes {tuple(want.shape)}, got {got.stride()}. It comes from {self._line(i)}. Please report it."
            )

    def _check_aliases(self, given: Mapping[str, object], got: Sequence[object], want: Sequence[object]) -> None:
        """Raise VerifyError if a result shares memory with an input or another result, and eager mode's does not."""
        inputs = list(given.values())
        for i, (mine, theirs) in enumerate(zip(got, want, strict=False)):
            if not isinstance(mine, Tensor) or not isinstance(self._promise(i), Promise):
                continue
            others = zip([*inputs, *got[:i]], [*inputs, *want[:i]], strict=False)
            for other, should in others:
                if memory_of([mine]) & memory_of([other]) and not memory_of([theirs]) & memory_of([should]):
                    raise VerifyError(
                        f"{self._name(i)} shares its memory with an input or another result, and eager mode's does "
                        f"not. It comes from {self._line(i)}. Please report it."
                    )

    def _promise(self, i: int) -> Promise | None:
        return self._imported.promises[i] if i < len(self._imported.promises) else None


def checked_inference(reference: Reference, run: Boxed, names: Sequence[str]) -> Boxed:
    """`run`, with its results compared at each call. The arguments are the values of the placeholders `names`."""

    def checked(args: list[Tensor | int]) -> list[object]:
        given, state = dict(zip(names, args, strict=True)), torch.get_rng_state()
        results = run(list(args))
        args.clear()
        reference.forward(given, state, results)
        return results

    return checked


def checked_forward(reference: Reference, run: Boxed, names: Sequence[str]) -> Boxed:
    """Like `checked_inference`, but after the results it returns copies of the tensors among the arguments, and the
    random state."""
    plain = checked_inference(reference, run, names)

    def checked(args: list[object]) -> list[Tensor | int]:
        state = torch.get_rng_state()
        copies = [a.detach().clone() for a in args if isinstance(a, Tensor)]
        return [*plain(args), *copies, state]

    return checked


def checked_backward(reference: Reference, run: Boxed, own: Sequence[str | None], names: Sequence[str]) -> Boxed:
    """`run`, with its results compared at each call.

    The backward's own arguments come first; `own` names the tangents among them and is None for others. The forward's
    arguments, called `names`, and its random state follow.
    """

    def checked(args: list[Any]) -> list[object]:
        *values, state = args
        args.clear()
        given = {name: v for name, v in zip([*own, *names], values, strict=True) if name is not None}
        results = run(values[: len(own)])
        reference.backward(given, state, results)
        return results

    return checked


@contextmanager
def _random_state(state: Tensor) -> Iterator[None]:
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(now)


def rounded(value: object, noise: torch.Generator) -> Any:
    """`value` with the last few bits of every number changed."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    bits = torch.randn(value.shape, generator=noise, dtype=value.dtype).to(value.device)
    return value * (1 + 4 * torch.finfo(value.dtype).eps * bits)


def _differs(got: object, want: object, spread: object) -> bool:
    if not isinstance(want, Tensor):
        return bool(got != want)
    if not isinstance(got, Tensor) or got.shape != want.shape or got.dtype != want.dtype:
        return True
    if not want.is_floating_point():
        return not torch.equal(got, want)
    known = want.isfinite()  # rewriting may give inf or NaN to other elements
    off = torch.where(known, (got - want).abs(), 0)
    scale = float(torch.where(known, want, 0).abs().max()) if want.numel() else 0.0
    allowed = _TOLERANCE.get(want.dtype, 0.0) * max(scale, 1.0) + torch.as_tensor(spread).nan_to_num()
    return not bool((off <= allowed).all())


def _changed(after: Tensor, before: Tensor) -> bool:
    return _differs(after, before, 0.0)


def _difference(got: object, want: object) -> str:
    if not isinstance(got, Tensor) or not isinstance(want, Tensor):
        return f"expected {want}, got {got}"
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"expected {want.dtype} {tuple(want.shape)}, got {got.dtype} {tuple(got.shape)}"
    if not want.is_floating_point():
        return f"{int((got != want).sum())} of {want.numel()} numbers are others"
    worst = int((got - want).abs().nan_to_num(posinf=torch.inf, nan=torch.inf).argmax())
    return f"expected {want.flatten()[worst]:.6g}, got {got.flatten()[worst]:.6g}, where they differ most"


def _comparable(node: fx.Node, value: object) -> bool:
    return isinstance(value, Tensor | int) and node.target not in _EMPTY
