"""The page about a compiled function: a function of plain data (`data.py`), which `explain` and `profile` fill."""
