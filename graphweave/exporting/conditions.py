"""The sizes of a run: which vary, how they depend on each other, and the conditions under which a form is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from graphweave.core.errors import ExportError
from graphweave.core.sizes import Size, Symbol, number, read
from graphweave.exporting.capture import Argument, WholeModel
from graphweave.exporting.sizes_text import as_cpp


def symbols_of(inputs: Sequence[Argument]) -> dict[Symbol, tuple[int, int]]:
    """The sizes that vary, each with the input and the dim that tell it."""
    found: dict[Symbol, tuple[int, int]] = {}
    for i, argument in enumerate(inputs):
        for d, size in enumerate(argument.sizes):
            if isinstance(size, Symbol):
                found.setdefault(size, (i, d))
    return found


def holds(form: WholeModel, sizes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a form is for inputs of these sizes."""
    known: dict[Size, int] = {s: sizes[i][d] for s, (i, d) in symbols_of(form.inputs).items()}
    for argument, given in zip(form.inputs, sizes, strict=True):
        if any(number(size, known) != n for size, n in zip(argument.sizes, given, strict=True)):
            return False
    values = {sympy.Symbol(s.name): n for s, n in known.items() if isinstance(s, Symbol)}
    return all(_decided(guard, values) for guard in form.guards)


def _decided(guard: sympy.Basic, values: Mapping[object, int]) -> bool:
    by_name = {str(symbol): n for symbol, n in values.items()}
    return bool(guard.subs({s: by_name[str(s)] for s in guard.free_symbols if str(s) in by_name}) == sympy.true)


def sizes_text(form: WholeModel, first: WholeModel) -> str:
    """The function that reads the sizes of a run from its inputs and checks them. Those that are compiled into the
    `first` form have been checked before."""
    symbols = symbols_of(form.inputs)
    names: dict[Size, str] = {symbol: f"sizes[{i}]" for i, symbol in enumerate(symbols)}
    lines = [f"sizes[{i}] = in[{a}].sizes[{d}];" for i, (a, d) in enumerate(symbols.values())]
    for i, argument in enumerate(form.inputs):
        for d, size in enumerate(argument.sizes):
            told = isinstance(size, Symbol) and symbols[size] == (i, d)
            if not told and not (isinstance(size, int) and size == first.inputs[i].sizes[d]):
                lines.append(f"expect_size(run, in[{i}].sizes[{d}], {as_cpp(size, names)}, {i}, {d});")
    for guard in form.guards:
        text = guard_text(guard, names)
        if text != "true":
            words = in_names(guard, form.inputs)
            lines.append(f'if (!({text})) wrong_sizes(run, "{words}");')
    body = "\n".join(f"  {line}" for line in lines)
    return f"void read_sizes(Run& run, const Value* in, int64_t* sizes) {{\n{body}\n}}\n"


_RELATIONS = {
    sympy.Eq: "==", sympy.Ne: "!=", sympy.Lt: "<", sympy.Le: "<=", sympy.Gt: ">", sympy.Ge: ">=",
}  # fmt: skip


def guard_text(guard: object, names: Mapping[Size, str]) -> str:
    """A condition on sizes as C++. Raises ExportError for one of another form."""
    if guard is sympy.true or guard is True:
        return "true"
    if isinstance(guard, sympy.Not):
        return f"!({guard_text(guard.args[0], names)})"
    if isinstance(guard, sympy.And | sympy.Or):
        joint = " && " if isinstance(guard, sympy.And) else " || "
        return joint.join(f"({guard_text(part, names)})" for part in guard.args)
    for relation, sign in _RELATIONS.items():
        if isinstance(guard, relation):
            left, right = (as_cpp(read(str(side)), names) for side in (guard.lhs, guard.rhs))
            return f"{left} {sign} {right}"
    raise ExportError(f"the model is right only where {guard}, which a library cannot look at. Change that condition.")


def in_names(guard: object, inputs: Sequence[Argument]) -> str:
    """A condition in the user's words: "x.size(0) >= 2"."""
    text = str(guard)
    for symbol, (i, d) in sorted(symbols_of(inputs).items(), key=lambda pair: -len(pair[0].name)):
        text = text.replace(symbol.name, f"{inputs[i].name}.size({d})")
    return text
