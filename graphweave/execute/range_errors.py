"""Errors about an index out of range in the user's words: which tensor it is, and the line that uses it.

A step knows its maps and the tensors of their indices; the executable knows the user's names of its inputs. PyTorch's
own calls report at most a value: when one fails, its indices are searched for a value out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.analysis.cones import map_type
from graphweave.analysis.typed import is_typed, sources
from graphweave.compiler.glossary import index_words
from graphweave.core.calls import IndexUse, facts_of
from graphweave.core.errors import IndexRangeError
from graphweave.core.ranges import position, range_error
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir


def _index_of(node: ir.Aten) -> IndexUse | None:
    """How a call uses an index whose numbers count rows of its first argument; None for other calls."""
    index = facts_of(node.target).index
    return index if index is not None and index.base and not index.listed else None


class MapError(IndexRangeError):
    """An index out of range, not yet in the user's words. `ref` of `program` is the index, or a map made of it."""

    def __init__(self, error: IndexRangeError, program: ir.Program, ref: ir.Ref, user: ir.Ref) -> None:
        super().__init__(
            error.said, index=error.index, what=error.what, do=error.do,
            where=error.where or program.locs[user].shown,
        )  # fmt: skip
        self.program, self.ref = program, ref


def in_words(error: MapError, names: Mapping[str, str]) -> IndexRangeError:
    """The error with the name that the user gave the index."""
    return error.told(what=index_words(error.program, error.ref, names))


def of_map(error: IndexRangeError, program: ir.Program, index: Mapping[ir.Ref, torch.Tensor]) -> IndexRangeError:
    """The error together with the map that it concerns, if `index` (tensors by map) contains the error's tensor."""
    found = next((m for m, tensor in index.items() if tensor is error.index), None)
    return error if found is None else MapError(error, program, found, _used_at(program, found))


def with_named_indices(
    program: ir.Program, ref: ir.Ref, spaces: Sequence[Space], names: Sequence[ir.Ref], call: Callable[..., object]
) -> Callable[..., object]:
    """`call(*rows of spaces, *values of names)` of node `ref`, wrapped so that errors name the index out of range."""
    if not has_index(program, ref):
        return call
    count = len(spaces)

    def named(*args: Any) -> object:
        try:
            return call(*args)
        except MapError:
            raise
        except IndexRangeError as error:
            found = next((r for r, v in zip(names, args[count:], strict=True) if v is error.index), None)
            if found is None:
                raise
            raise MapError(error, program, found, ref) from None
        except (IndexError, RuntimeError):
            rows = {UNIT: 1, **dict(zip(spaces, args, strict=False))}
            refused = _out_of_range(program, ref, dict(zip(names, args[count:], strict=True)), rows)
            if refused is None:
                raise
            raise refused from None

    return named


def has_index(program: ir.Program, ref: ir.Ref) -> bool:
    node = program.nodes[ref]
    if isinstance(node, ir.Aten):
        return _index_of(node) is not None
    return isinstance(node, ir.Pull | ir.Push | ir.JoinIndices | ir.AssertIndex) or is_typed(program, ref)


def _out_of_range(
    program: ir.Program, ref: ir.Ref, given: Mapping[ir.Ref, Tensor], rows: Mapping[Space, int]
) -> MapError | None:
    """The error about the index that made a PyTorch call fail; None if all indices are in range."""
    node = program.nodes[ref]
    if isinstance(node, ir.Aten):
        return _of_call(program, ref, node, given)
    for r in sources(program, ref):
        found = program.nodes[r]
        if isinstance(found, ir.MapOf):
            index = given.get(r, given.get(found.index))
            if index is None:
                continue
            num = rows[map_type(program, r).cod]
            if found.wrap and r in given:
                index = torch.where(index < 0, index - num, index)  # as it was before negative values were counted
            first = -num if found.wrap else 0
            if position(index, num, first) is not None:
                return MapError(range_error(index, num, first=first), program, r, ref)
    return None


def _of_call(program: ir.Program, ref: ir.Ref, node: ir.Aten, given: Mapping[ir.Ref, Tensor]) -> MapError | None:
    how = _index_of(node)
    if how is None:
        return None
    base, index = node.args[0], node.args[how.at]
    dim = 0 if how.dim is None else node.args[how.dim]
    if not (isinstance(base, ir.Operand) and isinstance(index, ir.Operand) and isinstance(dim, int)):
        return None
    num = given[base.ref].shape[dim]
    first = -num if how.wraps else 0
    if position(given[index.ref], num, first) is None:
        return None
    return MapError(range_error(given[index.ref], num, first=first), program, index.ref, ref)


def _used_at(program: ir.Program, m: ir.Ref) -> ir.Ref:
    """The first node that moves values along a map. Its line tells the user more than the line of the index."""
    users = (r for r, n in enumerate(program.nodes) if isinstance(n, ir.Pull | ir.Push) and n.map == m)
    return next(users, m)
