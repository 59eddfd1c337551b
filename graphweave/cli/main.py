"""The command `graphweave`: parses the command line, runs a subcommand, turns errors into one line and a status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from graphweave import __version__
from graphweave.core import extras
from graphweave.core.errors import GraphweaveError

_COMMANDS = {
    "train": ("train", "train a model: classify nodes, graphs or points, predict links, recommend"),
    "compare": ("compare", "train by graphweave, eager PyTorch and torch.compile, and write a page about it"),
    "bench": ("bench", "time a training step: compiled, tuned, and by eager PyTorch"),
    "check": ("check", "certify a model on your data: errors, repeatability, speed, memory"),
    "explain": ("explain", "run a program, and write a page about all that it compiles"),
    "profile": ("profile", "the same with measured times: where a training step spends them"),
    "export": ("export", "write a model as a shared library that needs neither Python nor PyTorch"),
    "doctor": ("doctor", "what is installed here, and whether kernels work"),
    "cache": ("cache", "carry what is compiled to another machine of the same kind, as one file"),
    "partition": ("parts", "write a graph's parts for training on several ranks"),
    "completion": ("completion", "print the script by which bash, zsh or fish completes this command line"),
}
"""Subcommand -> the module that defines it, loaded when it is run, as some take seconds, and what it does."""
BAD_INPUT = 2
_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """An argparse parser that prints an error as one line, which points to the subcommand's help if one was named."""

    subcommand: str = ""

    def error(self, message: str) -> NoReturn:
        prog = f"{self.prog} {self.subcommand}" if self.subcommand else self.prog
        self.exit(BAD_INPUT, f"{prog}: error: {message} (see {prog} --help)\n")


def parser(*wanted: str) -> argparse.ArgumentParser:
    """The parser of the command line. Only the `wanted` commands have their arguments."""
    top = _Parser(prog="graphweave", description="A compiler for graph neural networks.", allow_abbrev=False)
    top.subcommand = wanted[0] if len(wanted) == 1 else ""
    top.add_argument("--version", action="version", version=f"graphweave {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, what) in _COMMANDS.items():
        sub = commands.add_parser(name, help=what, allow_abbrev=False)
        if name in wanted:
            import_module(f"graphweave.cli.{module}").add_arguments(sub)
    return top


def whole_parser() -> argparse.ArgumentParser:
    """The parser with the arguments of all commands."""
    return parser(*_COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the subcommand's status, 2 for input that cannot be used, 130 when interrupted.

    argparse itself raises SystemExit (status 0 for --help, 2 for unknown or malformed arguments).
    """
    given = sys.argv[1:] if argv is None else argv
    command = next((word for word in given if word in _COMMANDS), "")
    try:
        args = parser(*filter(None, [command])).parse_args(given)
        return args.run(args)
    except GraphweaveError as error:
        return _bad_input(command, str(error))
    except ImportError as error:
        package = extras.missing_package(error)
        if package is None:
            raise
        install = extras.command(extras.EXTRA_OF[package])
        return _bad_input(command, f"needs {package}, which is not installed. Run: {install}")
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _bad_input(command, f"not enough memory for this graph and model: {error}")
    except OverflowError as error:
        return _bad_input(command, f"a number is too large ({error}). Pass a smaller one.")
    except OSError as error:
        if error.filename is None:
            raise
        return _bad_input(command, f"{error.filename}: {error.strerror or error}. Check the path.")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return _INTERRUPTED


def _bad_input(command: str, what: str) -> int:
    sys.stderr.write(f"graphweave {command}: error: {' '.join(what.split())}\n")
    return BAD_INPUT


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. PyTorch has an error class for this only on a GPU; on the CPU, the message tells."""
    words = ("can't allocate memory", "Storage size calculation overflowed", "out of memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


if __name__ == "__main__":
    sys.exit(main())
