"""Which nodes run in which kernel, as data."""
