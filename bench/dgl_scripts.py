"""DGL's full-graph example scripts: by DGL 2.1 and by `graphweave.dgl` in DGL's place, epoch by epoch, in turn.

    python -m bench.dgl_scripts --dgl /path/to/dgl [--cases gcn gat ...] [--graph pubmed] [--repeats 15] [--threads 2]
                                [--systems dgl compiled door] [--out FILE] [--resume]

`--dgl` is a checkout of DGL's public repository, whose scripts run from their first line to the last epoch that
is asked for (bench/dgl_scripts_worker.py). `compiled` has one added line, `model = graphweave.compile(model)`, before
the line that makes the optimizer; `door` has none. Downloads are replaced by a graph of `bench.graphs` in all systems.

An epoch is what the script does between two steps of its optimizer: the training step, its validation, its printing.
Before anything is timed, all systems start from DGL's weights and must have the same losses in the first epochs, with
dropout switched off, because their random numbers differ. A system with other losses is not timed.
"""

from __future__ import annotations

import math
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import relational_graphs
from bench.case import Bench, Numbers
from bench.common import available_memory, ratio_table
from bench.dgl_scripts_cases import SCRIPTS
from bench.graphs import GRAPHS, data_dir, load, missing
from bench.options import Among
from bench.runner import run
from bench.turns import ROOT, Player, PlayerLost, take_turns
from graphweave.data import npz
from graphweave.data.edges import symmetrise

TARGET = 3.0
"""How many times as fast as DGL the scripts should be, in the geometric mean."""

LOSSES = 4
"""Epochs whose losses are compared."""

TOLERANCE = 2e-3
"""Relative difference of losses above which a system is wrong. Adam divides by the size of a gradient, so rounding of a
gradient near zero moves its weight by a whole step: losses of later epochs differ by more than float32's rounding."""

FIRST_TOLERANCE = 1e-4
"""The same for the first loss, which no optimizer has touched: sums of float32 in another order."""

SYSTEMS = ("dgl", "compiled", "door")

_FEATURES = {"cora": "cora.npz", "pubmed": "pubmed.npz", "computers": "amazon_computers.npz"}
"""Graphs with features, labels and a split of their own."""


@dataclass(frozen=True, slots=True)
class Script:
    """One script by all systems, whose processes share the files of a folder."""

    name: str
    options: Namespace
    folder: Path

    def measure(self) -> dict[str, Any]:
        systems: dict[str, dict[str, Any]] = {}
        for system in SYSTEMS:
            if system in (self.options.systems or SYSTEMS):
                systems[system] = self._checked(system, systems.get("dgl", {}).get("losses"))
        players: dict[str, Player] = {}
        try:
            for system in [system for system, one in systems.items() if one["status"] == "ok"]:
                players[system] = self._player(system)
                try:
                    systems[system].update(players[system].ask("first"))
                except PlayerLost as problem:
                    systems[system]["status"] = str(problem)
                    players.pop(system).close()
            for system, timing in take_turns(players, repeats=self.options.repeats).items():
                systems[system].update(timing)
        finally:
            for player in players.values():
                player.close()
        medians = {system: one.get("median") for system, one in systems.items()}
        ratios = {
            system: medians["dgl"] / seconds
            for system, seconds in medians.items()
            if system != "dgl" and seconds and medians["dgl"]
        }
        return {"script": SCRIPTS[self.name].path, "systems": systems, "ratios": ratios}

    def _checked(self, system: str, want: list[float] | None) -> dict[str, Any]:
        """The losses of the first epochs without dropout, and whether they are those of DGL."""
        player = self._player(system, "--losses")
        try:
            losses = player.ask("losses", count=LOSSES)
        except PlayerLost as problem:
            return {"status": str(problem)}
        finally:
            player.close()
        return {"status": verdict(losses, want), "losses": losses}

    def _player(self, system: str, *more: str) -> Player:
        options, case = self.options, self.folder / f"{SCRIPTS[self.name].kind}.npz"
        python = options.dgl_python if system == "dgl" else sys.executable
        command = [str(python), "-m", "bench.dgl_scripts_worker", self.name, system, "--case", str(case)]
        command += ["--examples", str(options.dgl / "examples"), "--weights", str(self.folder / "weights.pt")]
        command += ["--threads", str(options.threads), "--turns", str(options.repeats + 4), *more]
        environment = {"OMP_NUM_THREADS": str(options.threads), "DGLBACKEND": "pytorch", "PYTHONPATH": str(ROOT)}
        return Player(command, environment, timeout=options.timeout, memory=available_memory())


