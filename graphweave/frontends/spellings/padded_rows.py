"""Tensors of a dense batch, as rows: which dim of a padded tensor holds what, and the calls that keep rows apart.

A padded tensor has a row at each of graphs * places positions, of which a mask chooses the real ones. `Padded` says of
a call of Dynamo's graph that it is such a tensor, how its dims are made of graphs, places and features, and which node
holds its real rows without the padding. `RULES` give the rows of a call's result from those of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import sympy
import torch
from torch import Tensor, fx

from graphweave.frontends.calls.captured_sizes import Size, dim_of, fixed, same
from graphweave.frontends.calls.dynamo_calls import call_name, example

GRAPHS: Literal["graphs"] = "graphs"
PLACES: Literal["places"] = "places"
OTHERS: Literal["others"] = "others"

Part: TypeAlias = "Literal['graphs', 'places', 'others'] | int"
"""A factor of a dim: the graphs, the places of a graph, or so many features, more than one. The `others` are as many as
the places: of pairs of places, those of which a mask says nothing."""
Dims: TypeAlias = tuple[tuple[Part, ...], ...]
"""For each dim of a tensor its parts, row-major. A dim of size 1 has none."""


@dataclass(frozen=True, slots=True)
class Padding:
    """A dense batch: the graph of each row, where the rows of each graph begin, and its sizes; `longest` is the number
    of places as an argument of calls."""

    batch: fx.Node
    ptr: fx.Node
    longest: fx.Node | int
    graphs: Size
    places: Size

    def size(self, part: Part) -> Size:
        return part if isinstance(part, int) else self.graphs if part == GRAPHS else self.places


@dataclass(frozen=True, slots=True)
class Padded:
    """A padded tensor, whose real rows `rows` holds: [rows, ...] with a dim for each part of `dims` that is features,
    in their order."""

    rows: fx.Node
    dims: Dims
    padding: Padding


@dataclass(frozen=True, slots=True)
class Mask:
    """A tensor that depends on the graph and the place alone: true where a row is `real`, or where it is `padding`; 0
    everywhere (`zero`); 0 where a row is real and -inf elsewhere (`added`). Along other dims it is repeated.

    One that `hides` the padding is false or -inf there, and may be anything elsewhere; one of bools that is `hidden` is
    true there.
    """

    kind: Literal["real", "padding", "zero", "added", "hides", "hidden"]
    dims: Dims
    padding: Padding


Value: TypeAlias = "Padded | Mask | tuple[Padded, ...]"
Known: TypeAlias = Mapping[fx.Node, Value]
Rule: TypeAlias = Callable[[fx.Node, Known], "Value | None"]
"""A rule finds what is known of the result of a call; None if nothing is."""


def features(dims: Dims) -> list[int]:
    """The parts that are features: the sizes of a row's dims."""
    return [part for dim in dims for part in dim if isinstance(part, int)]


def is_features(dim: Sequence[Part]) -> bool:
    return all(isinstance(part, int) for part in dim)


def width(dim: Sequence[Part]) -> int:
    """The size of a dim that holds features only."""
    return math.prod(part for part in dim if isinstance(part, int))


def as_dim(size: int) -> tuple[Part, ...]:
    """The parts of a dim of `size` features."""
    return (size,) if size != 1 else ()


