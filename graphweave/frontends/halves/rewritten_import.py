"""An import after passes: what is known of the captured graph, by the places to which values went."""

from __future__ import annotations

from dataclasses import replace

from graphweave.frontends.halves.choices import guard_choices
from graphweave.frontends.halves.handover import row_counts
from graphweave.frontends.importing.importer import Imported
from graphweave.passes.rewritten import Rewritten


def rewritten_import(imported: Imported, done: Rewritten, *, guarded: bool) -> Imported:
    """`imported` with its program rewritten. If `guarded`, adds guards on choices that were made by cost."""
    rows = row_counts(done.program, imported, done.unions)
    if guarded:
        guard_choices(done.steps, rows)
    where = done.where
    return replace(
        imported,
        program=done.program,
        space_rows=rows,
        inputs=tuple(where[r] for r in imported.inputs),
        vals={where[r]: v for r, v in imported.vals.items() if r in where},
        refused={where[r]: why for r, why in imported.refused.items() if r in where},
        effects=tuple(where[r] for r in imported.effects),
        attributes={where[r]: v for r, v in imported.attributes.items() if r in where},
        drawn={name: where[r] for name, r in imported.drawn.items() if r in where},
    )
