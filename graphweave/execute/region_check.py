"""`options={"verify": True}`: at each call, every region is compared with the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphweave.analysis.flow import extract
from graphweave.core.errors import VerifyError
from graphweave.core.types import DType, Space
from graphweave.execute.region_step import RegionStep
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Input, Program, Ref, Type
from graphweave.lower.schedule import Region

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}
"""Allowed difference, relative to the largest element. Sums run in another order, and eager mode rounds to half
precision at every step."""


def check_step(
    program: Program, kernel: RegionStep, region: Region, given: Sequence[Ref]
) -> Callable[[Mapping[str, int], Sequence[Any], Sequence[Any]], None]:
    """A function of row counts, the values of `given`, and the kernel's outputs. It raises VerifyError if the outputs
    differ from the interpreter's."""
    part = extract(program, given, kernel.writes)
    names = [n.name for n in part.program.nodes if isinstance(n, Input)]
    types = zip(part.program.nodes, part.program.types, strict=True)
    # An index that is declared as i64 may come in 32 bits.
    wide = {n.name for n, t in types if isinstance(n, Input) and isinstance(t, Type) and t.dtype is DType.i64}
    lines = sorted({str(program.locs[r]) for r in region.members if program.locs[r]})

    def check(rows: Mapping[str, int], values: Sequence[Any], outputs: Sequence[Any]) -> None:
        given = {name: v.long() if name in wide else v for name, v in zip(names, values, strict=True)}
        expected = interp(part.program, given, {Space(name): n for name, n in rows.items()})
        for ref, got, want in zip(kernel.writes, outputs, expected, strict=True):
            scale = float(want.double().abs().max()) if want.numel() else 0.0
            rtol = _TOLERANCE.get(want.dtype, 0.0)
            atol = rtol * max(scale if math.isfinite(scale) else 1.0, 1.0)
            if want.dtype is torch.int64:  # such as an index that is an output
                got = got.long()
            if not torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
                worst = float((got.double() - want.double()).abs().max())
                raise VerifyError(
                    f"region {kernel.name} computes %{ref} differently from eager: expected at most {atol:.2g} of "
                    f"difference, got {worst:.3g}. It was written at {'; '.join(lines) or 'an unknown line'}."
                    " Please report it; without verify the compiled result is used."
                )

    return check
