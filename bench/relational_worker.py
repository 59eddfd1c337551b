"""The processes of `bench.relational` for graphweave, its eager twin, PyG, and PyG compiled: `python -m ... HOST`."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import graphweave
from bench import relational_pyg
from bench.forget import forget_graphs
from bench.relational_graphs import Case, load
from bench.relational_models import LAYERS, WithLoss, inputs
from bench.relational_reference import reference
from bench.relational_serve import Form, Host
from bench.turns import serve
from graphweave.core.choices import OPTIONS

VARIANTS: dict[str, dict[str, bool]] = {
    "graphweave": {},
    "gw-U": {"compact": False, "reorder": False},
    "gw-C": {"compact": True, "reorder": False},
    "gw-R": {"compact": False, "reorder": True},
    "gw-C+R": {"compact": True, "reorder": True},
    "gw-compile": {"compact": False, "reorder": False, "rewrite": False, "fuse": False},
    "gw-reorder": {"fuse": False},
}
"""Variant -> options of graphweave.compile, which force compact materialization and reordering of linear operators on
or off. "graphweave" leaves both to the cost model. The last two are Graphiler's steps before fusion."""

ON_DEMAND = ("gw-compile", "gw-reorder")
"""Variants that are measured only if they are named."""

HOSTS = ("graphweave", "gw-pyg", "bmm", "pyg", "reference")


def missing_options(system: str) -> list[str]:
    """The options of a variant that this version of graphweave does not have."""
    return [name for name in VARIANTS[system] if name not in OPTIONS]


def own_form(system: str, model: str, case: Case, weights: Mapping[str, Tensor]) -> Form:
    """The form of a variant of graphweave, or of "bmm", which does not compile model and loss."""
    layer = LAYERS[model](weights)
    loss, run = (
        module if system == "bmm" else graphweave.compile(module, options=VARIANTS[system])
        for module in (WithLoss(layer), layer)
    )
    given = inputs(model, case)

    def grads() -> dict[str, Tensor]:
        return {name: value.grad for name, value in layer.named_parameters() if value.grad is not None}

    return Form(layer, lambda: run(*given), lambda: loss(case.y, *given), grads)


def compiled_pyg(system: str, model: str, case: Case, weights: Mapping[str, Tensor]) -> Form:
    """PyG's own class, unchanged, compiled by graphweave, alone and with its loss."""
    eager = relational_pyg.build(system.removeprefix("gw-"), model, case, weights)
    return Form(eager.module, graphweave.compile(eager.infer), graphweave.compile(eager.loss), eager.grads)


def next_case() -> None:
    """Drops compiled code. The numbers of types are compiled in, so code for one case is of no use to the next."""
    forget_graphs()
    torch._dynamo.reset()


def write_reference(graph: str, weights: str, model: str, within: bool, path: str) -> None:
    with np.load(weights) as arrays:
        values = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    want = reference(model, load(graph), values, within=within)
    found: dict[str, Any] = {name: value.numpy() for name, value in want.items()}
    np.savez(path, **found)


def counted() -> dict[str, int]:
    return {name: n for name, n in graphweave.counters().items() if n}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host", choices=HOSTS)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.host == "reference":
        serve({"reference": write_reference})
    elif options.host == "pyg":
        Host(relational_pyg.build, packages=("torch_geometric",)).serve()
    elif options.host == "bmm":
        Host(own_form, packages=()).serve()
    else:
        build, beside = (compiled_pyg, ("torch_geometric",)) if options.host == "gw-pyg" else (own_form, ())
        Host(
            build, packages=("graphweave", *beside), forget=forget_graphs, next_case=next_case, counted=counted,
            reset=graphweave.reset_counters,
        ).serve()  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
