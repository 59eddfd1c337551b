"""Types of the arguments that functions of graphs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from graphweave.graph.relation import CanonicalEtype

T = TypeVar("T")

Etype: TypeAlias = str | CanonicalEtype
"""A relation: its name, if no other relation has it, or (source type, name, destination type)."""

Device: TypeAlias = torch.device | str
"""A device, or its name: "cpu", "cuda:1"."""

ByRelation: TypeAlias = Mapping[Any, T]
"""Relation -> value, where keys are any that `Etype` allows: the type of a mapping's keys does not vary."""

IdsByType: TypeAlias = Tensor | Mapping[str, Tensor]
"""Ids of nodes, [k], or node type -> such ids for a graph of several types."""
