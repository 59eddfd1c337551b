"""The road from a captured graph to kernels: every pass, in the order in which programs go through them.

    captured graph  -- SPELLINGS -->  captured graph in forms that the importer reads
                    -- import_graph (frontends/importing) -->  joint program
    joint program   -- JOINT -->  cheaper joint program, marked with the calls that no kernel computes
                    -- split (passes/partition) -->  forward and backward
    each half       -- HALF -->  its final form
                    -- Facts.hoist (analysis/hoist) -->  prelude, which runs once for each graph
    each prelude    -- PRELUDE -->  its final form
                    -- make_plan (compiler/plan) -->  kernels as loop IR and as text

A door states what it wants as a `Request` (`request.py`), `compile.py` leads it along this road, and `walk.py` runs the
passes: it verifies, dumps, times and explains between any two. A pass is a file in `passes/` (`lower/` if it asks the
schedule, `frontends/spellings/` if it rewrites the captured graph) and a row here. The option `passes` leaves passes
and rules out by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.errors import SettingsError
from graphweave.frontends.spellings.blocked_products import blocks_apart
from graphweave.frontends.spellings.complex_apart import complex_apart
from graphweave.frontends.spellings.dense_rows import dense_to_rows
from graphweave.frontends.spellings.gradients_of_parts import join_gradients_of_parts
from graphweave.frontends.spellings.masks import masks_to_indices
from graphweave.frontends.spellings.product_rows import products_to_rows
from graphweave.frontends.spellings.respelling import Respelling
from graphweave.frontends.spellings.row_numbers import without_gathered_numbers
from graphweave.frontends.spellings.stacks import without_stacks
from graphweave.frontends.spellings.wide_masks import wide_masks_to_rows
from graphweave.lower.mark_calls import MarkCalls
from graphweave.lower.pack_rows import PackRows
from graphweave.passes.accumulate import Accumulate
from graphweave.passes.bucket_sums import BucketSums
from graphweave.passes.given_rows import GivenRows
from graphweave.passes.halo_totals import HaloTotals
from graphweave.passes.horizontal.merge import Merge
from graphweave.passes.horizontal.to_edges import ToEdges
from graphweave.passes.narrow_gathers import NarrowGathers
from graphweave.passes.pass_facts import Pass
from graphweave.passes.relabel import Relabel
from graphweave.passes.rewrite import Rewrite
from graphweave.passes.segment_indices import SegmentIndices
from graphweave.passes.shard import Shard
from graphweave.passes.simplify import Simplify
from graphweave.passes.sink_reshape import SinkReshape
from graphweave.passes.split_pairs import SplitPairs
from graphweave.passes.symmetric_pairs import SymmetricPairs

SPELLINGS: tuple[Respelling, ...] = (
    Respelling("rows-of-wide-masks", wide_masks_to_rows),
    Respelling("masks-to-indices", masks_to_indices),
    Respelling("complex-apart", complex_apart),
    Respelling("join-gradients-of-parts", join_gradients_of_parts),
    Respelling("blocks-apart", blocks_apart),
    Respelling("products-to-rows", products_to_rows),
    Respelling("dense-to-rows", dense_to_rows),
    Respelling("unstack", without_stacks),
    Respelling("drop-gathered-numbers", without_gathered_numbers),
)
JOINT: tuple[Pass, ...] = (
    SegmentIndices(),
    Simplify(),
    Merge(),
    Simplify(),
    GivenRows(),
    ToEdges(),
    SymmetricPairs(),
    SinkReshape(),
    NarrowGathers(),
    Rewrite(),
    Simplify(),
    SinkReshape(),
    Accumulate(),
    Relabel(),
    Shard(),
    HaloTotals(),
    BucketSums(),
    MarkCalls(),
)
HALF: tuple[Pass, ...] = (PackRows(),)
PRELUDE: tuple[Pass, ...] = (SplitPairs(),)

NEEDED = {"shard": "a rank has only its own rows"}
"""Passes that cannot be left out, each with the reason."""


@dataclass(frozen=True, slots=True)
class Road:
    """The passes of one compilation."""

    spellings: tuple[Respelling, ...] = SPELLINGS
    joint: tuple[Pass, ...] = JOINT
    half: tuple[Pass, ...] = HALF
    prelude: tuple[Pass, ...] = PRELUDE

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each pass, once."""
        spelled, passed = (s.name for s in self.spellings), (p.name for p in (*self.joint, *self.half, *self.prelude))
        return tuple(dict.fromkeys((*spelled, *passed)))

    def without(self, names: frozenset[str]) -> Road:
        """The road without the passes of these names. Names of rules are left to the passes that apply them. Raises
        SettingsError for a name that nothing has, and for a pass that is needed."""
        for name in sorted(names):
            if name in NEEDED:
                raise SettingsError(f"the pass {name!r} is needed, since {NEEDED[name]} (got '-{name}'). Keep it.")
            if name not in self.names and name not in RULES:
                known = ", ".join((*self.names, *sorted(RULES)))
                raise SettingsError(f"no pass or rule has the name {name!r}; there are {known}. Name one of these.")
        if not names:
            return self
        return Road(
            tuple(s for s in self.spellings if s.name not in names),
            tuple(p for p in self.joint if p.name not in names),
            tuple(p for p in self.half if p.name not in names),
            tuple(p for p in self.prelude if p.name not in names),
        )


RULES = frozenset(rule.name for rule in (*Simplify().rules, *Rewrite().rules))
"""The names of the rewrite rules that a pass applies."""

ROAD = Road()
"""The whole road."""
