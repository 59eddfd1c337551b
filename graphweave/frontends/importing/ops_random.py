"""Random numbers for each row of a space -> Random: a seed is drawn, and the numbers are functions of the seed.

Each call that draws takes one seed from PyTorch's generator, so `torch.manual_seed` reproduces results, and equal calls
give different numbers. They are not the numbers that eager mode draws for the same seed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from graphweave.core.calls import named
from graphweave.core.errors import IRError
from graphweave.core.types import UNIT, DType
from graphweave.frontends.calls.captured_sizes import val
from graphweave.frontends.importing.context import Context, Table
from graphweave.ir.message import nodes as ir

aten = torch.ops.aten

_NUM_SEEDS = 2**63 - 1
"""Exclusive upper limit of the seeds that are drawn."""


def _rand_like(cx: Context, node: fx.Node) -> ir.Ref:
    t = cx.result(node)
    if t.space == UNIT or not t.dtype.is_float:
        raise IRError("random numbers of shared data, or no floats")
    drawn = t.dtype if t.dtype is DType.f64 else DType.f32
    cx.serial += 1
    cx.seeded.add(node.name)
    kwargs = (("dtype", ir.Atom("torch.int64")), ("device", ir.Atom(f"device({val(node).device})")))
    seed = cx.emit(ir.Aten(named.RANDOM_INTEGERS, (_NUM_SEEDS, ()), kwargs, ir.Type(UNIT, (), DType.i64), cx.serial))
    return cx.cast(cx.emit(ir.Random(seed, replace(t, dtype=drawn))), t.dtype)


RANDOM: Table = {aten.rand_like.default: _rand_like}
