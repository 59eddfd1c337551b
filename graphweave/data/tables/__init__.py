"""Tables with keys, from data frames, files and databases, as one graph (docs/tables.md)."""
