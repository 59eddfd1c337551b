"""DGL's package under DGL's names: `import graphweave.dgl as dgl` runs DGL scripts unchanged (docs/dgl.md)."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from graphweave.dgl.submodules import found_below
from graphweave.dgl.transforms import CLASSES as _TRANSFORMS

__version__ = "2.1.0"
"""The version of DGL whose names and arguments these are."""

_BY_MODULE: dict[str, tuple[str, ...]] = {
    "base": ("ALL", "DGLError", "EID", "ETYPE", "NID", "NTYPE"),
    "batch": ("batch", "slice_batch", "unbatch"),
    "block": ("DGLBlock", "block_to_graph", "create_block"),
    "by_type": ("compact_graphs", "edge_type_subgraph", "node_type_subgraph"),
    "casts": ("to_bfloat16", "to_cugraph", "to_double", "to_float", "to_half"),
    "changed": ("add_edges", "add_nodes", "remove_edges", "remove_nodes"),
    "construct": ("graph", "heterograph", "rand_bipartite", "rand_graph"),
    "distances": ("double_radius_node_labeling", "shortest_dist"),
    "distinct": ("add_reverse_edges", "to_simple", "to_simple_graph"),
    "from_others": (
        "bipartite_from_networkx", "bipartite_from_scipy", "from_networkx", "from_scipy", "to_networkx",
    ),
    "graph": ("DGLGraph",),
    "homophily": (
        "adjusted_homophily", "edge_homophily", "edge_label_informativeness", "linkx_homophily", "node_homophily",
        "node_label_informativeness",
    ),
    "hops": (
        "khop_adj", "khop_graph", "khop_in_subgraph", "khop_out_subgraph", "line_graph", "metapath_reachable_graph",
    ),
    "merge": ("merge",),
    "messages": ("prop_edges", "prop_nodes"),
    "near": ("knn_graph", "radius_graph", "segmented_knn_graph"),
    "ops": ("edge_softmax", "copy_u", "copy_v", *(
        f"{x}_{op}_{y}" for op in ("add", "sub", "mul", "div", "dot") for x in "uev" for y in "uev" if x != y
    )),
    "partition": ("metis_partition", "metis_partition_assignment"),
    "orders": ("norm_by_dst", "reorder_graph", "sort_csc_by_tag", "sort_csr_by_tag"),
    "products": ("adj_product_graph", "adj_sum_graph"),
    "random": ("choice", "seed"),
    ".graph.readout": (
        "broadcast_edges", "broadcast_nodes", "max_edges", "max_nodes", "mean_edges", "mean_nodes", "readout_edges",
        "readout_nodes", "softmax_edges", "softmax_nodes", "sum_edges", "sum_nodes", "topk_edges", "topk_nodes",
    ),
    "save": ("load_graphs", "save_graphs"),
    ".graph.hetero": ("to_homogeneous",),
    ".graph.transform": (
        "add_self_loop", "edge_subgraph", "in_subgraph", "out_subgraph", "remove_self_loop", "reverse", "to_bidirected",
    ),
    "shared_transforms": ("node_subgraph", "to_heterogeneous"),
    "spectra": ("lap_pe", "laplacian_lambda_max", "laplacian_pe", "random_walk_pe", "svd_pe"),
    "stand_in": ("install",),
    "to_block": ("to_block",),
    "transforms": tuple(_TRANSFORMS),
    "traversal": (
        "bfs_edges_generator", "bfs_nodes_generator", "dfs_edges_generator", "dfs_labeled_edges_generator",
        "prop_edges_dfs", "prop_nodes_bfs", "prop_nodes_topo", "topological_nodes_generator",
    ),
    "utils": ("apply_each",),
}  # fmt: skip
"""Module of this package, or with a dot of the package around it -> the names of `dgl` that it defines. It is loaded
when one of them is first asked for."""

_NAMES: dict[str, str] = {name: module for module, names in _BY_MODULE.items() for name in names}
"""Name -> the module that defines it, as in `_BY_MODULE`."""

_MODULES: tuple[str, ...] = (
    "_ffi", "backend", "base", "convert", "data", "dataloading", "frame", "function", "geometry", "init", "nn", "ops",
    "partition", "random", "sampling", "transforms", "udf", "utils",
)  # fmt: skip
"""Modules that are names of the package themselves: `dgl.nn`, `dgl.transforms`."""


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        found = getattr(import_module(f".{_NAMES[name]}", __name__), name)
        globals()[name] = found
        return found
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if f"{__name__}.{name}" in sys.modules:
        return sys.modules[f"{__name__}.{name}"]
    raise AttributeError(f"graphweave.dgl has no {name!r}: docs/dgl.md lists what DGL has and it lacks.")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_MODULES})


class _DoorModule(ModuleType):
    """This package. Where a module has the name of a function (`batch`), the name stays the function's."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in _NAMES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _DoorModule
found_below(__name__)
