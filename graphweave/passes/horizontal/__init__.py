"""Horizontal fusion: what a model does for each relation in turn is done once, for all of them (merge.py)."""
