"""Message passing in DGL's notation: user-defined and built-in functions over edges and mailboxes.

`passing` says what happens, as plain PyTorch operations, and `run` gives kernels to eager calls. `mailbox`, `rowwise`,
`reductions`, `shapes` and `contract` define what a ragged mailbox can do; `operations` builds the table of its
functions, which is complete once any module of this package is imported. `bucket` runs what a ragged mailbox cannot do.
"""

from graphweave.udf import operations

__all__ = ["operations"]
