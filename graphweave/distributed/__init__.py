"""The same model on many processes: parts of a graph, exchange of rows, and training on ranks (docs/distributed.md)."""
