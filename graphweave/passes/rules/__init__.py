"""Rewrite rules, one a file: `rule(build, ref)` gives an equal value, or None where it does not apply."""
