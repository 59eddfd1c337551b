"""A process of a benchmark: serves one peer of a declared case, or answers one call of a function.

    python -m bench.worker case MODULE CASE PEER [OPTIONS OF THE BENCHMARK]
    python -m bench.worker call MODULE FUNCTION JSON ANSWER

Questions to a peer: "first" prepares it and makes the first call (seconds); "result" writes what a call computes, as
`out`, `out.1`, ..., and gradients by name; "turn" times steps; "notes" asks the case for other numbers. A call writes
what `FUNCTION(**JSON)` returns to the file ANSWER.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.case import Bench, Case, Peers, options_of, result_of, sizes_of
from bench.check import Result
from bench.common import seconds_of
from bench.turns import serve, steps_timer


class Asked:
    """One peer of a case, prepared when it is first asked."""

    def __init__(self, case: Case, peer: str, peers: Peers) -> None:
        self._case, self._peer, self._make = case, peer, peers[peer]

    def first(self) -> float:
        self._step = self._make()
        self._turn = steps_timer(self._step)
        return seconds_of(self._step)

    def value(self) -> Result:
        return result_of(self._step())

    def result(self, path: str) -> None:
        write_result(path, self.value())

    def turn(self, steps: int) -> float:
        return self._turn(steps)

    def notes(self) -> dict[str, Any]:
        return dict(self._case.notes(self._peer, self._step)) if self._case.notes is not None else {}

    @property
    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"first": self.first, "result": self.result, "turn": self.turn, "notes": self.notes}


def write_result(path: str, result: Result) -> None:
    outputs = {f"out.{i}" if i else "out": value for i, value in enumerate(result.outputs)}
    write_arrays(path, outputs | {name: grad for name, grad in result.grads.items() if grad is not None})


def write_arrays(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    arrays: dict[str, Any] = {name: value.detach().numpy() for name, value in tensors.items()}
    np.savez(path, **arrays)


def read_result(path: Path) -> Result:
    """The arrays that a process wrote: outputs are named `out`, `out.1`, ..., all others are gradients."""
    with np.load(path) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    outputs = [tensors.pop(name) for name in list(tensors) if name == "out" or name.startswith("out.")]
    return Result(tuple(outputs), dict(tensors))


def serve_case(module: str, name: str, peer: str, argv: Sequence[str]) -> None:
    bench: Bench = import_module(module).BENCH
    options = options_of(bench, argv)
    torch.set_num_threads(options.threads)
    case = next(case for case in bench.cases(options) if case.name == name)
    serve(Asked(case, peer, case.build(**sizes_of(case, options))).handlers)


def main(argv: Sequence[str]) -> int:
    warnings.simplefilter("ignore")
    what, module, name, given, *rest = argv
    if what == "case":
        serve_case(module, name, given, rest)
    else:
        Path(rest[0]).write_text(json.dumps(getattr(import_module(module), name)(**json.loads(given))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