def regrouped(dims: Dims, sizes: Sequence[Size], padding: Padding) -> Dims | None:
    """The dims after a reshape to `sizes`; None if a dim would hold a part of the graphs or places."""
    left, out = [part for dim in dims for part in dim], []
    for size in sizes:
        group: list[Part] = []
        rest: Size | None = size
        while rest is not None and fixed(rest) != 1:
            if not left:
                return None
            part, whole = left.pop(0), rest
            rest = _quotient(whole, padding.size(part))
            count = fixed(whole)
            if rest is None and isinstance(part, int) and count and part % count == 0:
                left.insert(0, part // count)
                part, rest = count, 1
            group.append(part)
        if rest is None:
            return None
        out.append(tuple(group))
    return None if left else tuple(out)


def _quotient(size: Size, part: Size) -> Size | None:
    """size / part if it is a whole number in every call, else None."""
    if same(size, part):
        return 1
    m, n = fixed(size), fixed(part)
    if m is not None and n is not None:
        return m // n if n and m % n == 0 else None
    if not isinstance(size, torch.SymInt):
        return None
    found = sympy.cancel(size.node.expr / (part.node.expr if isinstance(part, torch.SymInt) else part))
    if found.as_numer_denom()[1] != 1:
        return None
    number: Size = size.node.shape_env.create_symintnode(found, hint=None)
    return number


def reshaped(x: Padded, dims: Dims) -> Padded:
    """`x` with these dims, whose features are those of x, divided or put together in their order."""
    rows = x.rows
    if features(x.dims) != features(dims):
        rows = rows.graph.call_method("reshape", (rows, (-1, *features(dims))))
    return Padded(rows, dims, x.padding)


def with_whole_dim(x: Padded, at: int) -> Padded:
    """`x`, whose dim `at`, which holds features only, has one part."""
    return reshaped(x, (*x.dims[:at], as_dim(width(x.dims[at])), *x.dims[at + 1 :]))


def row_dim(dims: Dims, at: int) -> int:
    """The dim of rows that holds the features of dim `at`, which has one part."""
    return 1 + len(features(dims[:at]))


# ---------------------------------------------------------------- the calls


def _operand(node: fx.Node, known: Known) -> Any:
    return known.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None


def _same(node: fx.Node, known: Known) -> Value | None:
    return _operand(node, known)


def _reshape(node: fx.Node, known: Known) -> Value | None:
    """Any call that gives the same elements in row-major order."""
    x = _operand(node, known)
    if not isinstance(x, Padded | Mask):
        return None
    dims = regrouped(x.dims, example(node).shape, x.padding)
    if dims is None:
        return None
    return reshaped(x, dims) if isinstance(x, Padded) else replace(x, dims=dims)


def _permute(node: fx.Node, known: Known) -> Value | None:
    x = _operand(node, known)
    if not isinstance(x, Padded | Mask):
        return None
    rank, given = len(x.dims), list[Any](node.args[1:] or node.kwargs.values())
    if call_name(node) == "permute":
        order = [dim_of(d, rank) for d in (given[0] if isinstance(given[0], tuple | list) else given)]
    else:
        a, b = (dim_of(d, rank) for d in given)
        order = list(range(rank))
        order[a], order[b] = order[b], order[a]
    dims = tuple(x.dims[d] for d in order)
    if isinstance(x, Mask):
        return replace(x, dims=dims)
    places = [[row_dim(x.dims, d) + i for i in range(len(features(x.dims[d : d + 1])))] for d in order]
    moved = [0, *(place for dim in places for place in dim)]
    rows = x.rows if moved == sorted(moved) else x.rows.graph.call_method("permute", (x.rows, *moved))
    return Padded(rows, dims, x.padding)


def _expand(node: fx.Node, known: Known) -> Value | None:
    """A mask that is repeated along dims of size 1."""
    x = _operand(node, known)
    sizes = example(node).shape
    if not isinstance(x, Mask) or len(sizes) != len(x.dims):
        return None
    dims = []
    for dim, size in zip(x.dims, sizes, strict=True):
        count = fixed(size)
        if not dim and count is None:
            return None
        dims.append(dim or as_dim(count or 1))
    return replace(x, dims=tuple(dims))


def _item(node: fx.Node, known: Known) -> Value | None:
    """An item of a list, row `i` of a first dim of features, or a mask with new dims."""
    x, index = _operand(node, known), node.args[1]
    if isinstance(x, tuple):
        return x[index] if isinstance(index, int) else None
    if isinstance(x, Padded) and isinstance(index, int):
        return _row(x, 0, index)
    whole = isinstance(index, tuple) and all(i is None or i == slice(None) for i in index)
    return _reshape(node, known) if isinstance(x, Mask) and whole else None


def _select(node: fx.Node, known: Known) -> Value | None:
    x = _operand(node, known)
    if not isinstance(x, Padded) or len(node.args) != 3 or not isinstance(node.args[2], int):
        return None
    return _row(x, dim_of(node.args[1], len(x.dims)), node.args[2])  # type: ignore[arg-type]


def _row(x: Padded, dim: int, index: int) -> Padded | None:
    if not is_features(x.dims[dim]):
        return None
    whole = with_whole_dim(x, dim)
    rows = whole.rows
    if whole.dims[dim]:
        rows = rows.graph.call_method("select", (rows, row_dim(whole.dims, dim), index))
    return Padded(rows, (*whole.dims[:dim], *whole.dims[dim + 1 :]), x.padding)


def _parts(node: fx.Node, known: Known) -> Value | None:
    """`chunk`, `split` or `unbind` of a dim of features, by the parts' shapes."""
    x, results = _operand(node, known), example(node)
    at = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    if not isinstance(x, Padded) or not isinstance(at, int) or len(results[0].shape) != len(x.dims):
        return None
    at = dim_of(at, len(x.dims))
    whole = with_whole_dim(x, at) if is_features(x.dims[at]) else None
    if whole is None or not whole.dims[at]:
        return None
    found, begin, dim = [], 0, row_dim(whole.dims, at)
    for part in results:
        size = fixed(part.shape[at])
        if not size:
            return None
        rows = x.rows.graph.call_method("narrow", (whole.rows, dim, begin, size))
        rows = rows if size != 1 else x.rows.graph.call_method("squeeze", (rows, dim))
        found.append(Padded(rows, (*whole.dims[:at], as_dim(size), *whole.dims[at + 1 :]), x.padding))
        begin += size
    return tuple(found)


def _linear(node: fx.Node, known: Known) -> Value | None:
    x, operands = _operand(node, known), [*node.args[1:], *node.kwargs.values()]
    if not isinstance(x, Padded) or not is_features(x.dims[-1]) or not x.dims[-1] or _any_known(operands, known):
        return None
    whole, size = with_whole_dim(x, len(x.dims) - 1), fixed(example(node).shape[-1])
    if not size:
        return None
    rows = x.rows.graph.call_function(node.target, (whole.rows, *node.args[1:]), dict(node.kwargs))  # type: ignore[arg-type]
    rows = rows if size != 1 else x.rows.graph.call_method("squeeze", (rows, -1))
    return Padded(rows, (*x.dims[:-1], as_dim(size)), x.padding)


def _layer_norm(node: fx.Node, known: Known) -> Value | None:
    x, operands = _operand(node, known), [*node.args[2:], *node.kwargs.values()]
    shape = node.args[1] if len(node.args) > 1 else ()
    if not isinstance(x, Padded) or len(shape) != 1 or not x.dims[-1] or _any_known(operands, known):  # type: ignore[arg-type]
        return None
    if not is_features(x.dims[-1]):
        return None
    whole = with_whole_dim(x, len(x.dims) - 1)
    rows = x.rows.graph.call_function(node.target, (whole.rows, *node.args[1:]), dict(node.kwargs))  # type: ignore[arg-type]
    return Padded(rows, whole.dims, x.padding)


def _dropout(node: fx.Node, known: Known) -> Value | None:
    """A dropout draws for the rows alone, and nothing where it drops nothing."""
    p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    return _operand(node, known) if p == 0 or training is False else _each(node, known)


def _each(node: fx.Node, known: Known) -> Value | None:
    """A function of each element, of one padded tensor."""
    x = _operand(node, known)
    if not isinstance(x, Padded) or _any_known([*node.args[1:], *node.kwargs.values()], known):
        return None
    rows = x.rows.graph.create_node(node.op, node.target, (x.rows, *node.args[1:]), dict(node.kwargs))
    return Padded(rows, x.dims, x.padding)


_OTHERS: Mapping[str, Literal["real", "padding", "hides", "hidden"]]
_OTHERS = {"real": "padding", "padding": "real", "hides": "hidden", "hidden": "hides"}
"""The kind of a mask -> that of its opposite."""


def _not(node: fx.Node, known: Known) -> Value | None:
    x = _operand(node, known)
    is_mask = isinstance(x, Mask) and example(node).dtype == torch.bool
    return replace(x, kind=_OTHERS[x.kind]) if is_mask and x.kind in _OTHERS else None


def _zeros(node: fx.Node, known: Known) -> Value | None:
    x = _operand(node, known)
    return replace(x, kind="zero") if isinstance(x, Mask) else None


def masked(node: fx.Node, known: Known) -> Value | None:
    """`masked_fill` of padding: real rows stay, and zeros of a mask become those that are added to scores. In place,
    only the latter is followed."""
    name = call_name(node)
    if name not in ("masked_fill", "masked_fill_") or len(node.args) != 3:
        return None
    x, mask = (known.get(a) if isinstance(a, fx.Node) else None for a in node.args[:2])
    if not isinstance(mask, Mask) or mask.kind != "padding" or not isinstance(x, Padded | Mask):
        return None
    if mask.padding != x.padding or not _spreads(mask.dims, x.dims):
        return None
    if isinstance(x, Padded):
        return x if name == "masked_fill" else None
    added = x.kind == "zero" and node.args[2] == -math.inf and mask.dims == x.dims
    return replace(x, kind="added") if added else None


def _spreads(mask: Dims, over: Dims) -> bool:
    """Whether a mask broadcasts against a tensor so that graphs meet graphs, and places meet places."""
    if len(mask) > len(over):
        return False
    pairs = zip(((),) * (len(over) - len(mask)) + mask, over, strict=True)
    return all(m in ((), o) for m, o in pairs) and features(mask) == [] and sum(map(len, mask)) == 2


def _pointwise(node: fx.Node, known: Known) -> Value | None:
    """A function of the elements of several tensors, of which some are padded and others are the same for all rows."""
    operands = [known.get(a) if isinstance(a, fx.Node) else None for a in node.args]
    padded = [x for x in operands if isinstance(x, Padded)]
    if not padded or node.kwargs or any(isinstance(x, Mask | tuple) for x in operands):
        return None
    if any(x.padding != padded[0].padding for x in padded):
        return None
    rank = len(example(node).shape)
    shapes = []
    for arg, x in zip(node.args, operands, strict=True):
        dims = x.dims if isinstance(x, Padded) else _dims_of_shared(arg)
        if dims is None or len(dims) > rank:
            return None
        shapes.append(((),) * (rank - len(dims)) + dims)
    joint = [_joint(dims) for dims in zip(*shapes, strict=True)]
    if any(dim is None for dim in joint):
        return None
    result: Dims = tuple(dim or () for dim in joint)
    graph, args = padded[0].rows.graph, []
    for arg, x, dims in zip(node.args, operands, shapes, strict=True):
        if not isinstance(example(arg), Tensor):
            args.append(arg)
            continue
        sizes = [n if own else 1 for own, dim in zip(dims, result, strict=True) for n in features((dim,))]
        if isinstance(x, Padded):
            args.append(graph.call_method("reshape", (x.rows, (-1, *sizes))))
        else:
            args.append(graph.call_method("reshape", (arg, tuple(sizes))))
    rows = graph.create_node(node.op, node.target, tuple(args))
    return Padded(rows, result, padded[0].padding)


def _dims_of_shared(arg: object) -> Dims | None:
    """The dims of an operand that no row has to itself; None if data decides one of them."""
    value = example(arg)
    if not isinstance(value, Tensor):
        return () if isinstance(value, int | float) else None
    sizes = [fixed(size) for size in value.shape]
    return None if None in sizes or 0 in sizes else tuple(as_dim(size or 1) for size in sizes)


def _joint(dims: Sequence[tuple[Part, ...]]) -> tuple[Part, ...] | None:
    """The parts of a dim of a result, of which operands have these or, where they are repeated, none."""
    own = [dim for dim in dims if dim]
    if all(dim == own[0] for dim in own):
        return own[0] if own else ()
    return as_dim(width(own[0])) if all(is_features(d) and width(d) == width(own[0]) for d in own) else None


def _any_known(args: Sequence[object], known: Known) -> bool:
    return any(isinstance(a, fx.Node) and a in known for a in args)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("contiguous", "clone", "detach"), _same),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"), _reshape),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "permute"), _permute),
    "expand": _expand, "getitem": _item, "select": _select,
    **dict.fromkeys(("chunk", "split"), _parts),
    "linear": _linear, "layer_norm": _layer_norm, "dropout": _dropout,
    **dict.fromkeys(
        ("relu", "gelu", "elu", "silu", "leaky_relu", "sigmoid", "tanh", "exp", "neg", "softplus", "to", "float"), _each
    ),
    **dict.fromkeys(("invert", "logical_not"), _not),
    "zeros_like": _zeros, "masked_fill": masked,
    **dict.fromkeys(("add", "sub", "mul", "truediv"), _pointwise),
}  # fmt: skip
"""Name of a call -> its rule. Calls that are not listed end what is known."""
