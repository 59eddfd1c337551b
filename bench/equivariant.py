"""Training on energies and forces with features that turn with the molecule, and serving both: seconds of a step.

    python -m bench.equivariant [--models nequip mace ...] [--batches molecules cluster] [--width 16]
                                [--systems eager graphweave inductor] [--threads 2] [--repeats 9] [--out FILE]

What is measured, and how, is as in `bench.forces`. The models have two layers and harmonics up to degree 2: `nequip`
sums coupled messages, `mace` also takes products of the sums. With e3nn installed, `e3nn nequip` and `e3nn mace` are
such models made of its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from torch import nn

from bench.equivariant_models import Equivariant
from bench.forces import bench_of
from bench.runner import run

DEGREE, LAYERS, HIDDEN = 2, 2, 64
"""The highest degree of harmonics, the layers of a model, and the width inside of a radial network."""


def _models() -> dict[str, Callable[[int], nn.Module]]:
    made: dict[str, Callable[..., nn.Module]] = {"": Equivariant}
    if find_spec("e3nn") is not None:
        from bench.e3nn_models import E3nn

        made["e3nn "] = E3nn
    sizes = {"degree": DEGREE, "layers": LAYERS, "hidden": HIDDEN}
    kinds = {"nequip": False, "mace": True}
    return {m + k: partial(made[m], **sizes, products=products) for m in made for k, products in kinds.items()}


BENCH = bench_of("bench.equivariant", __doc__, _models(), 16)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
