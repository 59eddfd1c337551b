"""Whole compilations on disk, from the captured graph on: their keys, and their parts as bytes."""
