"""The doors that PyTorch's tracer feeds: `compile`, `explain`, `tune`, and the torch.compile backend."""

from graphweave.runtime import early

early.begin_on_new_machine()
