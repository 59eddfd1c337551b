"""Graphs with data on nodes and edges, with the names and the semantics of DGL's.

`graph` holds the class, `frame` its data, `query` questions about its structure, `build` makes graphs of index tensors,
`transform`, `batch` and `hetero` make graphs of graphs, `convert_from` and `convert_to` know other libraries.
"""
