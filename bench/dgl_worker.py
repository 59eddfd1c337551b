"""A peer of a declared case in DGL's environment: `python -m bench.dgl_worker MODULE PEER ARRAYS SIZES THREADS NOTES`.

MODULE.step_of(peer, arrays, **sizes) prepares the step, from the arrays of the case's inputs and from those of its
sizes that are text or numbers. MODULE.NOTES(step), a function of the name that the case's own has, gives other numbers;
without it there are none. The questions are those of `bench.steps.Asked`. PyTorch computes losses eagerly, because its
compiler cannot capture DGL 2.1's graphs.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib import import_module

import torch

from bench.steps import Asked, read_arrays
from bench.turns import serve


def main(module: str, peer: str, arrays: str, sizes: str, threads: str, notes: str) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(threads))
    os.environ["DGLBACKEND"] = "pytorch"
    made = import_module(module)
    given, named = read_arrays(arrays), json.loads(sizes)
    serve(Asked(lambda: made.step_of(peer, given, **named), getattr(made, notes, None) if notes else None).handlers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
