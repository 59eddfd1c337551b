"""Message passing in DGL's way of writing: user-defined and built-in functions over edges and mailboxes.

`passing` is what happens, as plain PyTorch operations; `run` is how eager calls get kernels; `mailbox`, `rowwise`,
`reductions`, `shapes` and `contract` are what a ragged mailbox can do; `bucket` is the way out for what it cannot.
"""
