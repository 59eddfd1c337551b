"""Judges programs over the parts of a graph: two processes run them by `shard`, eager mode runs them on the whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import ShardError
from graphweave.distributed.full_graph import shard
from tests.fuzz.case import Call, Case
from tests.fuzz.divided import (
    EDGES,
    Layout,
    Share,
    Whole,
    arguments,
    functional,
    joined,
    layouts,
    over_parts,
    results_of,
    rows_of,
    shares_of,
    sorted_rows,
    whole_of,
)
from tests.fuzz.judge import UNSTABLE, Finding, Unfair, _floor, _place, _short, _unequal, load
from tests.rank_pool import RankError, RankPool

RANK = 20.0
"""Seconds that a rank of the fuzzer waits for the others on a quiet machine."""
EVALUATIONS = 3
"""Calls of one function with the same tensors: features that stay are kept from the second on."""


@dataclass(slots=True)
class Side:
    """What one rank, or eager mode on the whole graph, gives: results and gradients of each evaluation."""

    outputs: list[list[Any]] = field(default_factory=list)
    grads: list[list[Tensor | None]] = field(default_factory=list)
    error: str = ""
    """The error's class and text, and its innermost place in graphweave."""
    where: str = ""
    refused: bool = False


def evaluated(
    case: Case, function: Callable[..., Any], given: list[Any], lie: list[Layout], whole: Whole, share: Share | None
) -> Side:
    """Calls the function with the same tensors, whose numbers are changed in place before the last call."""
    out = Side()
    leaves = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
    context = {"train": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[case.mode]
    try:
        for turn in range(EVALUATIONS):
            if turn == EVALUATIONS - 1:
                _change(given)
            with context():
                results = results_of(function(*given))
            loss = functional(results, lie, whole.counts, share) if case.mode == "train" else None
            grads: list[Tensor | None] = []
            if leaves and case.mode == "train":
                grads = [None] * len(leaves)
                if loss is not None:
                    grads = list(torch.autograd.grad(loss, leaves, allow_unused=True))
            out.outputs.append([r.detach().clone() if isinstance(r, Tensor) else r for r in results])
            out.grads.append(grads)
    except Exception as error:
        out.error, out.where, out.refused = _short(error), _place(error), isinstance(error, ShardError)
    return out


def _change(given: list[Any]) -> None:
    for value in given:
        if isinstance(value, Tensor) and value.is_floating_point():
            with torch.no_grad():
                value.mul_(0.75)


def on_rank(rank: int, size: int, case: Case, lie: list[Layout], as_module: bool) -> list[Side]:
    """What one rank gives for each call of the case. It stops at the first that fails."""
    torch._dynamo.reset()
    sides = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in case.calls:
            whole = whole_of(case, call, size)
            share = shares_of(whole, size)[rank]
            given = arguments(whole, share)
            function = load(case.source)
            try:
                sharded = shard(_Module(function, given) if as_module else function, share.part)
            except ShardError as error:
                return [*sides, Side(error=_short(error), where=_place(error), refused=True)]
            if as_module:
                sharded = _with_parameters(sharded)
            sides.append(evaluated(case, sharded, given, lie, whole, share))
            if sides[-1].error:
                break
    return sides


class _Module(torch.nn.Module):
    """The function as a module that has its parameters."""

    def __init__(self, function: Callable[..., Any], given: list[Any]) -> None:
        super().__init__()
        self.function = function
        self.names = [f"p{i}" if isinstance(v, torch.nn.Parameter) else "" for i, v in enumerate(given)]
        for name, value in zip(self.names, given, strict=True):
            if name:
                self.register_parameter(name, value)

    def forward(self, *given: Any) -> Any:
        rest = iter(given)
        return self.function(*(getattr(self, name) if name else next(rest) for name in self.names))


def _with_parameters(module: Callable[..., Any]) -> Callable[..., Any]:
    """The module as a function of all arguments; it leaves out those that are parameters."""
    return lambda *given: module(*(v for v in given if not isinstance(v, torch.nn.Parameter)))


class RankJudge:
    """`judge(case)` gives the first fault of the case over the ranks of a pool, None for a case without. Raises Unfair
    if eager mode gives nothing to compare with."""

    def __init__(self, size: int, pool: RankPool | None = None) -> None:
        """The judge takes processes of its own, in each of which sets have another order, if there is no `pool`."""
        self.size = size
        self.pool = RankPool(size, RANK, retry=False, apart=True) if pool is None else pool
        self.lost = 0
        """Programs during which a message was lost that came at the second attempt, in new processes."""

    def close(self) -> None:
        self.pool.close()

    def __call__(self, case: Case) -> Finding | None:
        case = replace(case, source=over_parts(case.source), calls=tuple(replace(c, edit="") for c in case.calls))
        if not any(name in EDGES for name in _parameters(case)):
            raise Unfair("the program reads no edges")
        function = load(case.source)
        try:
            lie = layouts(case, function, self.size)
        except Exception as error:
            raise Unfair(f"eager raises {_short(error)}") from error
        wanted, calls = [], []
        for call in case.calls:
            whole = whole_of(case, call, self.size)
            side = evaluated(case, function, list(whole.values.values()), lie, whole, None)
            if not side.error:
                wanted.append(side)
                calls.append(call)
        if not calls:
            raise Unfair("eager raises at all sizes")
        case = replace(case, calls=tuple(calls))
        found = self._compared(case, lie, wanted)
        if found is not None and found.kind.startswith("wrong") and _unstable(case, lie, wanted, self.size):
            raise Unfair("results depend on rounding")
        return found

    def _compared(self, case: Case, lie: list[Layout], wanted: list[Side]) -> Finding | None:
        as_module = bool(case.calls[0].seed % 2)
        sides = self._run(case, lie, as_module)
        if isinstance(sides, Finding):
            return sides
        for position, call in enumerate(case.calls):
            given = [of_rank[position] for of_rank in sides if position < len(of_rank)]
            found = _fault(case, call, lie, wanted[position], given, self.size)
            if found is not None:
                return replace(found, what=f"call {position}: {found.what}")
        return None

    def _run(self, case: Case, lie: list[Layout], as_module: bool) -> list[list[Side]] | Finding:
        """What the ranks give. What looks like a lost message is tried once more in new processes."""
        for attempt in range(2):
            try:
                sides = self.pool.run(on_rank, self.size, case, lie, as_module)
            except RankError as error:
                why = str(error).strip().splitlines()[-1]
                last = Finding("hang" if "Timed out" in why else "dead", why)
                continue
            if _together(sides):
                self.lost += attempt
                return sides
            self.pool.restart()
            firsts = [next((s for s in of_rank if s.error), None) for of_rank in sides]
            shown = [s for s in firsts if s and "imed out" not in s.error and "onnection" not in s.error]
            last = Finding("hang", "ranks wait for one another")
            if shown:
                whose = f"{len(shown)} of {self.size} ranks raise"
                kind = "hang" if any(s is None or s not in shown for s in firsts) else "crash"
                last = Finding(kind, f"{whose} {shown[0].error}", shown[0].where)
        return last


def _together(sides: list[list[Side]]) -> bool:
    """Whether the ranks stopped at the same call: none failed there, or all did for reasons of their own."""
    failed = [[bool(s.error) for s in of_rank] for of_rank in sides]
    waited = any("imed out" in s.error or "onnection" in s.error for of_rank in sides for s in of_rank)
    return not waited and all(each == failed[0] for each in failed)


def _parameters(case: Case) -> tuple[str, ...]:
    return tuple(case.source[len("def f(") : case.source.index(")")].split(", "))


def _fault(case: Case, call: Call, lie: list[Layout], want: Side, sides: list[Side], size: int) -> Finding | None:
    if len(sides) < size:
        return None
    failed = sorted((s for s in sides if s.error), key=lambda s: s.refused)
    if failed:
        return Finding("refused" if failed[0].refused else "crash", f"raises {failed[0].error}", failed[0].where)
    whole = whole_of(case, call, size)
    shares = shares_of(whole, size)
    floor = _floor(case)
    leaves = [n for n, v in whole.values.items() if isinstance(v, Tensor) and v.requires_grad]
    for turn in range(EVALUATIONS):
        for i, (expected, layout) in enumerate(zip(want.outputs[turn], lie, strict=True)):
            why = _unlike(expected, [s.outputs[turn][i] for s in sides], layout, shares, whole, floor)
            if why:
                return Finding("wrong output", f"output {i} of evaluation {turn}: {why}")
        finite = all(not isinstance(v, Tensor) or v.isfinite().all() for v in want.outputs[turn])
        for i, expected in enumerate(want.grads[turn] if finite else []):
            layout = Layout(rows_of(leaves[i]))
            why = _unlike(expected, [s.grads[turn][i] for s in sides], layout, shares, whole, floor)
            if why:
                return Finding("wrong gradient", f"gradient of {leaves[i]} of evaluation {turn}: {why}")
    return None


def _unlike(want: Any, parts: list[Any], layout: Layout, shares: list[Share], whole: Whole, floor: float) -> str | None:
    """How the ranks' results differ from the whole graph's, None if they do not."""
    if want is None or any(p is None for p in parts):
        nonzero = [p for p in (want, *parts) if p is not None and p.any()]
        return f"expected {want}, got {parts}"[:200] if nonzero else None
    if not isinstance(want, Tensor) or want.dtype in (torch.int64, torch.int32):
        return None  # numbers of rows, or how many there are, which are each rank's own
    if not layout.rows:
        return next((f"rank {r}: {why}" for r, p in enumerate(parts) if (why := _unequal(want, p, floor))), None)
    try:
        got = joined(parts, layout, shares, whole.counts)
    except RuntimeError as error:
        return f"results of shapes {[list(p.shape) for p in parts]} cannot be joined: {error}"
    if layout.rows == "some" and got.shape == want.shape:
        return _unequal(sorted_rows(want, layout.dim), sorted_rows(got, layout.dim), floor)
    return _unequal(want, got, floor)


def _unstable(case: Case, lie: list[Layout], wanted: list[Side], size: int) -> bool:
    """Whether noise of the size of rounding changes eager mode's results."""
    eager, floor = load(case.source), _floor(case)

    def disturbed(*given: Any) -> Any:
        return eager(*(_with_noise(v) if isinstance(v, Tensor) and v.is_floating_point() else v for v in given))

    for call, want in zip(case.calls, wanted, strict=True):
        whole = whole_of(case, call, size)
        noisy = evaluated(case, disturbed, list(whole.values.values()), lie, whole, None)
        if noisy.error:
            return True
        for one, other in zip((*want.outputs, *want.grads), (*noisy.outputs, *noisy.grads), strict=True):
            if any(_unequal(a, b, floor) for a, b in zip(one, other, strict=True)):
                return True
    return False


def _with_noise(value: Tensor) -> Tensor:
    return value * (1 + UNSTABLE * torch.rand(value.shape, dtype=torch.float64)).to(value.dtype)
