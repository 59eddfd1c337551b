"""`options={"verify": True}`: at each call, every region is compared with the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.analysis.flow import extract
from graphweave.core.errors import VerifyError
from graphweave.core.types import DType, Space
from graphweave.execute.near_ties import NearTies
from graphweave.execute.region_step import RegionStep
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.interp import interp
from graphweave.lower.schedule import Region

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}
"""Allowed difference, relative to the largest element. Sums run in another order, and eager mode rounds to half
precision at every step."""


def check_step(
    program: ir.Program, kernel: RegionStep, region: Region, given: Sequence[ir.Ref]
) -> Callable[[Mapping[str, int], Sequence[Any], Sequence[Any]], None]:
    """A function of row counts, the values of `given`, and the kernel's outputs. It raises VerifyError if the outputs
    differ from the interpreter's, unless a comparison of nearly equal numbers explains it: a kernel's tanh may differ
    from PyTorch's in the last bits, and so from the maximum that another kernel has found."""
    part = extract(program, given, kernel.writes)
    names = [n.name for n in part.program.nodes if isinstance(n, ir.Input)]
    types = zip(part.program.nodes, part.program.types, strict=True)
    # An index that is declared as i64 may come in 32 bits.
    wide = {n.name for n, t in types if isinstance(n, ir.Input) and isinstance(t, ir.Type) and t.dtype is DType.i64}
    lines = sorted({str(program.locs[r]) for r in region.members if program.locs[r]})

    def check(rows: Mapping[str, int], values: Sequence[Any], outputs: Sequence[Any]) -> None:
        given = {name: v.long() if name in wide else v for name, v in zip(names, values, strict=True)}
        counts = {Space(name): n for name, n in rows.items()}
        expected = interp(part.program, given, counts)
        decided: list[Sequence[Any]] = []  # the outputs with near ties decided either way, computed if needed
        for i, (ref, got, want) in enumerate(zip(kernel.writes, outputs, expected, strict=True)):
            if want.dtype is torch.int64:  # such as an index that is an output
                got = got.long()
            allowed = _allowed(want)
            if _within(got, want, allowed):
                continue
            for equal in () if decided else (True, False):
                with NearTies(equal=equal):
                    decided.append(interp(part.program, given, counts))
            spread = sum((other[i].double() - want.double()).abs().nan_to_num(0.0, 0.0) for other in decided)
            if not _within(got, want, allowed + spread):
                worst = float((got.double() - want.double()).abs().max())
                raise VerifyError(
                    f"region {kernel.name} computes %{ref} differently from eager: expected at most {allowed:.2g} of "
                    f"difference, got {worst:.3g}. It was written at {'; '.join(lines) or 'an unknown line'}."
                    " Please report it; without verify the compiled result is used."
                )

    return check


def _allowed(want: Tensor) -> float:
    """The difference that rounding may make in an element of `want`."""
    scale = float(want.double().abs().max()) if want.numel() else 0.0
    return _TOLERANCE.get(want.dtype, 0.0) * max(scale if math.isfinite(scale) else 1.0, 1.0)


def _within(got: Tensor, want: Tensor, allowed: float | Tensor) -> bool:
    """Whether each element differs by at most `allowed`. NaN and infinities stand in the same places."""
    got, want = got.double(), want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    return bool((same | ((got - want).abs() <= allowed)).all())
