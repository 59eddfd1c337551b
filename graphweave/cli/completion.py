"""`graphweave completion SHELL`: prints the script by which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import shtab

from graphweave.cli.main import whole_parser

SHELLS = ("bash", "zsh", "fish")
_FILES_OR_NAMES = ("data",)
"""Options whose value may be a file, or a name."""
_HELP = """Print the script by which a shell completes commands, options, choices and files.

  bash: graphweave completion bash > ~/.local/share/bash-completion/completions/graphweave
  zsh:  graphweave completion zsh > FOLDER/_graphweave    (FOLDER is in $fpath, before compinit)
  fish: graphweave completion fish > ~/.config/fish/completions/graphweave.fish
"""


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=run)
    sub.description, sub.formatter_class = _HELP, argparse.RawDescriptionHelpFormatter
    sub.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Prints the script. It holds the options of this version, so it is printed again after an update."""
    whole = whole_parser()
    for action in _actions(whole):
        if action.type is Path or action.dest in _FILES_OR_NAMES:
            vars(action)["complete"] = shtab.FILE  # an attribute of shtab, which argparse does not declare
    sys.stdout.write(shtab.complete(whole, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
