"""One node of a compiled program as one call, of PyTorch or of a product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphweave.analysis.typed import call_operands
from graphweave.compiler.product_calls import product_step
from graphweave.compiler.range_errors import with_named_indices
from graphweave.core.types import Fold, Space
from graphweave.ir.message.builder import operands
from graphweave.ir.message.interp import apply
from graphweave.ir.message.nodes import MapOf, Node, Program, Push, Ref
from graphweave.lower.options import Options


def call_step(program: Program, ref: Ref, options: Options | None = None) -> Callable[..., Any]:
    """`step(rows, *operand values)`: one node by PyTorch; operands as `operands(node)` lists them, each once."""
    node, types = program.nodes[ref], program.types
    options = options or Options()
    product = product_step(program, ref, options)
    if product is not None:
        return with_named_indices(program, ref, call_operands(program, ref), product)
    names = tuple(dict.fromkeys(operands(node)))
    widened = _index_in_64_bits(node)

    def call(rows: Mapping[Space, int], *values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        if widened is not None and given[widened] is not None:
            given[widened] = given[widened].long()
        return apply(node, given, types, rows.__getitem__, device=options.device)

    return with_named_indices(program, ref, names, call)


def _index_in_64_bits(node: Node) -> Ref | None:
    """The operand that PyTorch takes as int64 only, or that would not hold its sum with a row count.

    An index that only maps read may be held in 32 bits (`formats.narrowed`).
    """
    match node:
        case MapOf(index, wrap=True):
            return index
        case Push(map=m, fold=fold, empty=empty) if fold is not Fold.sum or empty != 0:
            return m
        case _:
            return None
