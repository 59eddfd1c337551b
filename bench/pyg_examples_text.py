"""The changed line: where it stands in the text of a program, and what it says.

A program makes its model by a statement such as `model = Net().to(device)`. The line follows the last of these
statements: `model = graphweave.compile(model)`. If the model is trained by a method, as autoencoders are, the line
compiles that method: `model.encode = graphweave.compile(model.encode)`. A statement that compiles the model otherwise
(`model = torch.compile(model)`) is replaced.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

OTHER_COMPILERS = ("torch.compile", "torch.jit.script", "torch_geometric.compile")
"""Functions whose statement the changed line replaces."""

NOT_FORWARD = {
    "train", "eval", "parameters", "zero_grad", "to", "reset_parameters", "named_parameters", "state_dict", "modules",
}  # fmt: skip
"""Methods of a model that are no part of the computation."""

MODULE = "graphweave"


@dataclass(frozen=True, slots=True)
class Change:
    """The program with the line and without it, and the line itself. `replaced` is the statement in its place."""

    line: str
    number: int
    changed: str
    unchanged: str
    replaced: str = ""


class NoPlace(Exception):
    """The program has no statement after which the line could stand. The message says why."""


def change(text: str, what: str | None = None) -> Change:
    """The change of a program. `what` names the model or method that is compiled, if the rule does not find it."""
    tree = ast.parse(text)
    what = what or trained(tree)
    name = what.split(".")[0]
    places = [place for place in statements(tree) if name in targets(place)]
    if not places:
        raise NoPlace(f"no statement assigns `{name}`")
    others = [place for place in places if is_other_compiler(place)]
    place = others[-1] if others else places[-1]
    lines = text.splitlines(keepends=True)
    line = f"{what} = {MODULE}.compile({what})"
    new = " " * place.col_offset + line + "\n"
    start, end = place.lineno - 1, place.end_lineno or place.lineno
    if others:
        kept = lines[:start] + ["\n"] * (end - start) + lines[end:]
        put = [new, *["\n"] * (end - start - 1)]
        return Change(line, place.lineno, "".join(lines[:start] + put + lines[end:]), "".join(kept), ast.unparse(place))
    return Change(line, end + 1, "".join([*lines[:end], new, *lines[end:]]), text)


def trained(tree: ast.AST) -> str:
    """What the training function calls between clearing gradients and `backward`: "model", or "model.encode".

    Of the names that a statement of the program assigns, it is the first whose call there is evaluated.
    """
    known = {name for place in statements(tree) for name in targets(place)}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for body in _bodies(tree):
        backward = min((call.lineno for call in _calls(body) if _ends(call.func, "backward")), default=None)
        if backward is None:
            continue
        start = max((c.lineno for c in _calls(body) if _ends(c.func, "zero_grad") and c.lineno <= backward), default=0)
        calls = sorted((c for c in _calls(body) if start <= c.lineno), key=lambda c: (c.end_lineno, c.end_col_offset))
        for call in calls:
            match call.func:
                case ast.Name(id=name) if name in known - defined:
                    return name
                case ast.Attribute(value=ast.Name(id=name), attr=method) if (
                    name in known and method not in NOT_FORWARD and _is_model(name)
                ):
                    return f"{name}.{method}"
    raise NoPlace("no function of the program calls a model and then `backward`")


def _is_model(name: str) -> bool:
    """Only variables that are called models or encoders are taken to be modules, when a method of theirs is called."""
    return any(word in name for word in ("model", "encoder", "net"))


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Assignments in the order of the text, of the module, of its `if` blocks, and of functions; not of classes.

    An assignment in one branch of a choice stands for the whole choice, so that the line follows all branches; the
    block of `if __name__ == "__main__"` is none.
    """
    for node in getattr(tree, "body", []):
        match node:
            case ast.Assign() | ast.AnnAssign():
                yield node
            case ast.FunctionDef():
                yield from statements(node)
            case ast.If() if "__name__" in ast.unparse(node.test):
                yield from statements(node)
            case ast.If() | ast.With() | ast.For() | ast.Try():
                yield node


def targets(place: ast.stmt) -> set[str]:
    """The names that a statement binds; `model.weight = w` binds none."""
    found: set[str] = set()
    for node in ast.walk(place):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = (one for one in ast.walk(target) if isinstance(one, ast.Name))
                found.update(one.id for one in names if isinstance(one.ctx, ast.Store))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def is_other_compiler(place: ast.stmt) -> bool:
    calls = (node for node in ast.walk(place) if isinstance(node, ast.Call))
    return isinstance(place, ast.Assign) and any(ast.unparse(call.func) in OTHER_COMPILERS for call in calls)


def _bodies(tree: ast.AST) -> Iterator[ast.AST]:
    """Functions first, in the order of the text, then the module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
    yield tree


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _ends(function: ast.expr, name: str) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == name


def with_lending(text: str) -> tuple[str, str]:
    """The text with a line before its first import of PyG that lends what is not installed, and that line."""
    places = [node.lineno for node in ast.parse(text).body if "torch_geometric" in ast.unparse(node)]
    lines = text.splitlines(keepends=True)
    line = f"import {MODULE}.pyg"
    start = places[0] - 1
    return "".join([*lines[:start], line + "\n", *lines[start:]]), line
