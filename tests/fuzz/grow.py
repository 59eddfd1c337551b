"""A random case by its number: a function of a few statements, a door, a mode, and calls of several sizes."""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from tests.fuzz import choices, dense, effects, extremes, products, rows, views  # noqa: F401  (they register their moves)
from tests.fuzz.case import Argument, Call, Case, Door, Kind, Mode
from tests.fuzz.growing import ARGUMENTS, FAMILIES, GIVEN, MOVES, Growing, Move, Rejected
from tests.fuzz.whole_graph import avoided

STATEMENTS = (6, 14)
STATEMENTS_FOR_RANKS = (3, 9)

DOORS: tuple[Door, ...] = ("graphweave", "graphweave", "plain", "plain dynamic", "plain dynamic", "plain static")
MODES: tuple[Mode, ...] = ("train",) * 8 + ("no_grad", "inference")

USUAL = {"N": (2, 14), "M": (2, 9), "E": (2, 40), "B": (2, 20), "G": (2, 5)}
AWKWARD = (
    {"E": 0, "B": 0},
    {"E": 1, "B": 1},
    {"N": 1, "M": 1, "E": 1, "B": 1, "G": 1},
    {"N": 1, "E": 3, "G": 1},
    {"N": 4, "M": 4, "E": 4, "B": 4, "G": 4},
    {"N": 6, "M": 6, "E": 6, "B": 6},
    {"N": 0, "M": 0, "E": 0, "B": 0, "G": 0},
    {"G": 1},
    {"N": 90, "E": 700, "M": 40, "B": 300, "G": 9},
)


LAYOUTS = (
    "{a} = {a}.unsqueeze(-1).transpose(0, -1).contiguous().transpose(0, -1).squeeze(-1)",
    "{a} = torch.stack([{a}, {a}], -1)[..., 0]",
    "{a} = torch.cat([{a}, {a}])[: {a}.shape[0]] if {a}.dim() else {a}",
    "{a} = torch.cat([{a}, {a}])[::2] if {a}.dim() else {a}",
    "{a} = {a}[:1].expand_as({a}) if {a}.dim() else {a}",
    "{a} = {a}.flip(0) if {a}.dim() else {a}",
)
"""Other strides or offsets of an argument in memory, of the same shape."""

EDITS = ("{a}[-1:] = {a}.max() + 40", "{a}[:1] = -1", "{a} = {b}", "{a} = {a}.clone().fill_(0)", "{a} = {a}.sort()[0]")
"""Edits of an index: out of range, counted from the end, repeated, all equal, sorted."""

PRODUCTS, CHOICES = 0.2, 0.15
"""Shares of the programs with rows in several dims, which have other arguments, and of those that sort and
choose rows. Their moves are drawn more often than any others."""

ALL_ARGUMENTS = (*ARGUMENTS, *products.ARGUMENTS)

NO_MAPS = ("count", "ei", "big", "mid", "byte", "odd")
"""Arguments of random integers, or drawn by such, that are no maps from rows to rows."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A case and the names of its constructs, as "family:spelling"."""

    case: Case
    constructs: tuple[str, ...]


def constructs() -> set[str]:
    """Every construct that a case may hold."""
    return {f"{family}:{key}" for family, spellings in FAMILIES.items() for key in spellings}


def grow(seed: int, doors: tuple[Door, ...] = DOORS, only: Kind | None = None) -> Grown:
    return _case(random.Random(seed), doors, STATEMENTS, frozenset(), only or _kind(seed))


def _kind(seed: int) -> Kind:
    share = random.Random(f"{seed} products").random()  # so that programs of one kind keep their numbers
    return "products" if share < PRODUCTS else "choices" if share < PRODUCTS + CHOICES else "usual"


def grow_for_ranks(seed: int) -> Grown:
    """A case for the parts of a graph: shorter, of fewer sizes, and in most programs without what needs the whole
    graph."""
    rng = random.Random(seed)
    found = _case(rng, DOORS, STATEMENTS_FOR_RANKS, frozenset() if rng.random() < 0.05 else avoided())
    calls = tuple(replace(call, edit="") for call in found.case.calls)
    return replace(found, case=replace(found.case, calls=(calls[0], calls[2])))


def _case(
    rng: random.Random, doors: tuple[Door, ...], length: tuple[int, int], avoid: frozenset[str], kind: Kind = "usual"
) -> Grown:
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyTorch says once a process must not decide what is kept
        g = _grown_of(kind, rng, length, avoid)
    source = _source(g)
    case = Case(source, _arguments(source, rng), (), rng.choice(doors), rng.choice(MODES))
    case = replace(case, calls=_calls(case, rng, kind == "products"))
    if case.mode == "train":
        case = replace(case, left_out=_left_out(source, rng), second=rng.random() < 0.15)
    return Grown(case, tuple(g.used))


