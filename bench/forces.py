"""Training on energies and forces, and serving both: seconds of a step, compiled by graphweave, by Inductor, and eager.

    python -m bench.forces [--models schnet painn egnn dimenet] [--batches molecules cluster box] [--width 64]
                           [--systems eager graphweave inductor] [--threads 2] [--repeats 9] [--timeout 90] [--out FILE]

A step of training computes the energies and, by `torch.autograd.grad` inside the compiled function, the forces, and
takes the gradients of a loss on both by all parameters, in float32. Serving computes energies and forces alone. The
batches are 32 molecules of 21 atoms, a cluster of 600 atoms with about 9,000 edges, and a cell of 192 atoms that
repeats in all directions, which only models of `graphweave.nn` take.

Each system has a process of its own for a model and a kind of work, and they take turns. Results are compared with
eager mode first. `first` is the first call on a batch, with capture and compilation. A system that does not answer a
question within `--timeout` seconds is ended, and the table says so. Inductor traces the inner gradient under PyTorch's
setting `trace_autograd_ops`, which graphweave sets by itself. Where the molecules are measured, the line after the
tables says how often graphweave compiles again for 50 batches of other sizes. `--batches box` measures the cell alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

import graphweave
from bench.common import arguments, ratio_table, save, seconds_of
from bench.force_models import EGNN, DimeNet, Molecules, NnPotential, crystal, molecules, painn, schnet
from bench.turns import Player, PlayerLost, serve, steps_timer, take_turns

MODELS: dict[str, Callable[[int], nn.Module]] = {"schnet": schnet, "painn": painn, "egnn": EGNN, "dimenet": DimeNet}
BATCHES: dict[str, Callable[[], Molecules]] = {
    "molecules": lambda: molecules([21] * 32),
    "cluster": lambda: crystal((10, 10, 6), 3.05, repeats=False),
    "box": lambda: crystal((6, 8, 4), 2.6, repeats=True),
}
SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "graphweave": graphweave.compile,
    "inductor": lambda f: torch.compile(f, dynamic=True),
}
WORK = ("training", "serving")
TOLERANCE = 1e-3
"""Error relative to the largest number: float32 sums are added in another order, and differentiated twice."""
MANY_BATCHES = 50
"""Batches of different sizes, which the compilation for the molecules should serve."""


# ---------------------------------------------------------------- in the process of a system


class System:
    """One model and one kind of work, run by one system on the batches that it is asked for."""

    def __init__(self, model: nn.Module, work: str, system: str) -> None:
        self.trains, self.leaves, self.batch = work == "training", list(model.parameters()), molecules([])
        if not self.trains:
            model.requires_grad_(False)

        def forces(
            z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int, *offsets: Tensor
        ) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                position = position.detach().requires_grad_()
                energy = model(z, position, edge_index, molecule, count, *offsets)
                (slope,) = torch.autograd.grad(energy.sum(), position, create_graph=self.trains)
            return (energy, -slope) if self.trains else (energy.detach(), -slope.detach())

        self.run = SYSTEMS[system](forces)

    def step(self) -> list[Tensor]:
        """Energies, forces and, in training, the gradients of all parameters."""
        b = self.batch
        offsets = () if b.offsets is None else (b.offsets,)
        with torch.set_grad_enabled(self.trains):
            found = list(self.run(b.z, b.position, b.edge_index, b.molecule, b.count, *offsets))
            if self.trains:
                found += torch.autograd.grad(sum(t.square().mean() for t in found), self.leaves)
        return [t.detach() for t in found]

    def first(self, batch: str) -> dict[str, Any]:
        self.batch = BATCHES[batch]()
        return {"first": seconds_of(self.step), "atoms": len(self.batch.z), "edges": self.batch.edge_index.size(1)}

    def result(self, path: str) -> None:
        torch.save(self.step(), path)

    def compilations(self) -> int:
        """How often graphweave compiles again for `MANY_BATCHES` batches of other sizes."""
        before = graphweave.counters()["compilations"]
        for n in range(MANY_BATCHES):
            self.batch = molecules([5 + (n + k) % 17 for k in range(2 + n % 7)], seed=n)
            self.step()
        return int(graphweave.counters()["compilations"] - before)


def _answer(models: Mapping[str, Callable[[int], nn.Module]], options: argparse.Namespace) -> None:
    kind, work, system = options.answer
    torch._dynamo.config.trace_autograd_ops = True  # for Inductor
    torch.manual_seed(0)
    asked = System(models[kind](options.width), work, system)
    turn = steps_timer(asked.step)
    serve({"first": asked.first, "result": asked.result, "compilations": asked.compilations, "turn": turn})


# ---------------------------------------------------------------- in the process that asks


class Measured:
    """The systems with one model and one kind of work. The first is the one with which others are compared."""

    def __init__(self, module: str, kind: str, work: str, options: argparse.Namespace) -> None:
        self.about, self.options, self.lost = f"{kind}, {work}", options, dict[str, str]()
        start = [sys.executable, "-m", module, "--threads", str(options.threads), "--width", str(options.width)]
        threads = {"OMP_NUM_THREADS": str(options.threads)}
        self.players = {
            s: Player([*start, "--answer", kind, work, s], threads, timeout=options.timeout) for s in options.systems
        }

    def batch(self, name: str) -> dict[str, Any]:
        """Measures all systems that are left on a batch, and prints their table."""
        found: dict[str, Any] = {s: self._ask(s, name) for s in self.players}
        players = {s: p for s, p in self.players.items() if s not in self.lost}
        for system, timing in take_turns(players, repeats=self.options.repeats).items():
            found[system].update(timing)
        base, *_ = found.values()
        rows = [_row(system, each, base) for system, each in found.items()]
        sizes = f"{base.get('atoms')} atoms, {base.get('edges')} edges"
        title = f"{self.about}, {name}: {sizes}, {self.options.threads} threads"
        ratio_table(title, ["system", "ms", f"of {self.options.systems[0]}", "first s"], rows)
        return found

    def _ask(self, system: str, batch: str) -> dict[str, Any]:
        """The first step of a system, whose results are compared with those of the first system."""
        if system not in self.lost:
            try:
                found: dict[str, Any] = self.players[system].ask("first", batch=batch)
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "result"
                    self.players[system].ask("result", path=str(path))
                    result = torch.load(path)
                if system == self.options.systems[0]:
                    self._wanted = result
                if (wrong := _differs(result, self._wanted)) <= TOLERANCE:
                    return found
                self.lost[system] = f"wrong by {wrong:.1e}"
            except PlayerLost as problem:
                self.lost[system] = str(problem)
        return {"status": self.lost[system]}

    def compilations(self) -> int | None:
        if "graphweave" not in self.players or "graphweave" in self.lost:
            return None
        found: int = self.players["graphweave"].ask("compilations")
        return found

    def close(self) -> None:
        for player in self.players.values():
            player.close()


def _differs(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)


def _row(system: str, found: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    if found["status"] != "ok":
        return [system, found["status"], "", ""]
    of_base = f"{base['median'] / found['median']:.2f}x" if base["status"] == "ok" else ""
    return [system, f"{1e3 * found['median']:.1f}", of_base, f"{found['first']:.1f}"]


def main(
    argv: Sequence[str] | None = None, models: Mapping[str, Callable[[int], nn.Module]] = MODELS,
    *, module: str = "bench.forces", doc: str | None = __doc__, width: int = 64,
) -> int:  # fmt: skip
    """Measures `models`, each made for a width, in processes that run `module`."""
    parser = arguments(doc)
    parser.add_argument("--models", nargs="*", choices=list(models), default=list(models))
    parser.add_argument("--batches", nargs="*", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--systems", nargs="*", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--width", type=int, default=width)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--timeout", type=float, default=90, help="seconds that a system has for its first step")
    parser.add_argument("--answer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.answer is not None:
        _answer(models, options)
        return 0
    results: dict[str, Any] = {}
    wrong = False
    for kind in options.models:
        repeats = isinstance(models[kind](2), NnPotential)
        for work in WORK:
            measured = Measured(module, kind, work, options)
            for name in options.batches:
                if name != "box" or repeats:
                    results[f"{kind} {work} {name}"] = measured.batch(name)
            if "molecules" in options.batches:
                results[f"{kind} {work} compilations"] = count = measured.compilations()
                if count is not None:
                    print(f"{kind}, {work}: {count} more compilations for {MANY_BATCHES} batches of other sizes")
            measured.close()
            wrong |= any("wrong" in reason for reason in measured.lost.values())
    name = module.rpartition(".")[2]
    save(options.out, {"benchmark": name, "threads": options.threads, "results": results})
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
