"""A function as it grows: each statement is tried in eager mode, at several sizes, before it is kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from tests.fuzz.case import Argument, namespace

_T = TypeVar("_T")

TRIED = (
    {"N": 7, "M": 5, "E": 19, "B": 13, "G": 3, "D": 4},
    {"N": 9, "M": 8, "E": 31, "B": 11, "G": 2, "D": 6},
)
"""Sizes at which a statement is tried: all different, so that a value of the wrong rows or width does not fit."""

LARGE = 1e3
"""Upper limit on the numbers of a program, so that rounding stays small."""

MANY = 4000
"""Upper limit on the elements of a value at the sizes tried."""

TYPES, CLASSES = 4, 3

ARGUMENTS = (
    Argument("x", "torch.randn(N, D, dtype=torch.float64)", True),
    Argument("y", "torch.randn(M, D, dtype=torch.float64)", True),
    Argument("h", "torch.randn(N, dtype=torch.float64)", True),
    Argument("q", "torch.randn(N, 2, D, dtype=torch.float64)", True),
    Argument("e", "torch.randn(E, D, dtype=torch.float64)", True),
    Argument("a", "torch.randn(E, dtype=torch.float64)", True),
    Argument("ew", "torch.randn(E, 1, dtype=torch.float64)", True),
    Argument("eb", "torch.randn(B, D, dtype=torch.float64)", True),
    Argument("u", "torch.randn(G, D, dtype=torch.float64)", True),
    Argument("w", "torch.randn(D, D, dtype=torch.float64) / 2", True),
    Argument("wc", f"torch.randn(D, {CLASSES}, dtype=torch.float64) / 2", True),
    Argument("wt", f"torch.randn({TYPES}, D, D, dtype=torch.float64) / 2", True),
    Argument("att", "torch.randn(2, D, dtype=torch.float64) / 2", True),
    Argument("bias", "torch.randn(D, dtype=torch.float64)", True),
    Argument("s", "torch.randn((), dtype=torch.float64)", True),
    Argument("buf", "torch.randn(N, D, dtype=torch.float64)"),
    Argument("ei", "torch.randint(max(N, 1), (2, E))"),
    Argument("src", "torch.randint(max(N, 1), (E,))"),
    Argument("dst", "torch.randint(max(N, 1), (E,))"),
    Argument("sdst", "torch.randint(max(N, 1), (E,)).sort().values"),
    Argument("dst32", "torch.randint(max(N, 1), (E,), dtype=torch.int32)"),
    Argument("bsrc", "torch.randint(max(N, 1), (B,))"),
    Argument("bdst", "torch.randint(max(M, 1), (B,))"),
    Argument("batch", "torch.randint(max(G, 1), (N,)).sort().values"),
    Argument("parent", "torch.randint(max(N, 1), (N,))"),
    Argument("perm", "torch.randperm(N)"),
    Argument("et", f"torch.randint({TYPES}, (E,))"),
    Argument("label", f"torch.randint({CLASSES}, (N,))"),
    Argument("count", "torch.randint(5, (E,))"),
    Argument("emask", "torch.rand(E) > 0.4"),
    Argument("nmask", "torch.rand(N) > 0.4"),
    Argument("num_graphs", "G"),
    Argument("seen", "[]"),
    Argument(
        "big", "torch.tensor([2**63 - 1, -(2**63), 2**53 + 1, -(2**53) - 1, 2**31, -1, 0, 3])[torch.randint(8, (N,))]"
    ),
    Argument(
        "mid", "torch.tensor([2**31 - 1, -(2**31), 2**24 + 1, -1, 0, 3], dtype=torch.int32)[torch.randint(6, (N,))]"
    ),
    Argument("byte", "torch.tensor([0, 1, 127, 128, 255], dtype=torch.uint8)[torch.randint(5, (N,))]"),
    Argument(
        "odd",
        "torch.tensor([-0.0, 0.0, torch.inf, -torch.inf, torch.nan, 1e-310, 1e300, -1.0], dtype=torch.float64)"
        "[torch.randint(8, (N, D))]",
    ),
)


@dataclass(frozen=True, slots=True)
class Value:
    """A variable. `rows` names the rows that dim 0 counts ("" for none), `into` the rows that an index points to."""

    name: str
    rows: str
    kind: str = "real"
    into: str = ""


GIVEN = (
    *(Value(name, "N") for name in ("x", "h", "q")),
    Value("y", "M"),
    *(Value(name, "E") for name in ("e", "a", "ew")),
    Value("eb", "B"),
    Value("u", "G"),
    Value("wt", "R"),
    *(Value(name, "E", "map", "N") for name in ("src", "dst", "sdst", "dst32")),
    Value("bsrc", "B", "map", "N"),
    Value("bdst", "B", "map", "M"),
    Value("batch", "N", "map", "G"),
    Value("parent", "N", "map", "N"),
    Value("perm", "N", "map", "N"),
    Value("et", "E", "map", "R"),
    Value("label", "N", "int"),
    Value("count", "E", "int"),
    Value("emask", "E", "mask"),
    Value("nmask", "N", "mask"),
    *(Value(name, "N", "whole") for name in ("big", "mid", "byte")),
    Value("odd", "N", "odd"),
)
"""Arguments that moves find by themselves; they name weights, `buf`, `num_graphs` and `seen` in their text."""


class Rejected(Exception):
    """Eager mode refuses the statement, or its numbers grow too large, or nothing fits the move."""


@dataclass(slots=True)
class Growing:
    rng: random.Random
    values: list[Value] = field(default_factory=lambda: list(GIVEN))
    arguments: tuple[Argument, ...] = ARGUMENTS
    tried: Sequence[Mapping[str, int]] = TRIED
    statements: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    """Constructs of the statements kept, as "family:spelling"."""
    environments: list[dict[str, Any]] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    names: int = 0
    avoided: frozenset[str] = frozenset()
    """Constructs that are never spelled, and arguments that are never picked."""

    def __post_init__(self) -> None:
        self.environments = [self._fresh(sizes) for sizes in self.tried]

    def choose(self, options: Sequence[_T]) -> _T:
        if not options:
            raise Rejected
        return options[self.rng.randrange(len(options))]

    def spell(self, family: str, **words: str) -> str:
        """A spelling of the family, filled in. It counts as used if the statement is kept."""
        key = self.choose([key for key in FAMILIES[family] if f"{family}:{key}" not in self.avoided])
        self.pending.append(f"{family}:{key}")
        return FAMILIES[family][key].format(**words)

    def pick(
        self, rows: str | None = None, kind: str = "real", into: str | None = None, fits: Callable[[Value], bool] = bool
    ) -> Value:
        """A value of that kind, preferably one that the function computes rather than an argument."""
        found = [
            v for v in self.values
            if v.kind == kind and rows in (None, v.rows) and into in (None, v.into) and v.name not in self.avoided
            and fits(v)
        ]  # fmt: skip
        made = [v for v in found if v.name.startswith("v")]
        return self.choose(made[-3:] if made and self.rng.random() < 0.75 else found)

    def shape(self, value: Value) -> torch.Size:
        return self.environments[0][value.name].shape

    def dims(self, *wanted: int) -> Callable[[Value], bool]:
        return lambda value: len(self.shape(value)) in wanted

    def rows_of(self, rows: str) -> str:
        """An expression for the number of rows."""
        if rows == "G" and self.rng.random() < 0.3:
            return "num_graphs"
        value = self.pick(rows, fits=lambda v: len(self.shape(v)) > 0)
        return self.choose((f"{value.name}.size(0)", f"{value.name}.shape[0]", f"len({value.name})"))

    def new(self, text: str, rows: str, kind: str = "real", into: str = "") -> Value:
        """Adds `text` as a new variable. Raises Rejected, and leaves everything as it was, where that does not work."""
        name = f"v{self.names}"
        self.run(f"{name} = {text}")
        value = Value(name, rows, kind, into)
        self._look_at(value)
        self.names += 1
        self.values.append(value)
        return value

    def run(self, statement: str) -> None:
        """Runs a statement that has no value of its own. Raises Rejected where eager mode raises an error."""
        try:
            for env in self.environments:
                random.seed(0)  # a program follows from its number alone, also where it asks Python's generator
                exec(statement, env)
        except Exception as error:
            if statement.split(" = ")[0] in self.environments[0] or " = " not in statement:
                self.restart()  # it may have written into another value
            raise Rejected from error
        self.statements.append(statement)
        self.used += self.pending
        self.pending = []

    def restart(self) -> None:
        """Run the statements kept once more, from the start."""
        self.pending = []
        self.environments = [self._fresh(sizes) for sizes in self.tried]
        for env in self.environments:
            for statement in self.statements:
                random.seed(0)
                exec(statement, env)

    def take_back(self, statements: int) -> None:
        """Forget all but the first statements."""
        del self.statements[statements:]
        self.restart()
        self.values = [v for v in self.values if v.name in self.environments[0]]

    def _look_at(self, value: Value) -> None:
        rows = {id(env): env[self.values[0].name].shape[0] for env in self.environments} if value.rows == "N" else {}
        for env in self.environments:
            result = env[value.name]
            good = isinstance(result, Tensor) and result.numel() <= MANY and (not value.rows or result.dim() > 0)
            if good and rows:
                good = result.shape[0] == rows[id(env)]
            if good and value.kind == "real":
                good = result.is_floating_point() and bool((result.detach().abs() < LARGE).all())
            if not good:
                self.statements.pop()
                raise Rejected

    def _fresh(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        env = {**namespace(), **sizes}
        torch.manual_seed(len(sizes))
        for argument in self.arguments:
            made = eval(argument.text, env)
            env[argument.name] = made.requires_grad_() if argument.differentiable else made
        return env


FAMILIES: dict[str, dict[str, str]] = {}
"""Family -> name of the spelling -> its text, with words in braces."""

Move: TypeAlias = "tuple[Callable[[Growing], None], int]"
"""What a move does, and how often it is drawn."""

MOVES: dict[str, Move] = {}
"""Moves by name."""


def family(name: str, spellings: dict[str, str]) -> str:
    FAMILIES[name] = spellings
    return name


def move(
    weight: int, among: dict[str, Move] = MOVES
) -> Callable[[Callable[[Growing], None]], Callable[[Growing], None]]:
    def register(function: Callable[[Growing], None]) -> Callable[[Growing], None]:
        among[function.__name__] = (function, weight)
        return function

    return register
