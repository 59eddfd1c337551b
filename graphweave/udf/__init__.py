"""Message passing in DGL's way of writing: user-defined and built-in functions over edges and mailboxes.

`passing` is what happens, as plain PyTorch operations; `run` is how eager calls get kernels; `mailbox`, `rowwise`,
`reductions`, `shapes` and `contract` are what a ragged mailbox can do, and `operations` its table of functions,
complete once any module of this package is imported; `bucket` is the way out for what a mailbox cannot do.
"""

from graphweave.udf import operations

__all__ = ["operations"]
