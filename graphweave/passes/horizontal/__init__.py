"""Horizontal fusion: work that a model does for each relation in turn is done once for all of them (merge.py)."""
