"""`install`: `import dgl` and `import dgl.nn.pytorch` get this package where DGL is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from graphweave.core.errors import DataError
from graphweave.dgl.submodules import found_below

_OURS = __name__.rpartition(".")[0]


def install(*, force: bool = False) -> None:
    """From now on `import dgl` in this process gets `graphweave.dgl`, and `import dgl.x` gets `graphweave.dgl.x`.

    DataError if DGL itself is installed or loaded, unless `force` is true. Calling it again changes nothing.
    """
    if any(isinstance(finder, _StandIn) for finder in sys.meta_path):
        return
    if not force and ("dgl" in sys.modules or PathFinder.find_spec("dgl") is not None):
        raise DataError(
            "install: expected a process without DGL (got one in which `import dgl` finds DGL itself)."
            " Pass force=True to put it in DGL's place, or import graphweave.dgl under its own name."
        )
    for name in [name for name in sys.modules if name == "dgl" or name.startswith("dgl.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _StandIn())
    found_below("dgl")


class _StandIn(MetaPathFinder):
    """Finds `dgl` and the modules below it, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "dgl" and not fullname.startswith("dgl."):
            return None
        ours = _OURS + fullname.removeprefix("dgl")
        try:
            module = import_module(ours)
        except ModuleNotFoundError as error:
            if error.name is not None and (ours == error.name or ours.startswith(error.name + ".")):
                return None
            raise
        return ModuleSpec(fullname, _Same(module), is_package=hasattr(module, "__path__"))


class _Same(Loader):
    """Loads a module that exists already, and leaves its own names as they are."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
