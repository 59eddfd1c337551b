"""`graphweave.check`: how right, how repeatable and how fast a compiled function is, on the user's own data."""
