"""How programs come in: `dynamo` has `compile`, `explain`, the torch.compile backend, the importer and hand-over."""
