"""`graphweave check`: certifies a function or model of a script (`graphweave.check`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graphweave import check
from graphweave.cli.arguments import positive
from graphweave.cli.script_function import function_of
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
    made = function_of(args.function)()
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
