"""Benchmarks and the operator zoo. Run one as `python -m bench.<name>` from the repository root."""
