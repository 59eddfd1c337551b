"""Products of two tensors in Dynamo's graph, `matmul`, `bmm`, `baddbmm` and `einsum`, by a letter for each dim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_letters
from typing import Any, TypeAlias

from torch import Tensor, fx

from graphweave.frontends.calls.captured_sizes import fixed, same
from graphweave.frontends.calls.dynamo_calls import call_name, example

Letters: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LetterProduct:
    """`einsum("left,right->out", left, right)`, to which a `term` may be added. A letter stands for one size."""

    left: fx.Node
    right: fx.Node
    of_left: Letters
    of_right: Letters
    of_out: Letters
    term: fx.Node | None = None

    def swapped(self) -> LetterProduct:
        return LetterProduct(self.right, self.left, self.of_right, self.of_left, self.of_out, self.term)

    def renamed(self, names: Mapping[str, str]) -> LetterProduct:
        """The product with other letters; those without a new name differ from all new ones."""
        left, right, out = (
            tuple(names.get(x, x + "'") for x in of) for of in (self.of_left, self.of_right, self.of_out)
        )
        return replace(self, of_left=left, of_right=right, of_out=out)

    def summed(self) -> set[str]:
        """The letters along which products are added up."""
        return (set(self.of_left) | set(self.of_right)) - set(self.of_out)

    def shared(self) -> set[str]:
        """The letters of both operands and of the result."""
        return set(self.of_left) & set(self.of_right) & set(self.of_out)


def product_of(node: fx.Node) -> LetterProduct | None:
    """The product that a call computes; None if it is none, or repeats an operand along a dim."""
    name, args = call_name(node), list(node.args)
    if name == "einsum":
        return _einsum(node)
    term = args.pop(0) if name == "baddbmm" and args else None
    if name not in ("matmul", "bmm", "baddbmm") or len(args) != 2 or node.kwargs:
        return None
    x, y = args
    if not _are_tensors(x, y) or (term is not None and not isinstance(term, fx.Node)):
        return None
    rank = example(node).dim()
    assert isinstance(x, fx.Node) and isinstance(y, fx.Node)
    if rank < 2 or example(x).dim() != rank or example(y).dim() != rank:
        return None
    *batch, row, column, inner = list(ascii_letters[: rank + 1])
    return _checked(
        LetterProduct(x, y, (*batch, row, inner), (*batch, inner, column), (*batch, row, column), term),
        example(node),
    )


def _einsum(node: fx.Node) -> LetterProduct | None:
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or not _are_tensors(*operands) or node.kwargs:
        return None
    sides = equation.replace(" ", "").replace("...", ".").split("->")
    inputs = sides[0].split(",")
    if len(sides) != 2 or len(inputs) != 2:
        return None
    values = [*map(example, operands), example(node)]
    left, right, out = (_spelled(text, x.dim()) for text, x in zip((*inputs, sides[1]), values, strict=True))
    x, y = operands
    assert isinstance(x, fx.Node) and isinstance(y, fx.Node)
    return _checked(LetterProduct(x, y, left, right, out), values[-1])


def _spelled(text: str, rank: int) -> Letters:
    """The letters of a side of an equation, with a number for each dim of an ellipsis, counted from the last one."""
    found: list[str] = []
    for letter in text:
        hidden = rank - len(text) + 1
        found += [str(i) for i in reversed(range(hidden))] if letter == "." else [letter]
    return tuple(found)


def _checked(product: LetterProduct, out: Tensor) -> LetterProduct | None:
    """The product, unless a letter stands twice in an operand, or for two sizes."""
    sizes: dict[str, Any] = {}
    values: Sequence[Tensor] = (example(product.left), example(product.right), out)
    for letters, x in zip((product.of_left, product.of_right, product.of_out), values, strict=True):
        if len(set(letters)) != len(letters) or len(letters) != x.dim():
            return None
        for letter, size in zip(letters, x.shape, strict=True):
            if not same(sizes.setdefault(letter, size), size):
                return None
    return product


def _are_tensors(*operands: object) -> bool:
    return all(isinstance(x, fx.Node) and isinstance(example(x), Tensor) for x in operands)


def spreads(x: Tensor, shape: Sequence[int]) -> bool:
    """Whether `x` broadcasts to `shape` and to nothing larger, in every call."""
    missing = len(shape) - x.dim()
    return missing >= 0 and all(fixed(n) == 1 or same(n, m) for n, m in zip(x.shape, shape[missing:], strict=True))
