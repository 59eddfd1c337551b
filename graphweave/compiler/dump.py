"""GRAPHWEAVE_DUMP: one numbered file for every stage of every compilation."""

from __future__ import annotations

import itertools

from graphweave.core.settings import settings
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.show import show

_number = itertools.count()


def dump_text(name: str, text: str) -> None:
    """Write `text` as the next file of the dump directory, if one is set."""
    folder = settings().dump
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{next(_number):04d}_{name}").write_text(text)


def dump_program(name: str, program: Program) -> None:
    if settings().dump is not None:
        dump_text(f"{name}.message.txt", show(program))
