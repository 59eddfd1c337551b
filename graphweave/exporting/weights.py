"""Weights as a safetensors file: 8 bytes with the length of the header, the header in JSON, and the tensors.

The format is described at https://huggingface.co/docs/safetensors. Each tensor begins at a multiple of 8 bytes, where
numbers of its type may be read as they lie.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphweave.exporting.dtypes import SAFETENSORS
from graphweave.ir.message.aten import DTYPE_OF


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors of the CPU by name; wide numbers come first, so that each begins at a multiple of its size."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at, parts = 0, []
    for name, value in sorted(weights.items(), key=lambda item: (-item[1].element_size(), item[0])):
        content = _bytes_of(value)
        kind = SAFETENSORS[DTYPE_OF[value.dtype]]
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [at, at + len(content)]}
        parts.append(content)
        at += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def _bytes_of(value: Tensor) -> bytes:
    flat = value.detach().contiguous().reshape(-1)
    content: np.ndarray = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
    return content.tobytes()
