"""`graphweave export`: writes a model of a script as a shared library (`graphweave.export`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from graphweave import export
from graphweave.cli.script_function import function_of
from graphweave.core.errors import DataError


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=run)
    add = sub.add_argument
    add("function", metavar="SCRIPT.py:FUNCTION", help="a function without parameters that returns what is exported: "
        "a model or function, and example arguments after it, as `return model, x, edge_index`")  # fmt: skip
    add("folder", type=Path, help="the folder that is written")
    add("--target", help="other machines than this one: x86_64-linux or aarch64-linux, with -gnu (the default) or "
        "-musl after it. It needs the compiler of `pip install 'graphweave[toolchain]'`")  # fmt: skip
    add("--instruction-set", metavar="NAME[,NAME...]", type=_instruction_set, help="what a processor must have, such "
        "as x86-64-v3; with several names, the library chooses among them where it runs")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Writes the folder, and prints what the library takes and gives."""
    made = function_of(args.function)()
    model, *given = made if isinstance(made, tuple) and made else (None,)
    if not callable(model):
        raise DataError(
            f"{args.function} must return a model or function and example arguments (got {type(made).__name__}). "
            "Return them as `return model, x, edge_index`."
        )
    if isinstance(model, torch.nn.Module):
        model.eval()
    exported = export(model, given, args.folder, target=args.target, instruction_set=args.instruction_set)
    for kind in ("inputs", "outputs"):
        for value in exported.manifest[kind]:
            sizes = ", ".join(map(str, value["sizes"]))
            sys.stdout.write(f"{kind[:-1]} {value['name']}: {value['dtype']} [{sizes}]\n")
    for library in exported.manifest["machine"]["libraries"]:
        file = args.folder / library["file"]
        sys.stdout.write(f"{file}: {file.stat().st_size / 1024:.0f} KiB, {library['instruction_set']}\n")
    return 0


def _instruction_set(text: str) -> str | list[str]:
    """One name, or a list of those between commas. A comma at the end makes a list of one."""
    return [name for name in text.split(",") if name] if "," in text else text
