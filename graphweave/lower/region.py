"""Region -> loop IR kernel. Its body is that of a row, or of a tile of rows if products of rows are among the
members."""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.analysis.facts import Facts
from graphweave.core.options import Options
from graphweave.core.types import DType, Space
from graphweave.ir.loop.nodes import Csr, Kernel, Stmt
from graphweave.ir.message.nodes import Ref
from graphweave.lower.draft import CSR, Draft
from graphweave.lower.expressions import NeedsLocal
from graphweave.lower.fused_push import fused_push, is_fused_push
from graphweave.lower.online import passes_of
from graphweave.lower.parameters import Binding, Column, Flat, Perm
from graphweave.lower.row_body import RowBody
from graphweave.lower.row_tiles import RowTiles
from graphweave.lower.schedule import Region
from graphweave.lower.widen import widened


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel, and what its parameters stand for: `bindings` for its buffers, `spaces` for its last sizes.

    It walks the CSR of `map`, if that is not None: the region's map, or that of one item of a batch. If `types` is set,
    it is a fused push: it walks row blocks; `types` chooses matrices.
    """

    kernel: Kernel
    map: Ref | None
    bindings: tuple[Binding, ...]
    spaces: tuple[Space, ...]
    types: Ref | None = None

    @property
    def maps(self) -> tuple[Ref, ...]:
        """The maps whose formats the kernel reads: those that it walks come first."""
        maps = dict.fromkeys(walked for walked in (self.map, self.types) if walked is not None)
        for binding in self.bindings:
            match binding:
                case Perm(m) | Flat(m):
                    maps[m] = None
                case Column(m, other):
                    maps[m] = maps[other] = None
                case _:
                    pass
        return tuple(maps)


def lower(
    facts: Facts, region: Region, stored: frozenset[Ref], name: str, options: Options, index: DType = DType.i32
) -> Lowered:
    """The kernel of `region`; `stored` are the nodes that exist as tensors."""
    forced: frozenset[Ref] = frozenset()
    while True:
        try:
            if is_fused_push(facts.program, region):
                push = fused_push(facts, region, stored, name, options, index, forced)
                parameters = push.draft.parameters
                bound = parameters.bindings, parameters.spaces
                return Lowered(widened(push.kernel), region.map, *bound, push.types)
            draft = Draft(facts, region, stored, options, index, forced)
            if region.products:
                tiles = RowTiles(draft)
                return _lowered(draft, name, tiles.statements(), tiles.tile())
            return _lowered(draft, name, RowBody(draft, region.members, passes_of(draft)).statements(), None)
        except NeedsLocal as need:
            assert need.ref not in forced, f"%{need.ref} was given a block and still cannot be indexed"
            forced |= {need.ref}


def _lowered(draft: Draft, name: str, body: list[Stmt], tile: tuple[str, int] | None) -> Lowered:
    parameters, stashes = draft.parameters, tuple(draft.stashes.values())
    walked = None if draft.sums_items or draft.runs is not None else draft.region.map
    if walked is not None and draft.items is not None:
        walked = draft.items.maps[walked]
    positions = None if draft.runs is None else parameters.edges(draft.runs)
    csrs = () if walked is None and positions is None else (Csr(CSR, positions),)
    kernel = Kernel(
        name, "v", parameters.sizes, parameters.index, csrs, parameters.buffers, stashes, tuple(body), tile=tile,
        items=parameters.items,
    )  # fmt: skip
    return Lowered(widened(kernel), walked, parameters.bindings, parameters.spaces)
