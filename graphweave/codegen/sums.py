"""Arrays of a row to which only one gram adds.

A gram's sum is as large as a matrix. In C++ it is neither filled with zeros nor copied to its tensor, as each would
cost as much as some rows of the product: the first tile stores its gram, in the tensor itself. In Triton the sum is a
matrix in registers, which is stored from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from graphweave.codegen.arrays import Affine, Array, flatten
from graphweave.codegen.walk import accesses
from graphweave.core.types import HALF
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements


@dataclass(frozen=True, slots=True)
class Sum:
    """An array to which one gram adds, over the edges of `csr`. If the array is only copied to a row of `output`,
    `copy` is the statement that does so."""

    gram: loop.TileGram
    csr: str
    copy: loop.Stmt | None = None
    output: str = ""


def sums_of(kernel: loop.Kernel, arrays: Mapping[str, Array], *, rounded: bool = False) -> dict[str, Sum]:
    """The arrays that begin as zeros and to which only one gram adds.

    `rounded` says whether a copy may round the sum to half precision.
    """
    found: dict[str, Sum] = {}
    walks = [s for s in kernel.body if isinstance(s, loop.Tiles)]
    grams = [(s, tiles) for tiles in walks for s in tiles.body if isinstance(s, loop.TileGram)]
    for alloc in kernel.body:
        if not isinstance(alloc, loop.Alloc) or alloc.fill != 0:
            continue
        mine = [(s, tiles) for s, tiles in grams if s.out == alloc.name]
        if len(mine) == 1 and alloc.name not in set(_written(kernel.body)):
            gram, tiles = mine[0]
            found[alloc.name] = _with_copy(kernel, alloc.name, Sum(gram, tiles.csr), arrays, rounded)
    return found


def _with_copy(kernel: loop.Kernel, name: str, found: Sum, arrays: Mapping[str, Array], rounded: bool) -> Sum:
    readers = [s for s in kernel.body if any(array == name for array, _ in accesses((s,)))]
    if len(readers) != 1:
        return found
    (copy,) = readers
    store = copy.body[0] if isinstance(copy, loop.Lanes) and len(copy.body) == 1 else copy
    if rounded and isinstance(store, loop.Store) and isinstance(store.value, loop.CastTo) and store.value.dtype in HALF:
        store = replace(store, value=store.value.x)
    match store:
        case loop.Store(output, (loop.Var(row), *index), loop.Load(source, at)) if source == name and row == kernel.row:
            to, own = arrays[output], arrays[name]
            same = to.has_rows and to.numel == own.numel and (to.dtype is own.dtype or (rounded and to.dtype in HALF))
            if same and _linear(flatten(tuple(index), to.shape)) == _linear(flatten(at, own.shape)) is not None:
                return Sum(found.gram, found.csr, copy, output)
    return found


def _linear(position: tuple[Affine, list[tuple[loop.Expr, int]]]) -> tuple[dict[str, int], int] | None:
    affine, rest = position
    return None if rest else ({lane: c for lane, c in affine.terms.items() if c}, affine.offset)


def _written(body: tuple[loop.Stmt, ...]) -> Iterator[str]:
    for stmt in statements(body):
        buffer = getattr(stmt, "buffer", None)
        if buffer is not None:
            yield buffer
