"""Marks in folders that this package has made. Only folders with a mark are deleted again: a name proves nothing.

A folder with a mark that holds anything else than the files that this package writes there is left alone, too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MARK = ".graphweave"
"""The file that marks a folder. It says what the folder is."""


def mark(folder: Path, what: str) -> None:
    """Mark a folder, which the caller has just made, as `what`. The mark is flushed to disk."""
    with (folder / MARK).open("x", encoding="utf-8") as file:
        file.write(_content(what))
        file.flush()
        os.fsync(file.fileno())


def is_marked(folder: Path, what: str) -> bool:
    """Whether `folder` is a folder, not a link to one, that this package has made as `what`."""
    try:
        return not folder.is_symlink() and (folder / MARK).read_text(encoding="utf-8") == _content(what)
    except (OSError, UnicodeDecodeError):
        return False


def not_ours(folder: Path, what: str, files: re.Pattern[str]) -> str | None:
    """Why `folder` must not be deleted: it has no mark, or something in it is no file with a name of `files`. None if
    all in it is ours."""
    if not is_marked(folder, what):
        return f"{folder} has no file {MARK} that says that it is a {what}"
    for path in sorted(folder.iterdir()):
        if path.name != MARK and (files.fullmatch(path.name) is None or path.is_dir() or path.is_symlink()):
            return f"{path} is no file of a {what}"
    return None


def remove(folder: Path, what: str, files: re.Pattern[str]) -> bool:
    """Delete a folder of ours, the mark last. Returns False, and deletes nothing, if something in it is not ours."""
    if not_ours(folder, what, files) is not None:
        return False
    for path in folder.iterdir():
        if path.name != MARK:
            path.unlink()
    (folder / MARK).unlink()
    folder.rmdir()
    return True


def _content(what: str) -> str:
    return f"This folder is a {what} of graphweave, which deletes it when it is out of date.\n"
