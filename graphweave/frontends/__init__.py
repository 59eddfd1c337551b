"""How programs come in: `dynamo` holds `compile`, `explain`, the torch.compile backend, importer and hand-over."""
