"""Lines of source code as a reader names them: the user's files relative to the current directory, those of libraries
by package path."""

from __future__ import annotations

import os
import re
import sysconfig
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from traceback import FrameSummary
from types import CodeType
from typing import NamedTuple, TypeVar

_PARENT = str(Path(__file__).parents[2]) + os.sep
_PACKAGE = os.path.join(_PARENT, "graphweave") + os.sep
_LAYERS = os.path.join(_PACKAGE, "nn") + os.sep
_FRONTENDS = os.path.join(_PACKAGE, "frontends") + os.sep
_TORCH = tuple(os.path.join(folder, "") for folder in getattr(find_spec("torch"), "submodule_search_locations", ()))
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in (\S+))?.*(?:\n[ \t]*(?!\s|File ")(?:code: )?(.*))?')


_MADE = ("<frozen ", "<eval_with_key>")
"""Beginnings of the file names that Python and torch.fx give to code that stands in no file."""


def is_library(path: str) -> bool:
    """Whether a file belongs to an installed package, to Python or to this package, and not to the user."""
    return path.startswith((_PACKAGE, _STDLIB, *_MADE)) or _INSTALLED.match(path) is not None


def is_frontend(path: str) -> bool:
    """Whether a file is one of this package's that lead into the compiler."""
    return path.startswith(_FRONTENDS)


def is_generated(path: str) -> bool:
    """Whether PyG wrote the file, into the directory of temporary files: nobody can look the line up."""
    return os.path.basename(path).startswith("torch_geometric.") and path.startswith(tempfile.gettempdir())


def shown_path(path: str) -> str:
    """`path` for a reader: by package path, or relative to the current directory. "<string>" and the like stay."""
    installed = _INSTALLED.match(path)
    if installed:
        return path[installed.end() :]
    for prefix, kept in ((_PACKAGE, _PARENT), (_STDLIB, _STDLIB)):
        if path.startswith(prefix):
            return path[len(kept) :]
    if not os.path.isabs(path):
        return path
    try:
        return os.path.relpath(path)
    except ValueError:  # another drive, or a current directory that is gone
        return os.path.basename(path)


class SourceLine(NamedTuple):
    """A line of a traceback; `name` is the function in which it stands ("" if unknown), `code` its text."""

    filename: str
    lineno: int
    name: str
    code: str


FrameT = TypeVar("FrameT", SourceLine, FrameSummary)


def frames(trace: str) -> list[SourceLine]:
    """The lines of a traceback as Python or PyTorch prints it, outermost first."""
    return [SourceLine(path, int(line), name, code.strip()) for path, line, name, code in _FRAME.findall(trace)]


def shown_frame(frame: SourceLine | FrameSummary) -> str:
    """The line as a reader names it: "train.py:8"."""
    return f"{shown_path(frame.filename)}:{frame.lineno}"


def shown_code(code: CodeType) -> str:
    """The line at which a function begins: "train.py:8"."""
    return f"{shown_path(code.co_filename)}:{code.co_firstlineno}"


def own_frame(stack: Sequence[FrameT]) -> FrameT | None:
    """The innermost line that is the user's own."""
    return next((f for f in reversed(stack) if not is_library(f.filename)), None)


def calling_function(trace: str) -> str:
    """The user's outermost function in a traceback, with its line: "forward (train.py:8)". If no line is the user's, a
    library's function; "" if all lines belong to PyTorch and the frontends."""
    known = [f for f in frames(trace) if f.name and not f.filename.startswith((*_TORCH, _FRONTENDS))]
    if not known:
        return ""
    first = next((f for f in known if not is_library(f.filename)), known[0])
    return f"{first.name} ({shown_frame(first)})"


@dataclass(frozen=True, slots=True)
class Location:
    """The innermost line that made a value, with its code. If it is a library's, `called_from` is the innermost line of
    the user's own code. A location without path is a text that names no line; one without any text is `NOWHERE`.
    """

    path: str = ""
    number: int = 0
    code: str = ""
    called_from: Location | None = None

    def __bool__(self) -> bool:
        return bool(self.path or self.code)

    def __str__(self) -> str:
        """The text "file:line code", then " <- file:line"."""
        place = f"{self.path}:{self.number}" if self.path else ""
        here = f"{place} {self.code}" if place and self.code else place or self.code
        return f"{here} <- {self.called_from}" if self.called_from else here

    @property
    def line(self) -> str:
        """The innermost line as a reader names it: "train.py:8"; "" if it is not known."""
        return f"{shown_path(self.path)}:{self.number}" if self.path else ""

    @property
    def own(self) -> str:
        """The user's own line, such as "train.py:8"; "" if it is not known."""
        return self.called_from.line if self.called_from else "" if is_library(self.path) else self.line

    @property
    def shown(self) -> str:
        """ "train.py:8" or "train.py:8 (torch_geometric/nn/conv/gat_conv.py:330)"; "" where nothing is known."""
        return f"{self.own} ({self.line})" if self.own and self.own != self.line else self.line


NOWHERE = Location()


def location(trace: str) -> Location:
    """The location of a traceback; `NOWHERE` if nothing is known.

    The innermost line is the one outside torch and, if there is such a line, outside this package, whose layers count
    as libraries.
    """
    found = ours = NOWHERE
    for path, line, _, code in reversed(frames(trace)):
        if path.startswith(_TORCH) or is_generated(path):
            continue
        if found:
            if not is_library(path):
                return replace(found, called_from=Location(path, line))
            continue
        here = Location(path, line, code)
        if path.startswith(_PACKAGE) and not path.startswith(_LAYERS):
            ours = ours or (NOWHERE if is_frontend(path) else here)
        elif is_library(path):
            found = here
        else:
            return here
    return found or ours


class RaisedAt(NamedTuple):
    """A line of a traceback, and the files of the calls that it led to."""

    path: str
    line: int
    text: str
    inside: tuple[str, ...]


def raised_at(error: BaseException, outside: tuple[str, ...]) -> RaisedAt | None:
    """The innermost line of a traceback in a file whose path begins with none of `outside`."""
    frames = traceback.extract_tb(error.__traceback__)
    for i in range(len(frames) - 1, -1, -1):
        frame = frames[i]
        if not frame.filename.startswith(outside):
            inside = tuple(f.filename for f in frames[i + 1 :])
            return RaisedAt(frame.filename, frame.lineno or 0, (frame.line or "").strip(), inside)
    return None


def shown_text(text: str) -> str:
    """`text` in one line, with the paths in it as `shown_path` writes them."""
    return re.sub(r"(?<![\w.~-])/[^\s:'\"()]+\.py\b", lambda m: shown_path(m[0]), " ".join(text.split()))
