"""Graphs, programs and comparisons for tests: no test belongs here, and nothing here is needed to run a model."""
