"""A process of a benchmark: serves one peer of a declared case, or answers one call of a function.

    python -m bench.worker case MODULE CASE PEER [OPTIONS OF THE BENCHMARK]
    python -m bench.worker call MODULE FUNCTION JSON ANSWER

The questions to a peer are those of `bench.steps.Asked`. A call writes what `FUNCTION(**JSON)` returns to the file
ANSWER.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from bench.case import Bench, Case, Peers, options_of, sizes_of
from bench.forget import forget_graphs
from bench.steps import Asked
from bench.turns import serve


def asked(case: Case, peer: str, peers: Peers) -> Asked:
    return Asked(peers[peer], partial(case.notes, peer) if case.notes is not None else None, forget_graphs)


def serve_case(module: str, name: str, peer: str, argv: Sequence[str]) -> None:
    bench: Bench = import_module(module).BENCH
    options = options_of(bench, argv)
    torch.set_num_threads(options.threads)
    case = next(case for case in bench.cases(options) if isinstance(case, Case) and case.name == name)
    serve(asked(case, peer, case.build(**sizes_of(case, options))).handlers)


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
