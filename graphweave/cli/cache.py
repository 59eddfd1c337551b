"""`graphweave cache`: carries what is compiled to another machine of the same kind, as one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graphweave.runtime.cache_archive import folder, load, save

_UNTRUSTED = (
    "The file has machine code that later runs with your rights: load it only if you trust whoever wrote it, as you "
    "would a program."
)


def add_arguments(sub: argparse.ArgumentParser) -> None:
    ways = sub.add_subparsers(dest="way", required=True, metavar="save|load")
    saving = ways.add_parser("save", help="write the cache folder to a file", allow_abbrev=False)
    saving.add_argument("file", type=Path, metavar="FILE", help="the file to write, such as cache.tar.gz")
    saving.set_defaults(run=_save)
    loading = ways.add_parser(
        "load", help="add a file's kernels to the cache folder", description=_UNTRUSTED, allow_abbrev=False
    )
    loading.add_argument("file", type=Path, metavar="FILE", help=f"a file that `save` has written. {_UNTRUSTED}")
    loading.set_defaults(run=_load)


def _save(args: argparse.Namespace) -> int:
    done = save(args.file)
    left = f", {done.left} damaged files left out" if done.left else ""
    sys.stdout.write(f"{args.file}: {done.files} files of {folder()}, {done.bytes / 1e6:.1f} MB{left}\n")
    return 0


def _load(args: argparse.Namespace) -> int:
    done = load(args.file)
    left = f", {done.left} were there already" if done.left else ""
    sys.stdout.write(f"{folder()}: {done.files} files of {args.file}, {done.bytes / 1e6:.1f} MB{left}\n")
    return 0
