"""The doors that PyTorch's tracer feeds: `compile`, `explain`, `tune`, and the torch.compile backend."""
