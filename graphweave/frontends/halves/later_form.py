"""A form of a compiled function that is made after the function was handed over, and its place in the handed halves.

AOTAutograd saves for the backward whatever tensors a forward returns behind its results, and hands them back in this
order. It has no number for them but the slice between results and symbolic numbers. So a later form may save other
values, and more of them, than the form that was handed over: its forward returns them in place of that form's, followed
by a tensor that names the form and holds its numbers, and the backward takes them apart again. Hooks on saved tensors,
checks of versions, `retain_graph` and checkpoints are PyTorch's for all forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from graphweave.compiler.request import Halves
from graphweave.core.errors import IRError
from graphweave.execute.executable import Executable
from graphweave.frontends.halves.handover import input_refs
from graphweave.ir.message import nodes as ir


class LaterForm:
    """The halves of a form, by the positions of arguments, saved values and tangents."""

    def __init__(
        self, halves: Halves, made: Sequence[Executable], num_args: int, pinned: Mapping[ir.Ref, int], num_slots: int
    ) -> None:
        """`num_args` are the arguments of the forward, behind which the request's inputs are tangents. `pinned` gives
        the slot of values of the request's program that must be saved there, and at least `num_slots` are filled.

        Raises IRError if the form does not save a pinned value."""
        where, cut, self._ahead = halves.joint.where, halves.split, made[0]
        place = {where[ref]: at for at, ref in enumerate(halves.request.inputs)}
        if cut is None:
            self._takes = [place[ref] for ref in input_refs(made[0], halves.parts[0].where)]
            return
        self._behind, self._num_results, self._num_slots = made[1], cut.num_forward, num_slots
        self._takes = [place[ref] for ref in input_refs(made[0], cut.forward.where)]
        given = [None if ref in cut.copied else place.get(ref) for ref in cut.saved]
        self._saved = [(False, self._num_results + i) if at is None else (True, at) for i, at in enumerate(given)]
        """For each saved value whether it is an argument, and its position among the arguments or what is made."""
        position = {ref: i for i, ref in enumerate(cut.saved)}
        if not all(where.get(ref) in position for ref in pinned):
            raise IRError("it keeps other random numbers for the backward than the form before it")
        self._slots = {position[where[ref]]: slot for ref, slot in pinned.items()}
        tangents = {ref: place[ref] - num_args for ref in cut.tangents}
        takes = input_refs(made[1], cut.backward.where)
        self._back = [(True, tangents[r]) if r in tangents else (False, position[r]) for r in takes]
        """For each argument of the backward whether it is a tangent, and its position among these or what is saved."""
        self._kinds: list[Callable[[float], object] | None] = []
        """For each saved value None if it is a tensor, or else its type; known once a forward has run."""
        self._order: list[int] = []
        """The slot of each saved tensor."""

    def infer(self, args: list[object]) -> list[object]:
        taken = [args[at] for at in self._takes]
        args.clear()
        return self._ahead(taken)

    def forward(self, args: list[object], name: int) -> tuple[list[object], list[Tensor]]:
        """The results, and the tensors to save, of which the last holds `name`."""
        taken = [args[at] for at in self._takes]
        kept = [args[at] if is_argument else None for is_argument, at in self._saved]
        args.clear()
        made = self._ahead(taken)
        values = [v if is_argument else made[at] for v, (is_argument, at) in zip(kept, self._saved, strict=True)]
        if len(self._kinds) != len(values):
            self._kinds = [None if isinstance(v, Tensor) else float if isinstance(v, float) else int for v in values]
            self._order = self._free_slots()
        tensors = [v for v in values if isinstance(v, Tensor)]
        numbers = [v for v in values if not isinstance(v, Tensor)]
        filled = [torch.empty(0)] * max(self._num_slots, len(tensors), *(s + 1 for s in self._order))
        for slot, tensor in zip(self._order, tensors, strict=True):
            filled[slot] = tensor
        filled.append(torch.tensor([name, *numbers], dtype=torch.float64))
        return made[: self._num_results], filled

    def _free_slots(self) -> list[int]:
        free = (slot for slot in range(len(self._kinds) + len(self._slots)) if slot not in self._slots.values())
        return [self._slots[i] if i in self._slots else next(free) for i, k in enumerate(self._kinds) if k is None]

    def backward(self, args: list[object], first: int, end: int, numbers: Sequence[float]) -> list[object]:
        """The gradients. Of `args`, the saved tensors begin at `first` and the tangents at `end`; `numbers` are those
        that the forward has saved behind its name."""
        slots, given = iter(self._order), iter(numbers)
        values = [args[first + next(slots)] if kind is None else kind(next(given)) for kind in self._kinds]
        taken = [args[end + at] if is_tangent else values[at] for is_tangent, at in self._back]
        args.clear()
        del values  # so that each is freed after its last use
        return self._behind(taken)
