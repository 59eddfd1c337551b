"""graphweave against DGL 2.1: training steps of whole models, and single sparse kernels, in turn.

    python -m bench.peers [--cases gat edgeconv monet gcn sage gin gatv2 spmm spmm-weighted sddmm] [--graph rmat]
                          [--repeats 20] [--threads 2] [--no-compile-loss] [--dgl-index-bits 64] [--out FILE]

DGL has a virtual environment of its own (`make bench-peers` makes .venv-dgl: torch 2.2.1, DGL 2.1.0), so both sides are
processes that stay alive and take turns, step by step, with equal thread counts (bench/turns.py); they never run at
once. Both get the same inputs and initial weights, and both are compared with eager PyG first (loss and gradients; in
float64 where float32 is in doubt): a wrong system is not timed.

DGL runs its own layers and operators with its best settings: every format is built before, self-loops and degrees are
prepared, there are no checks for nodes without edges, and ids have 64 bits, which is its default and slightly faster on
a CPU (bench/dgl_models.py says how definitions are made equal). dgl-thp is DGL with PyTorch's switch for huge pages,
reported separately. graphweave's formats are warm as well, and its models are PyG's with default arguments. Its loss is
compiled with the model unless --no-compile-loss; DGL's is eager PyTorch. edgeconv runs on the k-NN graphs of points,
all else on --graph.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import kernel_worker, train_worker
from bench.common import arguments, available_memory, ratio_table, save
from bench.graphs import GRAPHS, POINT_SETS, data_dir, missing
from bench.judge import Judge, result_of
from bench.kernel_worker import KERNELS
from bench.turns import ROOT, Player, PlayerLost, take_turns
from bench.workloads import MODELS

TARGETS = {"gat": 6.0, "edgeconv": 4.0, "monet": 3.0, "spmm": 5.0, "sddmm": 12.0}
"""How many times as fast as DGL graphweave should be, by case."""

DGL: dict[str, dict[str, str]] = {"dgl": {}, "dgl-thp": {train_worker.THP: "1"}}
"""DGL's processes, and variables that are added to their environments."""

TRAINED = ("gat", "edgeconv", "monet", "gcn", "sage", "gin", "gatv2")
"""Models that DGL has layers for."""

CASES = (*TRAINED, *KERNELS)


class Case:
    """One model or kernel on one graph, by both systems."""

    def __init__(self, options: argparse.Namespace, name: str, graph: str) -> None:
        self.options, self.name, self.graph = options, name, graph

    def measure(self) -> dict[str, Any]:
        players: dict[str, Player] = {}
        systems: dict[str, dict[str, Any]] = {}
        judge = Judge(lambda wide: self._own("eager", wide=wide))
        try:
            with tempfile.TemporaryDirectory() as folder:
                case = Path(folder) / "case.npz"
                for system in ("graphweave", *DGL):
                    try:
                        player = self._dgl(case, DGL[system]) if system in DGL else self._own(system)
                        players[system] = player
                        if system == "graphweave":
                            player.ask("save_case", path=str(case))
                        systems[system] = {**player.ask("first"), **judge.verdict(result_of(player))}
                    except (PlayerLost, OSError) as problem:
                        systems[system] = {"status": str(problem)}
                    if systems[system]["status"] != "ok" and system in players:
                        players.pop(system).close()
                    if not case.exists():
                        break
            for system, timing in take_turns(players, repeats=self.options.repeats).items():
                systems[system].update(timing)
        finally:
            for player in players.values():
                player.close()
        answer: dict[str, Any] = {"graph": self.graph, "systems": systems}
        own = systems["graphweave"].get("median")
        theirs = {system: systems.get(system, {}).get("median") for system in DGL}
        answer["ratios"] = {system: seconds / own for system, seconds in theirs.items() if seconds and own}
        return answer

    def _own(self, system: str, *, wide: bool = False) -> Player:
        """A process in this project's virtual environment: graphweave, or eager PyG to compare with."""
        options = self.options
        limits = {"timeout": options.timeout, "memory": available_memory()}
        if self.name in KERNELS:
            return kernel_worker.start(
                system, self.name, self.graph, threads=options.threads, folder=options.data_dir, wide=wide, **limits
            )
        return train_worker.start(
            system, self.name, self.graph, threads=options.threads, folder=options.data_dir, wide=wide,
            compile_loss=options.compile_loss, **limits,
        )  # fmt: skip

    def _dgl(self, case: Path, extra: Mapping[str, str]) -> Player:
        options = self.options
        command = [str(options.dgl_python), "-m", "bench.dgl_worker", self.name, str(case)]
        command += ["--threads", str(options.threads), "--index-bits", str(options.dgl_index_bits)]
        environment = {"OMP_NUM_THREADS": str(options.threads), "DGLBACKEND": "pytorch", **extra}
        return Player(command, environment, timeout=options.timeout, memory=available_memory())


def table_row(name: str, answer: dict[str, Any]) -> list[str]:
    def cell(system: str) -> str:
        one = answer["systems"].get(system, {"status": "not run"})
        if one["status"] != "ok":
            return one["status"]
        return f"{1e3 * one['median']:.2f} ±{500 * (one['q3'] - one['q1']):.2f}"

    systems = [*DGL, "graphweave"]
    ratios = [f"{answer['ratios'][system]:.2f}x" if system in answer["ratios"] else "-" for system in DGL]
    target = f"{TARGETS[name]:.0f}x" if name in TARGETS else "-"
    return [f"{name} {answer['graph']}", *map(cell, systems), *ratios, target]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--graph", choices=GRAPHS, default="rmat")
    parser.add_argument("--points", choices=POINT_SETS, default="points", help="graph of edgeconv")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile-loss", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--dgl-python", type=Path, default=ROOT / ".venv-dgl" / "bin" / "python")
    parser.add_argument("--dgl-index-bits", type=int, choices=(32, 64), default=64)
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one answer of a system may take")
    parser.add_argument("--data-dir", type=Path, default=data_dir())
    options = parser.parse_args(argv)
    reason = missing(options.graph, options.data_dir)
    if reason:
        parser.error(reason)
    results: dict[str, Any] = {}
    rows = []
    loss = "compiled" if options.compile_loss else "eager"
    record = {"benchmark": "peers", "graphweave_loss": loss, "targets": TARGETS, "results": results}
    for name in options.cases:
        on_points = name in MODELS and MODELS[name].points
        results[name] = Case(options, name, options.points if on_points else options.graph).measure()
        rows.append(table_row(name, results[name]))
        save(options.out, record)
    title = f"DGL 2.1 and graphweave, {options.threads} threads, {loss} loss in graphweave"
    headings = ["case graph", *(f"{system} ms" for system in (*DGL, "graphweave"))]
    ratio_table(title, [*headings, *(f"{system} / graphweave" for system in DGL), "target"], rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
