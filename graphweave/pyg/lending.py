"""Stand-ins for packages that are not installed: modules under their names, and PyG told that they are there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from graphweave.core.log import logger
from graphweave.frontends.sparse import scatter_functions, torch_sparse_functions
from graphweave.frontends.sparse.torch_sparse_matrix import SparseStorage, SparseTensor
from graphweave.pyg import clouds, operators, samplers

_log = logger(__name__)

_VERSIONS = {
    "torch_scatter": "2.1.2+graphweave", "torch_sparse": "0.6.18+graphweave", "torch_cluster": "1.6.3+graphweave",
    "pyg_lib": "0.6.0+graphweave",
}  # fmt: skip
"""Package -> its release whose functions are lent."""

_FLAGS = {
    "torch_sparse": ("WITH_TORCH_SPARSE",),
    "torch_cluster": ("WITH_TORCH_CLUSTER",),
    "pyg_lib": (
        "WITH_PYG_LIB", "WITH_SPLINE", "WITH_GRID_CLUSTER", "WITH_GRACLUS", "WITH_FPS", "WITH_KNN", "WITH_RADIUS",
        "WITH_NEAREST", "WITH_METIS", "WITH_EDGE_TIME_NEIGHBOR_SAMPLE", "WITH_WEIGHTED_NEIGHBOR_SAMPLE",
    ),
}  # fmt: skip
"""Package -> what PyG then says of it. PyG does without torch_scatter, and without pyg-lib's products, as fast."""

_absent = object()
_changed: list[tuple[Any, str, Any]] = []
"""The attributes that lending has set: the object, the attribute or the module's name, and the earlier value."""


def lend() -> None:
    """Lends each package that is not installed. PyG is told, if it is installed. A second call does nothing."""
    lent = [name for name in _VERSIONS if name not in sys.modules and importlib.util.find_spec(name) is None]
    with_pyg = bool(lent) and importlib.util.find_spec("torch_geometric") is not None
    if with_pyg:
        importlib.import_module("torch_geometric")  # before there is a torch_cluster, of which PyG 2.8 warns
    for name in lent:
        for module in _modules(name, _CONTENTS[name]):
            _set(sys.modules, module.__name__, module)
        for namespace, functions in _OPERATORS.get(name, {}).items():
            for operator, function in functions.items():
                _set(getattr(torch.ops, namespace), operator, function)
    if with_pyg:
        _tell_pyg(lent)
    if lent:
        _log.info("lent in place of packages that are not installed: %s", ", ".join(lent))


def take_back() -> None:
    """Undoes what `lend` did."""
    while _changed:
        of, name, before = _changed.pop()
        if isinstance(of, dict):
            of.pop(name) if before is _absent else of.update({name: before})
        elif before is _absent:
            delattr(of, name)
        else:
            setattr(of, name, before)


def _set(of: object, name: str, value: object) -> None:
    before = of.get(name, _absent) if isinstance(of, dict) else vars(of).get(name, _absent)
    _changed.append((of, name, before))
    if isinstance(of, dict):
        of[name] = value
    else:
        setattr(of, name, value)


def _modules(package: str, contents: Mapping[str, Mapping[str, object]]) -> list[ModuleType]:
    """The package, which has what all its modules but "utils" have, and these modules."""
    of_package = {k: v for part, members in contents.items() if part != "utils" for k, v in members.items()}
    parts = {part: _module(f"{package}.{part}", members) for part, members in contents.items() if part}
    whole = _module(package, {**parts, **of_package, "__path__": [], "__version__": _VERSIONS[package]})
    return [whole, *parts.values()]


def _module(name: str, members: Mapping[str, object]) -> ModuleType:
    made = ModuleType(name, f"graphweave's stand-in for {name}, which is not installed.")
    made.__spec__ = ModuleSpec(name, None)
    vars(made).update(members)
    return made


def _tell_pyg(lent: list[str]) -> None:
    """Sets PyG's flags, and its own placeholders for what is lent, in all its modules."""
    flags = {flag: True for name in lent for flag in _FLAGS.get(name, ())}
    names: dict[str, Any] = {name: sys.modules[name] for name in lent if name != "torch_scatter"}
    if "torch_sparse" in lent:
        names |= {"SparseTensor": SparseTensor, "SparseStorage": SparseStorage}
    if "pyg_lib" in lent:
        names |= {name: getattr(operators, name) for name in ("spline_basis", "spline_weighting")}
    for key, module in list(sys.modules.items()):
        if key == "torch_geometric" or key.startswith("torch_geometric."):
            for name, value in (flags | names).items():
                if name in vars(module) and (name in names or vars(module)[name] is False):
                    _set(module, name, value)


_CONTENTS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "torch_scatter": scatter_functions.PARTS,
    "torch_sparse": {
        "storage": {"SparseStorage": SparseStorage},
        "tensor": {"SparseTensor": SparseTensor},
        "": torch_sparse_functions.FUNCTIONS,
    },
    "torch_cluster": {"": {**clouds.TORCH_CLUSTER, **samplers.TORCH_CLUSTER, "graclus_cluster": operators.graclus}},
    "pyg_lib": {
        "ops": clouds.OPERATORS | operators.OPERATORS,
        "sampler": samplers.SAMPLER,
        "partition": {"metis": samplers.metis},
    },
}
"""Package -> module in it ("" for the package itself) -> what it has."""

_OPERATORS: dict[str, dict[str, dict[str, Callable[..., Any]]]] = {
    "pyg_lib": {"pyg": clouds.OPERATORS | samplers.SAMPLER | {"graclus_cluster": operators.graclus_cluster}},
    "torch_sparse": {"torch_sparse": operators.TORCH_SPARSE | samplers.TORCH_SPARSE},
}
"""Package -> namespace of `torch.ops` -> operators in it that PyG calls."""
