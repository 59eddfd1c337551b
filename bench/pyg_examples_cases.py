"""Which of PyG's examples `bench.pyg_examples` runs, and how: what no rule can tell."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

from bench.pyg_examples_data import STAND_INS
from docs.dgl_examples import uses

FOLDERS = {
    "multi_gpu": "several GPUs or machines",
    "distributed": "several machines and another product",
    "quiver": "another product on GPUs: Quiver",
    "llm": "a language model and its weights",
    "cpp": "writes a TorchScript file for C++ and trains nothing",
}
"""Folder of examples -> why none of its programs is run."""

NOT_RUN = {
    "qm9_pretrained_dimenet.py": "downloads trained weights, and trains nothing",
    "qm9_pretrained_schnet.py": "downloads trained weights, and trains nothing",
    "wl_kernel.py": "trains nothing by gradients: hashes of subtrees and a support vector machine",
    "datapipe.py": "trains nothing: shows data pipes",
    "point_transformer_classification.py": "runs on a GPU only: asks a tensor for the number of its device",
    "graphland.py": "its data set, GraphLand, has no stand-in",
}
"""Program -> why it is not run, where neither its folder nor its imports show it."""

COMPILED = {
    "tgn.py": "gnn",
    "argva_node_clustering.py": "model.encode",
}
"""Program -> what its changed line compiles, where `pyg_examples_text.trained` does not find it."""

OPTIONAL = {"wandb", "pyg_lib", "meshio"}
"""Packages that programs import where they can do without, or in branches that are not taken."""

GENERATED = {"ExplainerDataset"}
"""Data sets that PyG itself generates."""

LENT = {
    "NeighborLoader", "LinkNeighborLoader", "HGTLoader", "NeighborSampler", "ClusterData", "ShaDowKHopSampler",
    "GraphSAINTRandomWalkSampler", "Node2Vec", "DynamicEdgeConv", "XConv", "SplineConv", "PointTransformerConv", "fps",
    "knn", "knn_graph", "knn_interpolate", "radius", "radius_graph", "voxel_grid", "graclus",
}  # fmt: skip
"""Names of PyG whose functions need pyg-lib or torch-sparse, which `graphweave.pyg` lends."""


def programs(examples: Path) -> list[str]:
    """Every program, by its path below `examples`."""
    return sorted(str(path.relative_to(examples)) for path in examples.rglob("*.py"))


def reason(examples: Path, program: str) -> str | None:
    """Why a program is not run, as far as its text shows; None if it is to be tried."""
    if (folder := program.split("/")[0]) in FOLDERS:
        return FOLDERS[folder]
    missing = missing_packages(examples / program)
    if missing:
        return f"needs {', '.join(f'`{name}`' for name in missing)}, not installed"
    if program in NOT_RUN:
        return NOT_RUN[program]
    used = data_sets(examples / program)
    unknown = sorted(used - set(STAND_INS) - GENERATED)
    return f"no stand-in for {', '.join(unknown)}" if unknown and not used & set(STAND_INS) else None


def missing_packages(path: Path) -> list[str]:
    beside = {other.stem for other in path.parent.glob("*.py")}
    used = {name.partition(".")[0] for name in uses(ast.parse(path.read_text()))}
    known = {*sys.stdlib_module_names, *beside, *OPTIONAL, "__future__"}
    return sorted(name for name in used - known if find_spec(name) is None)


def data_sets(path: Path) -> set[str]:
    """Classes of `torch_geometric.datasets` that a program uses; its modules of graph generators are none."""
    prefix = "torch_geometric.datasets."
    names = {name.removeprefix(prefix) for name in uses(ast.parse(path.read_text())) if name.startswith(prefix)}
    return {name for name in names if name[0].isupper()}


def needs_lending(path: Path) -> bool:
    """Whether a program uses what needs pyg-lib or torch-sparse."""
    names = uses(ast.parse(path.read_text()))
    return any(n.startswith("torch_geometric.") and n.rpartition(".")[2] in LENT for n in names)