def measure(name: str, options: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_graphs(options, Path(folder))
        return Script(name, options, Path(folder)).measure()


def verdict(losses: Sequence[float], want: Sequence[float] | None) -> str:
    """ "ok", or by how much losses differ from DGL's."""
    if not all(math.isfinite(loss) for loss in losses):
        return f"wrong: losses {losses}"
    for epoch, (got, loss) in enumerate(zip(losses, want or losses, strict=True)):
        error = abs(got - loss) / abs(loss)
        if error > (TOLERANCE if epoch else FIRST_TOLERANCE):
            return f"wrong: the loss of epoch {epoch} is {got:.6g}, DGL's {loss:.6g}"
    return "ok"


def write_graphs(options: Namespace, folder: Path) -> None:
    """The files that the processes read: a graph with labels, and a graph of typed nodes and edges of AIFB's size.

    Random graphs get the reverse of each edge, as citation graphs have it, and a loop at nodes without edges.
    """
    if options.graph in _FEATURES:
        data = npz(options.data_dir / _FEATURES[options.graph])
        x, index, y = data.x, data.edge_index, data.y.clamp(min=0)
        masks: dict[str, Any] = {"train_mask": data.train_mask, "val_mask": data.val_mask, "test_mask": data.test_mask}
    else:
        work = load(options.graph, options.data_dir)
        x, y = work.x, work.y
        both = symmetrise(work.edge_index[0], work.edge_index[1], len(x))
        alone = torch.ones(len(x), dtype=torch.bool).index_fill(0, both[1], False).nonzero().squeeze(1)
        index = torch.cat([both, alone.expand(2, -1)], 1)  # DGL's layers refuse nodes without incoming edges
        part = np.random.default_rng(0).integers(5, size=len(y))
        masks = {"train_mask": part < 3, "val_mask": part == 3, "test_mask": part == 4}
    arrays = {"x": x, "edge_index": index, "y": y, **masks}
    np.savez(folder / "nodes.npz", allow_pickle=False, **{name: np.asarray(value) for name, value in arrays.items()})
    relational_graphs.save(relational_graphs.make(options.relations, options.data_dir), str(folder / "relations.npz"))


def table_row(name: str, answer: Mapping[str, Any], systems: Sequence[str]) -> list[str]:
    def cell(system: str) -> str:
        one = answer["systems"][system]
        return f"{1e3 * one['median']:.2f} ±{500 * (one['q3'] - one['q1']):.2f}" if "median" in one else one["status"]

    ratios = [f"{answer['ratios'][s]:.2f}x" if s in answer["ratios"] else "-" for s in systems if s != "dgl"]
    return [name, *map(cell, systems), *ratios]


def means(results: Mapping[str, Any], systems: Sequence[str]) -> dict[str, float]:
    """The geometric mean of the ratios of each system, over the scripts that it ran."""
    out = {}
    for system in systems:
        ratios = [answer["ratios"][system] for answer in results.values() if system in answer["ratios"]]
        if ratios:
            out[system] = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return out


def show(results: Mapping[str, Any], options: Namespace) -> None:
    systems = [system for system in SYSTEMS if system in (options.systems or SYSTEMS)]
    title = f"DGL's scripts on {options.graph}, {options.threads} threads, target {TARGET:.0f}x"
    others = [system for system in systems if system != "dgl"]
    headings = ["script", *(f"{system} ms" for system in systems), *(f"dgl / {system}" for system in others)]
    ratio_table(title, headings, [table_row(name, one, systems) for name, one in results.items()])
    print({system: round(mean, 2) for system, mean in means(results, systems).items()})


def cases(options: Namespace) -> Iterator[Numbers]:
    if options.dgl is None or "dgl" not in (options.systems or SYSTEMS):
        raise SystemExit("--dgl names the folder of a checkout of DGL; its weights and losses are what others have")
    reason = missing(options.graph, options.data_dir)
    for name in SCRIPTS:
        yield Numbers(name, measure, {"name": name, "options": options}, here=True, missing=reason)


BENCH = Bench(
    "bench.dgl_scripts", __doc__, cases,
    {"dgl": Path, "graph": Among(GRAPHS, "pubmed"), "relations": Among(relational_graphs.GRAPHS, "aifb"),
     "dgl_python": ROOT / ".venv-dgl" / "bin" / "python", "data_dir": data_dir()},
    repeats=15, timeout=600.0, show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
