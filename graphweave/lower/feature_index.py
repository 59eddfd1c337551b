"""Feature indices as linear forms over lanes, carried through reshapes, broadcasts and loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from graphweave.ir.loop.nodes import IndexSum
from graphweave.ir.message.infer import numel

ZERO = IndexSum(())


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    out = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        out[i] = out[i + 1] * shape[i + 1]
    return tuple(out)


def scaled(form: IndexSum, factor: int, offset: int = 0) -> IndexSum:
    """factor * form + offset."""
    return IndexSum(tuple((v, c * factor) for v, c in form.terms), form.offset * factor + offset)


def total(forms: Iterable[IndexSum]) -> IndexSum:
    """Sum of linear forms, with the terms of each lane merged."""
    terms: dict[str, int] = {}
    offset = 0
    for form in forms:
        offset += form.offset
        for v, c in form.terms:
            terms[v] = terms.get(v, 0) + c
    return IndexSum(tuple((v, c) for v, c in terms.items() if c), offset)


def flatten(index: Sequence[IndexSum], shape: Sequence[int]) -> IndexSum:
    """Position in the row-major block of `shape`."""
    return total(scaled(form, s) for form, s in zip(index, strides(shape), strict=True))


def unflatten(flat: IndexSum, shape: Sequence[int], extents: Mapping[str, int]) -> tuple[IndexSum, ...] | None:
    """The index, one form a dim, whose flattening is `flat`; None if giving each lane to one dim makes none."""
    dims: list[list[tuple[str, int]]] = [[] for _ in shape]
    steps = strides(shape)
    highest = [0] * len(shape)  # largest value each dim's form takes
    offsets, rest = [], flat.offset
    for n, step in zip(shape, steps, strict=True):
        offsets.append(min(rest // step, n - 1) if n else 0)
        rest -= offsets[-1] * step
    for v, c in flat.terms:
        dim = next((i for i, step in enumerate(steps) if c >= step and c % step == 0 and shape[i] > 1), None)
        if dim is None:
            return None
        dims[dim].append((v, c // steps[dim]))
        highest[dim] += (extents[v] - 1) * (c // steps[dim])
    fits = all(h + o < max(n, 1) for h, o, n in zip(highest, offsets, shape, strict=True))
    if rest or not fits:
        return None
    return tuple(IndexSum(tuple(t), o) for t, o in zip(dims, offsets, strict=True))


def refine(shape: Sequence[int], others: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The coarsest loop nest over `shape` whose lanes also index every compatible one of `others` by linear forms."""
    sizes = set(_suffixes(shape))
    for other in others:
        merged = sizes | set(_suffixes(other))
        if numel(other) == numel(shape) and _is_chain(merged):
            sizes = merged
    ordered = sorted(sizes, reverse=True)
    return tuple(a // b for a, b in pairwise(ordered))


def broadcast_index(index: Sequence[IndexSum], shape: Sequence[int]) -> tuple[IndexSum, ...]:
    """Index into an operand of `shape` from the index of the (right-aligned) broadcast result."""
    tail = index[len(index) - len(shape) :]
    return tuple(ZERO if n == 1 else i for i, n in zip(tail, shape, strict=True))


def _suffixes(shape: Sequence[int]) -> list[int]:
    out = [1]
    for n in reversed(shape):
        out.append(out[-1] * n)
    return out


def _is_chain(products: set[int]) -> bool:
    ordered = sorted(products)
    return all(b % a == 0 for a, b in pairwise(ordered))
