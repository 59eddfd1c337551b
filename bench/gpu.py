"""GNN layers on one NVIDIA GPU: graphweave against PyG eager, torch.compile and torch.sparse, in one command.

    python -m bench.gpu [--minutes 7.5] [--dtype float32|bfloat16|float16] [--graphs arxiv reddit ppi cora points aifb
                        bgs biokg] [--models gcn sage gat1 gat8 gatv2 monet edgeconv rgcn rgat hgt]
                        [--systems eager inductor sparse graphweave] [--repeats 12] [--system-seconds 100] [--out FILE]
    python -m bench.gpu --device cpu --small [...]        # a rehearsal: small graphs, the host's clock, no memory

Forward pass (no gradients) and training step (forward, cross entropy of random labels over every node, backward; no
optimiser) on seeded synthetic graphs of published sizes, 64 random features. gcn to monet have 2 layers, 64 wide, GAT
1 x 64 or 8 x 8 heads, GATv2 4 x 16; edgeconv has 4 layers, 64-64-128-256, on k-NN graphs of 16 x 1,024 points; rgcn,
rgat and hgt are one layer, 64 -> 64, as in bench.relational. R-MAT graphs have the sizes of ogbn-arxiv, Reddit (10
million edges), PPI and Cora; aifb, bgs and biokg those of Hector's Table 3.

Systems: PyG's layers in eager mode; the same under torch.compile's default backend with static sizes, the loss in the
same function; torch.sparse for models that it can express (GCN, SAGE), with the adjacency normalised and transposed
before (PyG's GCN normalises in each step); graphweave. For rgcn, rgat and hgt "eager" is every form that PyG has, of
which the fastest counts, and inductor and graphweave compile the same text (bench/relational_models.py).

Correctness is checked first: outputs, loss and gradients of every system are compared with PyG's eager ones in float64
(for typed layers with a float64 reference, relation by relation, which PyG's own layers must match, too). A system is
wrong if its error is above 1e-4 in float32 and above 4 times eager's own. A wrong system is timed and its status says
so, but it meets no target and counts for no ratio. So is graphweave if it fell back to eager mode ("ran eagerly").

Times are CUDA events around turns of about 20 ms; systems take turns; the first call, with compilation, is reported
separately. Memory is torch.cuda.max_memory_allocated of a warm step, as if the system were alone with its inputs.
Bandwidth is bytes counted from each fused kernel's loop IR (`ir/loop/traffic.py`; a row gathered for every edge, or
every tensor once) over the kernel's time, as a fraction of the bandwidth of a copy measured in the same process.

One process has the device. If a system fails (out of memory, compilation), its traceback is recorded and the rest goes
on. If it ends the process, loses the device, or takes longer than --system-seconds for an answer, another process
measures the case again without it. Cases are ordered by importance; a case that would not fit into the rest of
--minutes is recorded as skipped. The JSON is written after each answer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.common import machine
from bench.gpu_cases import GRAPHS, MODELS, ORDER, SYSTEMS
from bench.gpu_measure import nvidia_smi
from bench.gpu_report import tables
from bench.gpu_run import Budget, Process, Run, chosen
from bench.gpu_worker import DTYPES
from bench.options import Among, parser_of
from bench.turns import ROOT

NO_GPU = (
    "bench.gpu: expected a CUDA device (torch.cuda.is_available() is False). "
    "For a rehearsal without one: python -m bench.gpu --device cpu --small"
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, {
        "device": Among(("cuda", "cpu"), "cuda"), "small": False, "minutes": 7.5, "dtype": Among(DTYPES, "float32"),
        "graphs": Among(GRAPHS), "models": Among(MODELS), "systems": Among(SYSTEMS), "repeats": 12,
        "system_seconds": 100.0, "out": Path,
    })  # fmt: skip
    options = parser.parse_args(argv)
    if options.out is None and options.device == "cuda":
        options.out = ROOT / "bench" / "results"
    if options.out is not None and options.out.is_dir():
        options.out = options.out / "gpu.json"
    return options


def new_record(options: argparse.Namespace) -> dict[str, Any]:
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    smi = nvidia_smi() if options.device == "cuda" else None
    return {
        "benchmark": "gpu", "machine": machine(), "settings": settings, "nvidia_smi": smi, "status": "running",
        "cases": {}, "targets": [],
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    began = time.monotonic()
    options = parse(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    record = new_record(options)
    budget = Budget(60 * options.minutes, began=began)
    with tempfile.TemporaryDirectory() as folder:
        given = ["--device", "cuda:0" if options.device == "cuda" else "cpu", "--dtype", options.dtype]
        given += ["--folder", folder]
        given += ["--small"] * options.small
        run = Run(
            lambda: Process(given), budget, record, options.out, repeats=options.repeats,
            system_seconds=options.system_seconds, say=lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
        try:
            run.go(chosen(ORDER, options.models, options.graphs, options.systems))
            record["status"] = "ok"
        except KeyboardInterrupt:
            record["status"] = "interrupted"
        run.write()
    tables(record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
