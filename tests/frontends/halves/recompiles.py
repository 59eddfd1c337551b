"""How often programs compile when the sizes of their arguments change, and what made them compile again.

    python -m tests.frontends.halves.recompiles [--only NAME ...] [--door compile|backend] [--shared] [--out FILE]

Each program is called with gradients at every set of sizes: usual, odd and not contiguous, equal by chance, no edges,
one of each. The reason of a recompilation is the guard that failed, as PyTorch names it; reasons are put into classes.
`--shared` compiles all programs without a reset between them, as an application does. Results are compared with eager
mode; the exit code is 1 if one is wrong.
"""

from __future__ import annotations

import copy
import logging
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

import graphweave
from bench.check import step, worst_error
from bench.common import ratio_table, save
from bench.options import Among, options_from
from tests.frontends.halves.recompile_programs import CASES, SIZES

TOLERANCE = 5e-4
"""Relative error that is accepted in float32, for programs of several layers and divisions by small degrees, and for
gradients that cancel, such as that of a bias under a softmax, which are nothing but the rounding of their terms."""


@dataclass(frozen=True, slots=True)
class Count:
    """Compilations of one program over all sets of sizes. `reasons` has (class, failed guard) of each recompilation."""

    program: str
    compilations: int
    breaks: int
    eager: int
    reasons: tuple[tuple[str, str], ...]
    wrong: str
    seconds: float


class _Reasons(logging.Handler):
    """Collects from PyTorch's log of recompilations, for each, the failed guard of the latest compilation."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        frame = re.match(r"Recompiling function (\S+)", text)
        failed = re.findall(r"^\s*- (\d+/\d+: .*)$", text, re.MULTILINE)
        self.said.append(f"{frame[1] if frame else '?'}: {failed[0] if failed else text}")


@contextmanager
def recompile_reasons() -> Iterator[list[str]]:
    """The reasons of all recompilations inside the block."""
    log = logging.getLogger("torch._dynamo.guards.__recompiles")
    torch._logging.set_logs(recompiles=True)
    handler = _Reasons()
    kept, log.handlers, log.propagate = log.handlers, [handler], False
    try:
        yield handler.said
    finally:
        log.handlers, log.propagate = kept, True
        torch._logging.set_logs()


_CLASSES = (
    ("the limit of recompilations", r"recompile_limit"),
    ("strides", r"stride|contiguous"),
    ("a choice made by cost", r"\d{6,}"),
    ("equal sizes", r"(size\(\)\[\d\]|shape\[\d\]).*==.*(size\(\)\[\d\]|shape\[\d\])"),
    ("no rows, or few", r"size.*(==|!=|<=|<|>|>=) ?[0-2]\b|\b[0-2] ?(<=|<|==|!=) .*size|expected [0-2]\b|Mod|//"),
    ("a fixed size", r"size mismatch|size\(\)\[\d\] == \d+|expected"),
    ("gradients", r"requires_grad|grad_mode|GRAD"),
    ("floats", r"float"),
)


def class_of(reason: str) -> str:
    return next((name for name, pattern in _CLASSES if re.search(pattern, reason)), "other")


def doors(name: str) -> Callable[[Any], Callable[..., Any]]:
    if name == "compile":
        return graphweave.compile
    return lambda f: torch.compile(f, backend="graphweave", dynamic=True)


def count(name: str, door: Callable[[Any], Callable[..., Any]]) -> Count:
    """Compiles one program and calls it at every set of sizes."""
    case = CASES[name]
    torch.manual_seed(0)
    target = case.make()
    eager = copy.deepcopy(target)  # copied before the first call, in which lazy modules create parameters
    compiled = door(target)
    graphweave.reset_counters()
    wrong, start = "", time.perf_counter()
    module, reference = (f if isinstance(f, nn.Module) else None for f in (target, eager))
    with recompile_reasons() as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sizes in enumerate(SIZES):
            torch.manual_seed(i)
            args = case.arguments(sizes)
            try:
                want = step(eager, args, module=reference, counter_based=True)
            except Exception:  # eager mode does not support these sizes
                continue
            try:
                error, where = worst_error(step(compiled, args, module=module), want)
                wrong = wrong or (f"{sizes.name}: {where} {error:.2g}" if error > TOLERANCE else "")
            except Exception as problem:  # the table reports every crash, whatever its kind
                line = (str(problem).strip().splitlines() or [""])[0]
                wrong = wrong or f"{sizes.name}: {type(problem).__name__}: {line}"[:200]
    counts = graphweave.counters()
    reasons = tuple((class_of(reason), reason) for reason in said)
    return Count(
        name, counts["compilations"], counts["graph_breaks"], counts["eager_fallbacks"], reasons, wrong,
        time.perf_counter() - start,
    )  # fmt: skip


def report(found: Sequence[Count]) -> None:
    rows = [
        [c.program, str(c.compilations), str(c.breaks), str(c.eager), f"{c.seconds:.1f}",
         ", ".join(f"{n} {what}" for what, n in Counter(k for k, _ in c.reasons).most_common()), c.wrong]
        for c in found
    ]  # fmt: skip
    total = [
        str(sum(c.compilations for c in found)),
        str(sum(c.breaks for c in found)),
        str(sum(c.eager for c in found)),
    ]
    headings = ["program", "compilations", "breaks", "eager", "seconds", "compiled again for", "wrong"]
    ratio_table("Compilations", headings, [*rows, [f"all {len(found)}", *total, "", "", ""]])
    classes = Counter(what for c in found for what, _ in c.reasons)
    ratio_table("Reasons", ["reason", "times"], [[what, str(n)] for what, n in classes.most_common()])


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(
        argv, __doc__, only=Among(CASES), door=Among(("compile", "backend"), "compile"), shared=False
    )
    torch.set_num_threads(options.threads)
    found: list[Count] = []
    setting = {"door": options.door, "shared": options.shared, "sizes": [s.name for s in SIZES]}
    for name in options.only:
        if not options.shared:
            torch._dynamo.reset()
        found.append(count(name, doors(options.door)))
        save(options.out, {"benchmark": "recompiles", **setting, "programs": [asdict(c) for c in found]})
    report(found)
    return int(any(c.wrong for c in found))


if __name__ == "__main__":
    raise SystemExit(main())
