"""Packages that graphweave uses where they are installed, and the extra of graphweave that installs each."""

from __future__ import annotations

from importlib.util import find_spec

USES: dict[str, str] = {
    "toolchain": "a C++ compiler, for machines with neither g++ nor clang++",
    "pyg": "the layers of PyTorch Geometric, and its data sets",
    "train": "graphweave train, bench and partition, and scikit-learn's digits as a graph",
    "plot": "pictures of a training (--plot)",
    "tables": "graphs of tables, files and databases, and folders of DGL's CSVDataset",
    "clusters": "clusters of nodes by METIS",
    "gpu": "kernels for tensors on a GPU",
    "jax": "operators on edges for JAX",
    "md": "molecular dynamics by ASE",
    "completion": "completion of the command line in a shell",
}
"""Extra -> its uses, in the order in which reports name them. pyproject.toml says what it installs."""

EXTRA_OF: dict[str, str] = {
    "ziglang": "toolchain",
    "torch_geometric": "pyg",
    "sklearn": "train",
    "rich": "train",
    "matplotlib": "plot",
    "pandas": "tables",
    "pyarrow": "tables",
    "sqlalchemy": "tables",
    "yaml": "tables",
    "pymetis": "clusters",
    "triton": "gpu",
    "jax": "jax",
    "ase": "md",
    "shtab": "completion",
}
"""Package, as it is imported -> the extra that installs it."""


def command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'graphweave[{extra}]'"


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed. Nothing is imported."""
    return [package for package, its in EXTRA_OF.items() if its == extra and find_spec(package) is None]


def missing_package(error: ImportError) -> str | None:
    """The package of `EXTRA_OF` whose absence an import reports; None if anything else is wrong."""
    package = (error.name or "").partition(".")[0]
    return package if package in EXTRA_OF and find_spec(package) is None else None
