"""Objects that stand for tensors and answer PyTorch's functions: what mailboxes, pairs and values of loops share.

`answers` is the base class and its table of functions; `pointwise`, `views` and `equations` are what such objects do
alike.
"""
