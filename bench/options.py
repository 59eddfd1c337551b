"""Options of a benchmark's command line, declared by their default values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Among:
    """An option with these choices: several of them if `default` is a tuple (by default all), else one."""

    def __init__(self, choices: Iterable[str], default: str | tuple[str, ...] | None = None) -> None:
        self.choices = tuple(choices)
        self.default = self.choices if default is None else default


def parser_of(doc: str | None, options: Mapping[str, Any]) -> argparse.ArgumentParser:
    """A parser of `options`, name -> default: a flag for a bool, several values for a tuple, else one of its type.

    A default that is a class (`Path`, `str`) stands for an option of this type that may be left out.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in options.items():
        choices = default.choices if isinstance(default, Among) else None
        value = default.default if isinstance(default, Among) else default
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=value)
        elif isinstance(value, type):
            parser.add_argument(flag, type=value)
        elif isinstance(value, tuple):
            parser.add_argument(flag, nargs="+", type=type(value[0]) if value else str, choices=choices, default=value)
        else:
            parser.add_argument(flag, type=type(value), choices=choices, default=value)
    return parser


COMMON: dict[str, Any] = {"threads": 2, "out": Path}
"""Options of every benchmark. `--out` is a file, or a folder for a file with the benchmark's name."""


def options_from(argv: Sequence[str] | None, doc: str | None, **options: Any) -> argparse.Namespace:
    """The command line of a benchmark that takes `options` and `COMMON`."""
    return parser_of(doc, {**COMMON, **options}).parse_args(argv)
