"""Types of the arguments that functions of graphs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Device: TypeAlias = torch.device | str
"""A device, or its name: "cpu", "cuda:1"."""

IdsByType: TypeAlias = Tensor | Mapping[str, Tensor]
"""Ids of nodes, [k], or node type -> such ids for a graph of several types."""
