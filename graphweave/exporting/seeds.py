"""Random numbers of an exported model: functions of a seed, which is an input of the model behind all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from graphweave.exporting.capture import Argument, WholeModel
from graphweave.ir.message.nodes import Program, Random, Ref

SEED = "seed"


def with_seed(forms: Sequence[WholeModel]) -> list[WholeModel]:
    """The forms of a model, with a seed among their inputs if one of them draws random numbers."""
    if not any(isinstance(n, Random) for form in forms for n in form.captured.request.program.nodes):
        return list(forms)
    taken = {a.name for a in forms[0].inputs}
    name = SEED if SEED not in taken else f"random_{SEED}"
    seed = Argument("", name, torch.tensor(0), (), is_seed=True)
    return [replace(form, inputs=(*form.inputs, seed)) for form in forms]


def seed_position(form: WholeModel) -> int:
    """The position of the seed among the inputs; -1 if there is none."""
    return next((i for i, argument in enumerate(form.inputs) if argument.is_seed), -1)


def is_seed(program: Program, ref: Ref) -> bool:
    """Whether a value seeds random numbers."""
    return any(isinstance(n, Random) and n.seed == ref for n in program.nodes)
