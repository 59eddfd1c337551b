"""Captured graph -> message program, and the measures that the graph of the first call gives."""
