"""One case of the fuzzer: a function as source text, its arguments as text, and the calls to be made of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

Sizes = Mapping[str, int]
"""Numbers of rows by letter: N and M nodes of two types, E edges N -> N, B edges N -> M, G graphs, D features."""

Door = Literal["graphweave", "plain", "plain dynamic", "plain static"]
Mode = Literal["train", "no_grad", "inference"]
Kind = Literal["usual", "products", "choices"]
"""Of which moves most of a program is: any, those of `products.py`, those of `choices.py`."""

HEADER = (
    "import math\nimport random\n\nimport torch\nimport torch.nn.functional as F\nimport torch_geometric.utils as pyg\n"
)
"""The imports that the text of a function may use. Scripts that report a finding begin with it."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the function: `text` gives its value and may name the letters of sizes."""

    name: str
    text: str
    differentiable: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its sizes, the seed of its data, and an edit of the arguments before it (`src[3] = 9`), or ""."""

    sizes: tuple[tuple[str, int], ...]
    seed: int
    edit: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    source: str
    """`def f(...): ...`"""
    arguments: tuple[Argument, ...]
    calls: tuple[Call, ...]
    door: Door = "graphweave"
    mode: Mode = "train"
    left_out: tuple[int, ...] = ()
    """Positions of outputs that the loss does not use."""
    second: bool = False
    """Whether second derivatives are compared, of an energy that is formed from the outputs."""

    @property
    def needed(self) -> tuple[Argument, ...]:
        """The arguments that the function takes."""
        names = parameters(self.source)
        by_name = {a.name: a for a in self.arguments}
        return tuple(by_name[name] for name in names)


def parameters(source: str) -> tuple[str, ...]:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return tuple(a.arg for a in function.args.args)


_imported: dict[str, Any] = {}
exec(HEADER, _imported)


def namespace() -> dict[str, Any]:
    """The names that `HEADER` imports, and their values."""
    return dict(_imported)


def draw(case: Case, call: Call) -> list[Any]:
    """The arguments of one call. Those that are differentiable ask for a gradient, unless the mode is inference."""
    found = {**namespace(), **dict(call.sizes)}
    torch.manual_seed(call.seed)
    # Every argument is drawn, so that those left keep their numbers when others are taken away.
    for argument in case.arguments:
        found[argument.name] = eval(argument.text, found)
    if call.edit:
        exec(call.edit, found)
    if case.mode != "inference":
        for argument in case.arguments:
            if argument.differentiable:
                found[argument.name].requires_grad_()
    return [found[argument.name] for argument in case.needed]
