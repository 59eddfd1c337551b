"""A user's function of numbers as a formula over operators (`core/formulas.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from graphweave.core.errors import IRError
from graphweave.core.types import DType
from graphweave.frontends.calls.decompositions import decompositions
from graphweave.frontends.importing.importer import import_graph
from graphweave.ir.message import nodes as ir

MAX_CHARACTERS = 2000
"""Upper limit on the text of a formula, in which a value that is used twice is written twice."""

_ROWS = 3


def formula_of(function: Callable[..., Tensor], names: Sequence[str]) -> str | None:
    """`function` of tensors as a formula of numbers called `names`.

    None if it does more than compute each element of its result from the elements at the same place, in the operators
    that kernels have, or if its formula would be longer than `MAX_CHARACTERS`.
    """
    examples = [torch.full((_ROWS,), 0.5 + i, dtype=torch.float64) for i in range(len(names))]
    try:
        graph = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*examples)
        imported = import_graph(graph)
    except Exception:  # a user's function may refuse tensors of one dim in any way
        return None
    if imported.attributes:
        return None
    program = imported.program
    texts: dict[ir.Ref, str] = dict(zip(imported.inputs, names, strict=True))
    (out,) = program.outputs
    try:
        return None if out is None else _Text(program, texts).of(out)
    except IRError:
        return None


class _Text:
    def __init__(self, program: ir.Program, texts: dict[ir.Ref, str]) -> None:
        self._program, self._texts = program, texts

    def of(self, ref: ir.Ref) -> str:
        """The formula of a node; IRError if there is none."""
        if ref not in self._texts:
            self._texts[ref] = self._written(ref)
            if len(self._texts[ref]) > MAX_CHARACTERS:
                raise IRError("a formula that is too long")
        return self._texts[ref]

    def _written(self, ref: ir.Ref) -> str:
        match self._program.nodes[ref]:
            case ir.Const(value, ir.Type(dtype=dtype)) if dtype is not DType.bool:
                return _number(float(value))
            case ir.Pointwise(op, args):
                return f"{op.value}({', '.join(map(self.of, args))})"
            case ir.Cast(x, dtype) if dtype.is_float:
                inner = self._program.types[x]
                assert isinstance(inner, ir.Type)
                if inner.dtype is DType.bool:
                    return f"where({self.of(x)}, 1.0, 0.0)"
                return self.of(x)
            case ir.Broadcast(x) | ir.Reshape(x, ()):
                return self.of(x)
            case node:
                raise IRError(f"{node!r} is no operator on numbers")


def _number(value: float) -> str:
    """Python reads 1e999 as infinity; a formula has no word for it."""
    if value != value:
        raise IRError("a formula has no NaN")
    return repr(value).replace("inf", "1e999")
