"""Objects that stand for tensors and answer PyTorch's functions: what mailboxes, pairs and values of loops share.

`answers` holds the base class and its table of functions. `pointwise`, `views`, `reductions` and `equations` hold what
all these objects do in the same way.
"""
