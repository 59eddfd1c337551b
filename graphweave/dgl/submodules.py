"""Modules of DGL's from which scripts and packages import, and which are parts of one module here.

`from dgl.nn.pytorch.conv.cfconv import CFConv` finds the names of `dgl.nn`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_CONVOLUTIONS = (
    "agnnconv", "appnpconv", "atomicconv", "cfconv", "chebconv", "densechebconv", "densegraphconv", "densesageconv",
    "dgnconv", "dotgatconv", "edgeconv", "edgegatconv", "egatconv", "egnnconv", "gatconv", "gatedgcnconv",
    "gatedgraphconv", "gatv2conv", "gcn2conv", "ginconv", "gineconv", "gmmconv", "graphconv", "grouprevres", "hgtconv",
    "nnconv", "pnaconv", "relgraphconv", "sageconv", "sgconv", "tagconv", "twirlsconv",
)  # fmt: skip
"""The modules of `dgl.nn.pytorch.conv`."""

_PARTS: dict[str, tuple[str, ...]] = {
    **{f"nn.pytorch.{name}": ("nn",) for name in (
        "conv", "explain", "factory", "glob", "gt", "hetero", "link", "network_emb", "softmax", "utils")},
    **{f"nn.pytorch.conv.{name}": ("nn", "utils") for name in _CONVOLUTIONS},
    **{f"nn.pytorch.explain.{name}": ("nn",) for name in ("gnnexplainer", "pgexplainer", "subgraphx")},
    **{f"nn.pytorch.gt.{name}": ("nn",) for name in (
        "biased_mha", "degree_encoder", "egt", "graphormer", "lap_pos_encoder", "path_encoder", "spatial_encoder")},
    **{f"nn.pytorch.link.{name}": ("nn",) for name in ("edgepred", "transe", "transr")},
    **{f"dataloading.{name}": ("dataloading",) for name in (
        "base", "cluster_gcn", "dataloader", "labor_sampler", "neighbor", "neighbor_sampler", "pytorch",
        "shadow", "spot_target")},
    **{f"ops.{name}": ("ops",) for name in ("edge_softmax", "gather_mm", "sddmm", "segment", "spmm")},
    **{f"sampling.{name}": ("sampling",) for name in (
        "labor", "negative", "neighbor", "node2vec_randomwalk", "pinsage", "randomwalks")},
    "dataloading.negative_sampler": ("negative_sampler",), "subgraph": ("",), "transform": ("transforms", ""),
    "transforms.module": ("transforms",),
    "heterograph_index": ("heterograph",), "generators": ("",), "propagate": ("",), "readout": ("",),
}  # fmt: skip
"""Module below `dgl` -> the modules here that have its names ("" is `dgl` itself)."""

_HERE = __name__.rpartition(".")[0]


class _Part(ModuleType):
    """A module whose names are those of others, which are loaded when a name is first asked for."""

    def __init__(self, name: str, whole: tuple[str, ...]) -> None:
        super().__init__(name, f"Names of {' and '.join(filter(None, ('dgl', *whole)))}.")
        self.__dict__["_whole"] = tuple(f"{_HERE}.{part}" if part else _HERE for part in whole)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return dir(self)
        below = sys.modules.get(f"{self.__name__}.{name}")
        if below is not None:
            return below
        if not name.startswith("__"):
            for whole in self._whole:
                found = getattr(import_module(whole), name, None)
                if found is not None:
                    return found
        raise AttributeError(
            f"{self.__name__.replace(_HERE, 'dgl')} has no {name!r}: docs/dgl.md lists what DGL has and it lacks."
        )

    def __dir__(self) -> list[str]:
        whole = import_module(self._whole[0])
        names = getattr(whole, "__all__", None) or dir(whole)
        return [n for n in names if not n.startswith("_") and not isinstance(getattr(whole, n), ModuleType)]


_MADE = {name: _Part(f"{_HERE}.{name}", whole) for name, whole in _PARTS.items()}


def found_below(package: str) -> None:
    """Let `import package.nn.pytorch.conv.cfconv` and the like find the modules. A parent with a function of the name
    (`dgl.ops.edge_softmax`) keeps the function."""
    for name, module in _MADE.items():
        sys.modules.setdefault(f"{package}.{name}", module)
