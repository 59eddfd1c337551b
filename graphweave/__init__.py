"""graphweave compiles graph neural networks: message passing in plain PyTorch, as a few fused kernels."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from graphweave.core.garbage import collected_seldom
from graphweave.core.versions import tell_newer_torch

if TYPE_CHECKING:
    from graphweave import data as data
    from graphweave import dgl as dgl
    from graphweave import distributed as distributed
    from graphweave import extend as extend
    from graphweave import function as function
    from graphweave import jax as jax
    from graphweave import loops as loops
    from graphweave import nn as nn
    from graphweave import ops as ops
    from graphweave import points as points
    from graphweave import sampling as sampling
    from graphweave.certificate.check import check
    from graphweave.core.counters import counters, reset_counters
    from graphweave.core.schedule import Schedule
    from graphweave.exporting.door import export
    from graphweave.frontends.dynamo.compile import compile
    from graphweave.frontends.dynamo.explain import explain
    from graphweave.frontends.dynamo.ready import ready
    from graphweave.frontends.dynamo.tune import tune
    from graphweave.graph.batch import batch, unbatch
    from graphweave.graph.build import graph, heterograph
    from graphweave.graph.convert_from import from_dgl, from_networkx, from_pyg, from_scipy
    from graphweave.graph.frame import EID, ETYPE, NID, NTYPE
    from graphweave.graph.graph import Graph
    from graphweave.graph.hetero import to_heterogeneous, to_homogeneous
    from graphweave.graph.readout import (
        broadcast_edges,
        broadcast_nodes,
        max_edges,
        max_nodes,
        mean_edges,
        mean_nodes,
        readout_edges,
        readout_nodes,
        softmax_edges,
        softmax_nodes,
        sum_edges,
        sum_nodes,
        topk_edges,
        topk_nodes,
    )
    from graphweave.graph.softmax import edge_softmax
    from graphweave.graph.transform import (
        add_self_loop,
        edge_subgraph,
        in_subgraph,
        out_subgraph,
        remove_self_loop,
        reverse,
        subgraph,
        to_bidirected,
    )

__version__ = "0.1.0"

__all__ = [
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "Graph",
    "Schedule",
    "add_self_loop",
    "batch",
    "broadcast_edges",
    "broadcast_nodes",
    "check",
    "compile",
    "counters",
    "edge_softmax",
    "edge_subgraph",
    "explain",
    "export",
    "extend",
    "from_dgl",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "graph",
    "heterograph",
    "in_subgraph",
    "loops",
    "max_edges",
    "max_nodes",
    "mean_edges",
    "mean_nodes",
    "out_subgraph",
    "readout_edges",
    "readout_nodes",
    "ready",
    "remove_self_loop",
    "reset_counters",
    "reverse",
    "softmax_edges",
    "softmax_nodes",
    "subgraph",
    "sum_edges",
    "sum_nodes",
    "to_bidirected",
    "to_heterogeneous",
    "to_homogeneous",
    "topk_edges",
    "topk_nodes",
    "tune",
    "unbatch",
]

_FROM = {
    "certificate.check": ("check",),
    "core.counters": (
        "counters",
        "reset_counters",
    ),
    "core.schedule": ("Schedule",),
    "exporting.door": ("export",),
    "frontends.dynamo.compile": ("compile",),
    "frontends.dynamo.explain": ("explain",),
    "frontends.dynamo.ready": ("ready",),
    "frontends.dynamo.tune": ("tune",),
    "graph.batch": (
        "batch",
        "unbatch",
    ),
    "graph.build": (
        "graph",
        "heterograph",
    ),
    "graph.convert_from": (
        "from_dgl",
        "from_networkx",
        "from_pyg",
        "from_scipy",
    ),
    "graph.frame": (
        "EID",
        "ETYPE",
        "NID",
        "NTYPE",
    ),
    "graph.graph": ("Graph",),
    "graph.hetero": (
        "to_heterogeneous",
        "to_homogeneous",
    ),
    "graph.readout": (
        "broadcast_edges",
        "broadcast_nodes",
        "max_edges",
        "max_nodes",
        "mean_edges",
        "mean_nodes",
        "readout_edges",
        "readout_nodes",
        "softmax_edges",
        "softmax_nodes",
        "sum_edges",
        "sum_nodes",
        "topk_edges",
        "topk_nodes",
    ),
    "graph.softmax": ("edge_softmax",),
    "graph.transform": (
        "add_self_loop",
        "edge_subgraph",
        "in_subgraph",
        "out_subgraph",
        "remove_self_loop",
        "reverse",
        "subgraph",
        "to_bidirected",
    ),
}
"""Module -> the names that it defines. A module is loaded when one of its names is first asked for, since the compiler
takes seconds to load."""

_PACKAGES = ("data", "dgl", "distributed", "extend", "function", "jax", "loops", "nn", "ops", "points", "sampling")
"""Modules with public names of their own, loaded when they are first asked for. (`graphweave.graph` is the
function. `graphweave.pyg` changes PyG, so whoever wants it imports it by its name.)"""

_MODULE_OF = {name: module for module, names in _FROM.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return _load(name)
    if name == "pyg":
        raise AttributeError("graphweave.pyg changes PyG, so it has to be imported by its name: import graphweave.pyg")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(_load(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def _load(name: str) -> ModuleType:
    """The module of this name within the package."""
    with collected_seldom():
        return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


class _Package(ModuleType):
    """The package has a function `graph` and a subpackage of this name, which Python would set in its place."""

    @property
    def graph(self) -> Any:
        return import_module(f"{__name__}.graph.build").graph

    @graph.setter
    def graph(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
tell_newer_torch()
