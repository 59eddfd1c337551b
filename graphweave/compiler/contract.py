"""The results that the caller of an executable gets, and the tensors in which each call looks for edits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.nodes import Ref


@dataclass(frozen=True, slots=True)
class Contract:
    """Calls return the first `num_outputs` outputs of a program (None: all), and `promises` says for each of the first
    of these how it lies in memory (None: anyhow).

    Outputs in `private` are read only by our own maps, which take an index in 32 bits as well as in 64. Unless
    `watches` is None, each call looks for edits that PyTorch does not see (`runtime/unseen_edits.py`) of its index
    tensors and of the values in `watches`, which users get. `names` are the user's words for inputs, in errors.

    With `verify`, every region is compared with the interpreter at each call. With `cuda_graphs`, calls on a CUDA
    device are replayed as CUDA graphs where that is possible (`execute/cuda_graph.py`).
    """

    num_outputs: int | None = None
    promises: Sequence[Promise | None] = ()
    private: frozenset[Ref] = frozenset()
    watches: frozenset[Ref] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    verify: bool = False
    cuda_graphs: bool = False


ANYHOW = Contract()
"""All outputs, and nothing promised or looked at."""
