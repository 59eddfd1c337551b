"""A function of a script, by what a user writes: SCRIPT.py:FUNCTION."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphweave.core.errors import DataError


def function_of(spec: str) -> Callable[[], Any]:
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
