"""Graphs with data on nodes and edges, with DGL's names and semantics.

`graph` holds the class, `frame` its data, `query` questions about its structure. `build` makes graphs from index
tensors, `transform`, `batch` and `hetero` make graphs from graphs, `convert_from` and `convert_to` convert graphs from
and to other libraries.
"""
