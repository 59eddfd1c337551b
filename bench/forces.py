"""Training on energies and forces, and serving both: seconds of a step, compiled by graphweave, by Inductor, and eager.

    python -m bench.forces [--models schnet painn egnn dimenet] [--batches molecules cluster box] [--width 64]
                           [--systems eager graphweave inductor] [--threads 2] [--repeats 9] [--timeout 90]
                           [--out FILE] [--resume]

A step of training computes the energies and, by `torch.autograd.grad` inside the compiled function, the forces, and
takes the gradients of a loss on both by all parameters, in float32. Serving computes energies and forces alone. The
batches are 32 molecules of 21 atoms, a cluster of 600 atoms with about 9,000 edges, and a cell of 192 atoms that
repeats in all directions, which only models of `graphweave.nn` take.

Inductor traces the inner gradient under PyTorch's setting `trace_autograd_ops`, which graphweave sets by itself.
`again` counts how often graphweave, after the molecules, compiles again for 50 batches of other sizes.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

import graphweave
from bench.case import Bench, Case, Check, Peers
from bench.force_models import EGNN, DimeNet, Molecules, NnPotential, crystal, molecules, painn, schnet
from bench.options import Among
from bench.runner import run
from bench.steps import Step

Models = Mapping[str, Callable[[int], nn.Module]]
MODELS: Models = {"schnet": schnet, "painn": painn, "egnn": EGNN, "dimenet": DimeNet}
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


class Forces:
    """A step of one model and one kind of work, run by one system on `batch`."""

    def __init__(self, model: nn.Module, work: str, system: str, batch: Molecules) -> None:
        torch._dynamo.config.trace_autograd_ops = True  # for Inductor
        self.trains, self.leaves, self.batch = work == "training", list(model.parameters()), batch
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

    def __call__(self) -> list[Tensor]:
        """Energies, forces and, in training, the gradients of all parameters."""
        b = self.batch
        offsets = () if b.offsets is None else (b.offsets,)
        with torch.set_grad_enabled(self.trains):
            found = list(self.run(b.z, b.position, b.edge_index, b.molecule, b.count, *offsets))
            if self.trains:
                found += torch.autograd.grad(sum(t.square().mean() for t in found), self.leaves)
        return [t.detach() for t in found]

    def compilations(self) -> int:
        """How often graphweave compiles again for `MANY_BATCHES` batches of other sizes."""
        before = graphweave.counters()["compilations"]
        for n in range(MANY_BATCHES):
            self.batch = molecules([5 + (n + k) % 17 for k in range(2 + n % 7)], seed=n)
            self()
        return int(graphweave.counters()["compilations"] - before)


def again(peer: str, step: Any) -> dict[str, Any]:
    return {"again": step.compilations()} if peer == "graphweave" else {}


def build(make: Callable[[int], nn.Module], work: str, batch: str, width: int) -> Peers:
    def prepare(system: str) -> Step:
        torch.manual_seed(0)
        return Forces(make(width), work, system, BATCHES[batch]())

    return {system: partial(prepare, system) for system in SYSTEMS}


def cases(models: Models, options: Namespace) -> Iterator[Case]:
    for kind in options.models:
        repeats = isinstance(models[kind](2), NnPotential)
        for work in WORK:
            for batch in options.batches:
                if batch != "box" or repeats:
                    sizes = {"make": models[kind], "work": work, "batch": batch, "width": options.width}
                    yield Case(
                        f"{kind} {work} {batch}", build, tuple(SYSTEMS), Check(TOLERANCE), sizes, {"width": 8},
                        notes=again if batch == "molecules" else None,
                    )  # fmt: skip


def bench_of(module: str, doc: str | None, models: Models, width: int) -> Bench:
    """A benchmark of `models`, each made for a width."""
    options = {"models": Among(models), "batches": Among(BATCHES), "width": width}
    columns = {"again": lambda found, one: str(one.get("again", ""))}
    return Bench(module, doc, partial(cases, models), options, apart=True, repeats=9, timeout=90.0, columns=columns)


BENCH = bench_of("bench.forces", __doc__, MODELS, 64)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
