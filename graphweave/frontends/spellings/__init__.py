"""Rewrites of a captured graph into forms that the importer reads: rows first, masks as indices, no stacks."""
