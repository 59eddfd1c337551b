"""Spaces, indices and values of a program in the user's words: `rows of x`, `edges of edge_index`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from graphweave.analysis.flow import ancestors, is_integral
from graphweave.analysis.statistics import Statistics
from graphweave.core.calls import Elements, Lead, facts_of
from graphweave.core.errors import Reason
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel

_MAX_SHOWN = 2
"""A list of names shows at most this many, followed by the number of names left out."""

_SAME_NUMBERS = (Elements.same, Elements.converted, Elements.reshaped)
"""Elements of a result that are those of the operand."""


@dataclass(frozen=True)
class Glossary:
    """The user's words for one captured graph, and the sizes of its spaces.

    `names` are the user's names of inputs, `spaces` words for spaces, `statistics` the row count of each space in the
    first call.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    spaces: Mapping[Space, str] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=Statistics)

    @staticmethod
    def of(program: ir.Program, names: Mapping[str, str], statistics: Statistics) -> Glossary:
        return Glossary(names, dict(_name_spaces(program, names)), statistics)

    def space(self, space: Space) -> str:
        return "shared data" if space == UNIT else self.spaces.get(space, "rows that the function makes")

    def bytes_of(self, t: ir.Type) -> int:
        return self.statistics.rows(t.space) * numel(t.shape) * t.dtype.itemsize

    def in_words(self, reason: Reason) -> str:
        """`reason`, given by a stage of the compiler, with the user's words in place of names of the IR."""
        return "".join(map(self._word, reason.parts))

    def _word(self, part: object) -> str:
        match part:
            case Space():
                return self.space(part)
            case ir.Type(space, shape, dtype):
                return f"{dtype.value} {list(shape)} on {self.space(space)}"
            case ir.MapType(dom, cod):
                return f"a map from {self.space(dom)} to {self.space(cod)}"
            case ir.Operand():
                return "a value"
        return str(part)


def index_words(program: ir.Program, ref: ir.Ref, names: Mapping[str, str]) -> str:
    """Where the numbers of an index come from: "edge_index[1]", "an index made from edge_index", or "an index"."""
    direct = _direct(program, ref, names)
    if direct:
        return direct
    found = _integers(program, ref, names)
    return f"an index made from {_listed(found)}" if found else "an index"


def _direct(program: ir.Program, ref: ir.Ref, names: Mapping[str, str]) -> str:
    node = program.nodes[ref]
    match node:
        case ir.Input(name):
            return names.get(name, "")
        case ir.MapOf(index):
            return _direct(program, index, names)
        case ir.Aten(target, (ir.Operand(x), 0, int(i))) if facts_of(target).rows is Lead.taken:
            inner = _direct(program, x, names)
            return f"{inner}[{i}]" if inner else ""
        case ir.Aten(target, (ir.Operand(x), *_)) if facts_of(target).elements in _SAME_NUMBERS:
            return _direct(program, x, names)
        case _:
            return ""


def _integers(program: ir.Program, ref: ir.Ref, names: Mapping[str, str]) -> list[str]:
    """The user's names of the integer tensors from which `ref` is computed."""
    needed = sorted(ancestors(program, (ref,)))
    inputs = ((r, n.name) for r in needed if isinstance(n := program.nodes[r], ir.Input))
    return list(dict.fromkeys(names[name] for r, name in inputs if name in names and is_integral(program, r)))


def _listed(words: Iterable[str]) -> str:
    words = list(words)
    more = len(words) - _MAX_SHOWN
    if more > 0:
        return f"{', '.join(words[:_MAX_SHOWN])} and {more} more"
    return " and ".join(words)


def _name_spaces(program: ir.Program, names: Mapping[str, str]) -> Iterator[tuple[Space, str]]:
    """Each space with its words: nodes are called by an argument that lies on the space, edges by their index
    tensors."""
    maps = [(n, t) for n, t in zip(program.nodes, program.types, strict=True) if isinstance(t, ir.MapType)]
    ends = {t.cod for _, t in maps}
    known: dict[Space, str] = {}
    for space, _ in program.spaces:
        if space == UNIT:
            continue
        indices = [n.index for n, t in maps if isinstance(n, ir.MapOf) and t.dom == space]
        is_edges = bool(indices) and space not in ends
        on = _arguments_on(program, space, names)
        if is_edges:
            made = list(dict.fromkeys(w for r in indices for w in _integers(program, r, names)))
            # An argument on the space tells the user more than an index that it was computed from.
            words = _without_ends(made) or on
        else:
            words = on or [w for w in _members(program, space, known)] or _from_values(program, space, names)
        if words:
            known[space] = _listed(words)
            yield space, f"{'edges' if is_edges else 'rows'} of {known[space]}"


def _arguments_on(program: ir.Program, space: Space, names: Mapping[str, str]) -> list[str]:
    """A list with the name of one input on `space`, a floating-point input if there is one; empty without inputs."""
    on = [
        (is_integral(program, r), names[n.name])
        for r, (n, t) in enumerate(zip(program.nodes, program.types, strict=True))
        if isinstance(n, ir.Input) and isinstance(t, ir.Type) and t.space == space and n.name in names
    ]
    return [min(on, key=lambda pair: pair[0])[1]] if on else []


def _members(program: ir.Program, space: Space, known: Mapping[Space, str]) -> list[str]:
    """Names for the rows of the spaces of which `space` is the disjoint union."""
    joins = (n for n in program.nodes if isinstance(n, ir.Join) and n.space == space)
    join = next(joins, None)
    if join is None:
        return []
    parts = [known.get(t.space, "") for r in join.xs if isinstance(t := program.types[r], ir.Type)]
    return list(dict.fromkeys(filter(None, parts)))


def _from_values(program: ir.Program, space: Space, names: Mapping[str, str]) -> list[str]:
    """The names of the arguments from which the first value on `space` is computed."""
    for ref, t in enumerate(program.types):
        if isinstance(t, ir.Type) and t.space == space:
            found = _integers(program, ref, names) or [
                names[n.name]
                for r in sorted(ancestors(program, (ref,)))
                if isinstance(n := program.nodes[r], ir.Input) and n.name in names
            ]
            return _without_ends(found)
    return []


def _without_ends(words: Iterable[str]) -> list[str]:
    """Names of graphs in place of names of their ends: "g.edges()[0]" and "g.edges()[1]" become one "g"."""
    return list(dict.fromkeys(w.split(".edges(")[0] for w in words))
