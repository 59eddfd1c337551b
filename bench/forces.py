"""Training on energies and forces, and serving both: seconds of a step, compiled by graphweave, by Inductor, and eager.

    python -m bench.forces [--models schnet painn egnn dimenet] [--molecules 64] [--atoms 21] [--width 64]
                           [--systems eager graphweave inductor] [--threads 1] [--repeats 9] [--out FILE]

A step of training computes the energies of all molecules and, by `torch.autograd.grad` inside the compiled function,
the forces, and takes the gradients of a loss on both by all parameters, in float32. Serving computes energies and
forces alone. Results are compared with eager mode first. The systems take turns in one process. Inductor traces the
inner gradient under PyTorch's setting `trace_autograd_ops`, which graphweave sets by itself. `first` is the first call,
with capture and compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

import graphweave
from bench.common import arguments, interleaved, ratio_table, save, seconds_of
from bench.force_models import EGNN, DimeNet, Molecules, PaiNN, SchNet, energy_and_forces, molecules

MODELS: dict[str, Callable[[int], nn.Module]] = {"schnet": SchNet, "painn": PaiNN, "egnn": EGNN, "dimenet": DimeNet}
SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "graphweave": graphweave.compile,
    "inductor": lambda f: torch.compile(f, dynamic=True),
}
TOLERANCE = 1e-3
"""Error relative to the largest number: float32 sums are added in another order, and differentiated twice."""


def _forces(model: nn.Module, system: str) -> Callable[[Molecules, Tensor], tuple[Tensor, Tensor]]:
    def forces(z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return energy_and_forces(model, Molecules(z, position, edge_index, molecule, count), position)

    run = SYSTEMS[system](forces)
    return lambda batch, position: run(batch.z, position, batch.edge_index, batch.molecule, batch.count)


def training(model: nn.Module, batch: Molecules, system: str) -> Callable[[], list[Tensor]]:
    """A step, which gives the forces and the gradients of all parameters."""
    run, leaves = _forces(model, system), list(model.parameters())

    def step() -> list[Tensor]:
        energy, forces = run(batch, batch.position.requires_grad_())
        loss = energy.square().mean() + forces.square().mean()
        return [forces.detach(), *torch.autograd.grad(loss, leaves)]

    return step


def serving(model: nn.Module, batch: Molecules, system: str) -> Callable[[], list[Tensor]]:
    """A call, which gives energies and forces."""
    frozen = model.requires_grad_(False)
    run = _forces(frozen, system)
    return lambda: [t.detach() for t in run(batch, batch.position.requires_grad_())]


WORK: dict[str, Callable[[nn.Module, Molecules, str], Callable[[], list[Tensor]]]] = {
    "training": training, "serving": serving,
}  # fmt: skip


def _differs(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)


def main(
    argv: Sequence[str] | None = None, models: Mapping[str, Callable[[int], nn.Module]] = MODELS,
    *, name: str = "forces", doc: str | None = __doc__, width: int = 64,
) -> int:  # fmt: skip
    """Measures `models`, each made for a width, and saves the results as those of the benchmark `name`."""
    parser = arguments(doc)
    parser.add_argument("--models", nargs="*", choices=list(models), default=list(models))
    parser.add_argument("--systems", nargs="*", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--molecules", type=int, default=64)
    parser.add_argument("--atoms", type=int, default=21)
    parser.add_argument("--width", type=int, default=width)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch._dynamo.config.trace_autograd_ops = True  # for Inductor
    batch = molecules([options.atoms] * options.molecules)
    results: dict[str, Any] = {}
    for kind in options.models:
        for work, make in WORK.items():
            torch.manual_seed(0)
            model = models[kind](options.width)
            wanted = make(model, batch, "eager")()
            steps = {system: make(model, batch, system) for system in options.systems}
            first = {system: seconds_of(step) for system, step in steps.items()}
            if wrong := [f"{s}: {e:.1e}" for s, step in steps.items() if (e := _differs(step(), wanted)) > TOLERANCE]:
                print(f"{kind}, {work}: wrong by {', '.join(wrong)}")
                return 1
            taken = interleaved(steps, repeats=options.repeats, first=first)
            base = taken[options.systems[0]].median
            rows = [[s, f"{1e3 * t.median:.1f}", f"{base / t.median:.2f}x", f"{t.first:.1f}"] for s, t in taken.items()]
            about = f"{kind}, {work}: {len(batch.z)} atoms, {batch.edge_index.size(1)} edges, {options.threads} threads"
            ratio_table(about, ["system", "ms", f"of {options.systems[0]}", "first s"], rows)
            results[f"{kind} {work}"] = {s: {"median": t.median, "first": t.first} for s, t in taken.items()}
    save(options.out, {"benchmark": name, "threads": options.threads, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