def _left_out(source: str, rng: random.Random) -> tuple[int, ...]:
    """In one program of three, outputs that the loss does not use; it uses one at least."""
    if rng.random() < 0.67:
        return ()
    many = len(ast.parse(source).body[0].body[-1].value.elts)  # type: ignore[attr-defined]
    used = rng.randrange(many)
    return tuple(i for i in range(many) if i != used and rng.random() < 0.6)


def _grown(g: Growing, length: tuple[int, int], moves: Mapping[str, Move]) -> Growing:
    wanted = g.rng.randint(*length)
    names, weights = list(moves), [weight for _, weight in moves.values()]
    for _ in range(80):
        if len(g.statements) >= wanted:
            break
        g.pending = []
        (name,) = g.rng.choices(names, weights)
        try:
            moves[name][0](g)
        except Rejected:
            continue
    return g


def _grown_of(kind: Kind, rng: random.Random, length: tuple[int, int], avoid: frozenset[str]) -> Growing:
    if kind != "products":
        return _grown(Growing(rng, avoided=avoid), length, _mostly(choices.MOVES) if kind == "choices" else MOVES)
    values = [v for v in (*GIVEN, *products.GIVEN) if v.kind in ("real", "map", "mask", "table", "product mask")]
    g = Growing(rng, values, ALL_ARGUMENTS, products.sizes_tried())
    return _grown(g, length, _mostly(products.MOVES))


def _mostly(moves: Mapping[str, Move]) -> Mapping[str, Move]:
    """These moves in the first place, and all others."""
    return {f"first.{name}": (m, 8 * weight) for name, (m, weight) in moves.items()} | MOVES


def _source(g: Growing) -> str:
    kinds = ("real", "whole", "whole floats")
    made = [v.name for v in g.values if v.kind in kinds and v.name.startswith("v")]
    if not any(v.kind == "real" and v.name in made for v in g.values):
        g.statements.append(f"v{g.names} = x * 2")
        made.append(f"v{g.names}")
    outputs = [name for name in made if not _read_later(g, name)]
    for name in g.rng.sample(made, min(len(made), 1)):
        outputs += [name] * (name not in outputs)
    lines = [line for s in g.statements for line in s.splitlines()]
    lines.append(f"return {', '.join(outputs)}{',' if len(outputs) == 1 else ''}")
    return with_parameters(without_unread("\n".join(["def f():", *(f"    {line}" for line in lines)]) + "\n"))


def _read_later(g: Growing, name: str) -> bool:
    """Whether another statement reads the variable, so that its value is judged through another output."""
    named = re.compile(rf"\b{name}\b")
    return any(named.search(s) and not re.match(rf"{name}\b", s) for s in g.statements)


def without_unread(source: str) -> str:
    """Drops variables that nobody reads, because values that are not needed may leave out eager mode's errors."""
    tree = ast.parse(source)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    body = function.body
    for statement in reversed(list(body)):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            reads = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(tree))
            if reads == 1:
                body.remove(statement)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def with_parameters(source: str) -> str:
    """The function with the arguments that its text names, in the order of `ALL_ARGUMENTS`."""
    tree = ast.parse(source)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    parameters = [a.name for a in ALL_ARGUMENTS if a.name in named]
    body = source.split("\n", 1)[1]
    return f"def f({', '.join(parameters)}):\n{body}"


def arguments_of(source: str) -> tuple[Argument, ...]:
    named = source.split("\n", 1)[0][len("def f(") : -2].split(", ")
    return tuple(a for a in ALL_ARGUMENTS if a.name in named)


def _arguments(source: str, rng: random.Random) -> tuple[Argument, ...]:
    """In one program of four, some of the arguments require no gradient."""
    arguments = arguments_of(source)
    if rng.random() < 0.75:
        return arguments
    return tuple(replace(a, differentiable=a.differentiable and rng.random() < 0.5) for a in arguments)


def _calls(case: Case, rng: random.Random, several: bool) -> tuple[Call, ...]:
    ranges = USUAL | products.USUAL if several else USUAL
    awkward = products.AWKWARD if several else AWKWARD

    def usual() -> dict[str, int]:
        return {letter: rng.randint(*between) for letter, between in ranges.items()} | {"D": 4}

    first, second, third = usual(), usual(), usual() | rng.choice(awkward)
    if rng.random() < 0.1:
        second["D"] = 6
    order = [first, second, third] if rng.random() < 0.8 else [third, first, second]
    calls = [Call(tuple(sizes.items()), rng.randrange(1000)) for sizes in order]
    maps = [a.name for a in case.arguments if "randint" in a.text and a.name not in NO_MAPS]
    names = [a.name for a in case.arguments if "torch." in a.text]
    if names and rng.random() < 0.4:
        layout = rng.choice(LAYOUTS).format(a=rng.choice(names))
        calls[-1 if rng.random() < 0.5 else 0] = Call(tuple(first.items()), rng.randrange(1000), layout)
    if maps and rng.random() < 0.3:
        edit = rng.choice(EDITS).format(a=rng.choice(maps), b=rng.choice(maps))
        calls.append(Call(tuple(first.items()), rng.randrange(1000), edit))
    return tuple(calls)
