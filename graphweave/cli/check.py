"""`graphweave check`: certifies a function or model of a script (`graphweave.check`)."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphweave import check
from graphweave.cli.arguments import positive
from graphweave.core.errors import DataError

_NOT_OK = 1
"""Exit status if the certificate has problems."""


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=run)
    add = sub.add_argument
    add("function", metavar="SCRIPT.py:FUNCTION", help="a function without parameters that returns what is checked: "
        "a model or function, and its arguments after it, as `return model, x, edge_index`")  # fmt: skip
    add("-o", "--out", type=Path, action="append", default=[], metavar="FILE",
        help="also write FILE.html, FILE.json or FILE.txt; may be repeated")  # fmt: skip
    add("--inductor", action="store_true", help="also time torch.compile's own backend")
    add("--seconds", type=positive, default=10.0, help="about the time that timing may take (default: %(default)s)")
    add("--seed", type=int, default=0, help="of all random numbers (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Prints the certificate. The status is 0 if all is well with it, else 1."""
    made = _function(args.function)()
    fn, *given = made if isinstance(made, tuple) and made else (None,)
    if not callable(fn):
        raise DataError(
            f"{args.function} must return a model or function and its arguments (got {type(made).__name__}). "
            "Return them as `return model, x, edge_index`."
        )
    certificate = check(fn, *given, inductor=args.inductor, seconds=args.seconds, seed=args.seed)
    sys.stdout.write(str(certificate))
    for file in args.out:
        certificate.save(file)
    return 0 if certificate.ok else _NOT_OK


def _function(spec: str) -> Callable[[], Any]:
    """The function named by "SCRIPT.py:FUNCTION". The script is imported, as its own folder's other files can be."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise DataError(f"expected SCRIPT.py:FUNCTION with a file that exists (got {spec!r}). Name one.")
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise DataError(f"{file} is not a file that Python can import. Name one that ends in .py.")
    module = importlib.util.module_from_spec(found)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module  # as code that Dynamo traces is looked up there
    found.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise DataError(f"{file} has no function {name!r}. Name one of its functions without parameters.")
    return function
