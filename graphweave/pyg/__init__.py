"""`import graphweave.pyg` gives PyG, and programs around it, what they take from packages that are not installed.

PyG's layers, loaders and transforms ask pyg-lib and torch-sparse for neighbours of points, samplers, random walks,
clusters and sparse matrices, and programs import torch_scatter, torch_sparse and torch_cluster themselves. These
packages are compiled for each release of PyTorch, and pip does not find them on its index. After this import, each of
them that is not installed has a stand-in of its name, made of PyTorch's calls and of graphweave's own native code,
which compiled functions go through without a break. What is installed stays as it is. docs/pyg.md lists what is lent.
"""

from __future__ import annotations

from graphweave.pyg.lending import lend

__all__: list[str] = []

lend()
